// One rig per block device, so that one suite runs over all of them.
//
// A rig holds a device of kRigBytes, lets a test look at the bytes behind it, and says what is missing where
// the device cannot exist (a counted skip).
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "io/faulty_device.hpp"
#include "io/io_memory.hpp"
#include "io/memory_device.hpp"
#include "io/sync_device.hpp"
#include "io/uring_device.hpp"

namespace terrace::io::test {

inline constexpr std::uint64_t kRigBytes = 8 * kMiB;
inline constexpr std::uint32_t kRigDepth = 16;

// A missing capability is said and counted, never passed over in silence.
inline void skip(const std::string& reason) {
  static int count = 0;
  MESSAGE("skipped (" << ++count << "): " << reason);
}

// An unnamed file on a real file system (TERRACE_STORE, else the working directory).
class ScratchFile {
 public:
  explicit ScratchFile(std::uint64_t bytes = kRigBytes) {
    const char* directory = std::getenv("TERRACE_STORE");
    fd_ = ::open(directory != nullptr ? directory : ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    REQUIRE(fd_ >= 0);
    REQUIRE(ftruncate(fd_, off_t(bytes)) == 0);
    direct_ = fcntl(fd_, F_SETFL, O_RDWR | O_DIRECT) == 0;
  }
  ScratchFile(const ScratchFile&) = delete;
  ~ScratchFile() { ::close(fd_); }
  int fd() const { return fd_; }
  std::uint32_t alignment() const { return direct_ ? 4096 : 512; }
  void truncate(std::uint64_t bytes) { REQUIRE(ftruncate(fd_, off_t(bytes)) == 0); }
  void peek(std::uint64_t offset, char* out, std::size_t n) {
    fcntl(fd_, F_SETFL, O_RDWR);
    REQUIRE(pread(fd_, out, n, off_t(offset)) == ssize_t(n));
    if (direct_) fcntl(fd_, F_SETFL, O_RDWR | O_DIRECT);
  }

 private:
  int fd_ = -1;
  bool direct_ = false;
};

struct MemoryRig {
  static constexpr const char* kName = "memory";
  MemoryDevice memory;
  explicit MemoryRig(std::uint32_t depth = kRigDepth, std::uint32_t latency = 0) {
    REQUIRE(memory.open({.size_bytes = kRigBytes, .depth = depth, .alignment = 512, .latency_polls = latency})
                .ok());
  }
  const char* missing() const { return nullptr; }
  BlockDevice& device() { return memory; }
  MemoryDevice& real() { return memory; }
  void peek(std::uint64_t offset, char* out, std::size_t n) { std::memcpy(out, memory.bytes() + offset, n); }
};

struct SlowMemoryRig : MemoryRig {
  static constexpr const char* kName = "memory with latency";
  explicit SlowMemoryRig(std::uint32_t depth = kRigDepth) : MemoryRig(depth, 7) {}
};

struct SyncRig {
  static constexpr const char* kName = "sync";
  ScratchFile file;
  SyncDevice sync;
  explicit SyncRig(std::uint32_t depth = kRigDepth) {
    REQUIRE(sync.open(file.fd(), {.depth = depth, .alignment = file.alignment()}).ok());
  }
  const char* missing() const { return nullptr; }
  BlockDevice& device() { return sync; }
  SyncDevice& real() { return sync; }
  void peek(std::uint64_t offset, char* out, std::size_t n) { file.peek(offset, out, n); }
};

struct UringRig {
  static constexpr const char* kName = "io_uring";
  ScratchFile file;
  UringDevice uring;
  Status opened;
  explicit UringRig(std::uint32_t depth = kRigDepth)
      : opened(uring.open(file.fd(), {.depth = depth, .alignment = file.alignment()})) {}
  const char* missing() const { return opened.ok() ? nullptr : opened.text; }
  BlockDevice& device() { return uring; }
  UringDevice& real() { return uring; }
  void peek(std::uint64_t offset, char* out, std::size_t n) { file.peek(offset, out, n); }
};

// A faulty device over another rig, without rules until a test sets them.
template <typename Inner>
struct FaultyRig {
  static constexpr const char* kName = "faulty";
  Inner inner;
  FaultyDevice faulty;
  explicit FaultyRig(std::uint32_t depth = kRigDepth, std::uint64_t seed = 42) : inner(depth) {
    if (inner.missing() != nullptr) return;
    REQUIRE(faulty.open(inner.device(), {}, seed).ok());
    faulty.attach(inner.real());
  }
  ~FaultyRig() {
    if (inner.missing() == nullptr) inner.real().set_injector(nullptr);
  }
  const char* missing() const { return inner.missing(); }
  BlockDevice& device() { return faulty; }
  auto& real() { return inner.real(); }
  void peek(std::uint64_t offset, char* out, std::size_t n) { inner.peek(offset, out, n); }
};

// Submits, polling when the queue is full, and gives the completions as they come.
inline std::vector<Completion> drain(BlockDevice& device, std::uint32_t until_in_flight = 0,
                                     int limit_ms = 10'000) {
  std::vector<Completion> all;
  Completion some[5];
  const std::uint64_t end = monotonic_ns() + std::uint64_t(limit_ms) * kNsPerMs;
  while (device.in_flight() > until_in_flight && monotonic_ns() < end) {
    device.wait(100);
    const std::size_t n = device.poll(some);
    all.insert(all.end(), some, some + n);
  }
  return all;
}

// One request, to its completion; the errno of it. -1: it never came.
inline int run_one(BlockDevice& device, Request request, int limit_ms = 10'000) {
  request.id = 0x7e57;
  REQUIRE(device.submit(request).ok());
  const std::uint32_t before = device.in_flight() - 1;
  const auto got = drain(device, before, limit_ms);
  if (got.empty()) return -1;
  REQUIRE(got.size() == 1);
  CHECK(got[0].id == request.id);
  return got[0].errno_value;
}

inline void fill(char* bytes, std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i + 8 <= n; i += 8) {
    const std::uint64_t v = random();
    std::memcpy(bytes + i, &v, 8);
  }
}

}  // namespace terrace::io::test
