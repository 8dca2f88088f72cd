// A heap and its pager in one test process: real userfaultfd, the pager as a thread, a device of the test's
// choice.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "io/faulty_device.hpp"
#include "io/memory_device.hpp"
#include "io/sync_device.hpp"
#include "io/uring_device.hpp"
#include "runtime/pager.hpp"
#include "tiering/lru.hpp"
#include "tiering/stream.hpp"

namespace terrace::runtime::test {

enum class DeviceKind { memory, uring, sync };

struct RigOptions {
  DeviceKind device = DeviceKind::memory;
  std::uint64_t limit_bytes = 64 * kMiB;
  std::uint64_t store_bytes = 1 * kGiB;  // of the memory device
  bool lru = false;
  bool force_eviction = false;
  std::uint64_t seed = 1;
  std::uint32_t latency_polls = 3;  // of the memory device
  io::BlockDevice* device_override =
      nullptr;        // instead of `device`, e.g. a faulty one over rig.base_device()
  bool start = true;  // the pager at once; else start_pager() later
  std::uint64_t store_capacity_bytes = 0;
  bool may_fail = false;                   // the test expects fatal()
  std::vector<io::FaultRule> faults = {};  // a faulty device over `device`, with `seed`
  std::uint32_t depth = 64;                // of the device
  std::uint32_t io_timeout_ms = 5000;
};

class Rig {
 public:
  explicit Rig(const RigOptions& options = {}) : options_(options) {
    job_ = static_cast<JobPage*>(
        mmap(nullptr, kJobPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    link_ = std::make_unique<PagerLink>();
    require(arena_.reserve(), "arena");
    require(heap_.init(&arena_, link_.get(), HeapOptions{}), "heap");
    require(
        store_.open({.directory = store_directory().c_str(), .capacity_bytes = options.store_capacity_bytes}),
        "store");
    switch (options.device) {
      case DeviceKind::memory:
        require(memory_.open({.size_bytes = options.store_bytes,
                              .depth = options.depth,
                              .latency_polls = options.latency_polls,
                              .seed = options.seed}),
                "memory device");
        base_ = &memory_;
        break;
      case DeviceKind::uring:
        require(uring_.open(store_.descriptor(), {options.depth, store_.alignment()}), "uring");
        base_ = &uring_;
        break;
      case DeviceKind::sync:
        require(sync_.open(store_.descriptor(), {options.depth, store_.alignment()}), "sync");
        base_ = &sync_;
        break;
    }
    if (!options.faults.empty()) {
      require(faulty_.open(*base_, options.faults, options.seed), "faulty device");
      if (options.device == DeviceKind::memory) faulty_.attach(memory_);
      if (options.device == DeviceKind::uring) faulty_.attach(uring_);
      if (options.device == DeviceKind::sync) faulty_.attach(sync_);
      base_ = &faulty_;
    }
    if (options.start) start_pager();
  }

  ~Rig() {
    stop_pager();
    arena_.release();
    munmap(job_, kJobPageBytes);
  }

  io::BlockDevice* base_device() { return base_; }

  void start_pager() {
    require(mover_.open(), "userfaultfd (is vm.unprivileged_userfaultfd or root needed?)");
    const std::uint32_t capacity = BlockTable::capacity_for(arena_.reserved_bytes());
    tables_bytes_ =
        std::max(tiering::StreamPolicy::memory_bytes(capacity), tiering::LruPolicy::memory_bytes(capacity));
    tables_ = mmap(nullptr, tables_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (options_.lru)
      lru_.init(tables_, tables_bytes_, capacity);
    else
      stream_.init(tables_, tables_bytes_, capacity);
    PagerParts parts;
    parts.arena = &arena_;
    parts.heap = &heap_;
    parts.link = link_.get();
    parts.mover = &mover_;
    parts.device = options_.device_override != nullptr ? options_.device_override : base_;
    parts.store = &store_;
    parts.policy = options_.lru ? static_cast<tiering::OnlinePolicy*>(&lru_) : &stream_;
    parts.job = job_;
    PagerOptions pager_options;
    pager_options.object_limit_bytes = options_.limit_bytes;
    pager_options.force_eviction = options_.force_eviction;
    pager_options.seed = options_.seed;
    pager_options.io_timeout_ms = options_.io_timeout_ms;
    pager_ = std::make_unique<Pager>();
    heap_.lock();
    const Status started = pager_->start(parts, pager_options);
    heap_.unlock();
    require(started, "pager");
    thread_ = std::thread([this] {
      while (!stop_.load(std::memory_order_relaxed) && pager_->run_once(2)) {
      }
      ended_.store(true);
      if (pager_->failed() && !options_.may_fail) {
        std::fprintf(stderr, "pager rig: unexpected end: %s\n", job_->message);
        _exit(1);  // threads of the test wait for blocks that nobody will bring
      }
    });
  }

  void stop_pager() {
    if (!thread_.joinable()) return;
    stop_ = true;
    thread_.join();
    if (!pager_->failed()) pager_->validate();
    pager_->stop();
    munmap(tables_, tables_bytes_);
  }

  Heap& heap() { return heap_; }
  Arena& arena() { return arena_; }
  Pager& pager() { return *pager_; }
  JobPage& job() { return *job_; }
  JobCounters& counters() { return job_->counters; }
  io::MemoryDevice& memory() { return memory_; }
  const io::FaultyDevice& faulty() const { return faulty_; }
  bool pager_ended() const { return ended_; }

  static std::string store_directory() {
    const char* given = std::getenv("TERRACE_TEST_STORE");
    return given != nullptr ? given : ".";
  }

 private:
  static void require(const Status& status, const char* what) {
    if (status.ok()) return;
    std::fprintf(stderr, "pager rig: %s: %s: %s errno=%d\n", what, to_text(status.code), status.text,
                 status.errno_value);
    std::exit(status.code == ErrorCode::no_permission || status.code == ErrorCode::not_supported ? 77 : 1);
  }

  RigOptions options_;
  JobPage* job_ = nullptr;
  std::unique_ptr<PagerLink> link_;
  Arena arena_;
  Heap heap_;
  Mover mover_;
  io::Store store_;
  io::MemoryDevice memory_;
  io::UringDevice uring_;
  io::SyncDevice sync_;
  io::FaultyDevice faulty_;
  io::BlockDevice* base_ = nullptr;
  tiering::StreamPolicy stream_;
  tiering::LruPolicy lru_;
  void* tables_ = nullptr;
  std::size_t tables_bytes_ = 0;
  std::unique_ptr<Pager> pager_;
  std::thread thread_;
  std::atomic<bool> stop_{false}, ended_{false};
};

// Words that name their own place and version, so that any mix-up shows.
inline std::uint64_t word_at(std::uint64_t object, std::uint64_t index, std::uint64_t version) {
  std::uint64_t x =
      object * 0x9E3779B97F4A7C15ull ^ index * 0xC2B2AE3D27D4EB4Full ^ version * 0x165667B19E3779F9ull;
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9ull;
}

inline void fill_words(void* p, std::uint64_t bytes, std::uint64_t object, std::uint64_t version) {
  auto* words = static_cast<std::uint64_t*>(p);
  for (std::uint64_t i = 0; i < bytes / 8; ++i) words[i] = word_at(object, i, version);
}

// Index of the first wrong word, or ~0.
inline std::uint64_t find_wrong_word(const void* p, std::uint64_t bytes, std::uint64_t object,
                                     std::uint64_t version) {
  const auto* words = static_cast<const std::uint64_t*>(p);
  for (std::uint64_t i = 0; i < bytes / 8; ++i)
    if (words[i] != word_at(object, i, version)) return i;
  return ~0ull;
}

}  // namespace terrace::runtime::test
