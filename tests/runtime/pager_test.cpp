#include <doctest/doctest.h>

#include <functional>

#include "tests/runtime/pager_rig.hpp"

using namespace terrace;
using namespace terrace::runtime;
using namespace terrace::runtime::test;

namespace {

std::vector<void*> make_objects(Rig& rig, std::size_t count, std::uint64_t bytes) {
  std::vector<void*> objects;
  for (std::size_t i = 0; i < count; ++i) {
    void* p = rig.heap().allocate(bytes, 64, Fill::undefined);
    REQUIRE(p != nullptr);
    fill_words(p, bytes, i, 0);
    objects.push_back(p);
  }
  return objects;
}

void cycle_once(Rig& rig, std::vector<void*>& objects, std::uint64_t bytes, int pass) {
  for (std::size_t i = 0; i < objects.size(); ++i) {
    REQUIRE(find_wrong_word(objects[i], bytes, i, std::uint64_t(pass)) == ~0ull);
    fill_words(objects[i], bytes, i, std::uint64_t(pass) + 1);
  }
  REQUIRE(!rig.pager().failed());
}

void cycle(Rig& rig, std::vector<void*>& objects, std::uint64_t bytes, int passes) {
  for (int pass = 0; pass < passes; ++pass) cycle_once(rig, objects, bytes, pass);
}

// Calls back at each flush: within a round of the pager, after it has looked at what the heap did and before
// it makes room.
class HookedDevice final : public io::BlockDevice {
 public:
  HookedDevice(io::BlockDevice& base, std::function<void()> hook) : base_(base), hook_(std::move(hook)) {}
  Status submit(const io::Request& request) override { return base_.submit(request); }
  void flush() override {
    hook_();
    base_.flush();
  }
  std::size_t poll(std::span<io::Completion> out) override { return base_.poll(out); }
  void wait(int timeout_ms) override { base_.wait(timeout_ms); }
  int poll_descriptor() const override { return base_.poll_descriptor(); }
  std::uint32_t depth() const override { return base_.depth(); }
  std::uint32_t in_flight() const override { return base_.in_flight(); }
  std::uint32_t alignment() const override { return base_.alignment(); }
  const char* name() const override { return base_.name(); }

 private:
  io::BlockDevice& base_;
  std::function<void()> hook_;
};

}  // namespace

TEST_CASE("pager: an object that takes a freed one's place in the middle of a round keeps its bytes") {
  constexpr std::size_t kObjects = 12;
  io::MemoryDevice memory;
  REQUIRE(memory.open({.size_bytes = 1 * kGiB}).ok());
  std::vector<void*> objects;
  Rig* heap_owner = nullptr;
  std::atomic<bool> done{false};
  HookedDevice device(memory, [&] {
    if (done) return;
    for (void* p : objects) heap_owner->heap().free(p);
    for (std::size_t i = 0; i < kObjects; ++i) {
      void* p = heap_owner->heap().allocate(2 * kMiB, 64, Fill::undefined);
      REQUIRE(p == objects[i]);  // else this test tests nothing
      fill_words(p, 2 * kMiB, i, 1);
    }
    done = true;
  });
  Rig rig({.limit_bytes = 8 * kMiB, .device_override = &device, .start = false});
  heap_owner = &rig;
  objects = make_objects(rig, kObjects, 2 * kMiB);
  rig.start_pager();
  while (!done || rig.counters().bytes_out == 0) usleep(1000);  // ctest has a time limit
  for (std::size_t i = 0; i < kObjects; ++i) {
    CAPTURE(i);
    CHECK(find_wrong_word(objects[i], 2 * kMiB, i, 1) == ~0ull);
  }
}

TEST_CASE("pager: a program that needs more blocks at once than fit goes on") {
  // Each copy crosses a border between blocks at both of its ends, on four threads, in DRAM for four blocks.
  Rig rig({.device = DeviceKind::uring, .limit_bytes = 8 * kMiB});
  auto objects = make_objects(rig, 8, 6 * kMiB);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      auto* from = static_cast<std::byte*>(objects[2 * t]);
      auto* to = static_cast<std::byte*>(objects[2 * t + 1]);
      for (int round = 0; round < 4; ++round) {
        std::memmove(to + 24, from, 6 * kMiB - 24);
        if (std::memcmp(to + 24, from, 6 * kMiB - 24) != 0) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("pager: objects of 2 MiB go around in a quarter of their size, on every device") {
  for (const DeviceKind kind : {DeviceKind::memory, DeviceKind::uring, DeviceKind::sync}) {
    CAPTURE(int(kind));
    Rig rig({.device = kind, .limit_bytes = 32 * kMiB});
    auto objects = make_objects(rig, 64, 2 * kMiB);
    cycle(rig, objects, 2 * kMiB, 4);
    CHECK(rig.counters().bytes_out > 96 * kMiB);
    CHECK(rig.counters().bytes_in > 96 * kMiB);
    CHECK(rig.counters().checksum_failures == 0);
    CHECK(rig.pager().resident_granules() <= rig.pager().limit_granules() + kGranulesPerChunk);
    for (void* p : objects) rig.heap().free(p);
  }
}

TEST_CASE("pager: objects of odd sizes share chunks and keep their bytes") {
  for (const std::uint64_t bytes : {128 * kKiB, 176 * kKiB, 1 * kMiB + 16 * kKiB, 5 * kMiB + 304 * kKiB}) {
    CAPTURE(bytes);
    Rig rig({.limit_bytes = 24 * kMiB});
    auto objects = make_objects(rig, std::size_t(96 * kMiB / bytes), bytes);
    cycle(rig, objects, bytes, 3);
    CHECK(rig.counters().bytes_out > 0);
    CHECK(rig.pager().resident_granules() <= rig.pager().limit_granules() + 2 * kGranulesPerChunk);
  }
}

TEST_CASE("pager: started late, it takes over what is already there") {
  Rig rig({.limit_bytes = 32 * kMiB, .start = false});
  auto objects = make_objects(rig, 48, 2 * kMiB);
  for (std::size_t i = 0; i < objects.size(); i += 5) {  // some dead memory too
    rig.heap().free(objects[i]);
    objects[i] = rig.heap().allocate(1 * kMiB, 64, Fill::zero);
    REQUIRE(objects[i] != nullptr);
  }
  rig.start_pager();
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (i % 5 == 0) {
      const auto* words = static_cast<const std::uint64_t*>(objects[i]);
      for (std::uint64_t k = 0; k < 1 * kMiB / 8; ++k) REQUIRE(words[k] == 0);
    } else {
      REQUIRE(find_wrong_word(objects[i], 2 * kMiB, i, 0) == ~0ull);
    }
  }
  CHECK(rig.counters().bytes_out > 0);
}

TEST_CASE("pager: blocks that did not change leave without a write") {
  Rig rig({.limit_bytes = 32 * kMiB});
  auto objects = make_objects(rig, 64, 2 * kMiB);
  auto read_all = [&] {
    for (std::size_t i = 0; i < objects.size(); ++i)
      REQUIRE(find_wrong_word(objects[i], 2 * kMiB, i, 0) == ~0ull);
  };
  read_all();
  read_all();
  const std::uint64_t written = rig.counters().bytes_out;
  read_all();
  read_all();
  CHECK(rig.counters().bytes_out - written <= 8 * 2 * kMiB);  // those whose first store had not come yet
  CHECK(rig.counters().blocks_dropped_clean > 32);
}

TEST_CASE("pager: memory asked for as zero reads as zero, from recycled frames too") {
  Rig rig({.limit_bytes = 24 * kMiB});
  for (int round = 0; round < 40; ++round) {
    const std::uint64_t bytes = (1 + round % 5) * kMiB + (round % 7) * 16 * kKiB;
    void* dirty = rig.heap().allocate(8 * kMiB, 64, Fill::undefined);
    std::memset(dirty, 0x5a, 8 * kMiB);
    rig.heap().free(dirty);
    auto* zero = static_cast<std::uint64_t*>(rig.heap().allocate(bytes, 64, Fill::zero));
    REQUIRE(zero != nullptr);
    for (std::uint64_t i = 0; i < bytes / 8; ++i) REQUIRE(zero[i] == 0);
    rig.heap().free(zero);
  }
}

TEST_CASE("pager: several threads on their own objects, and on shared ones") {
  Rig rig({.device = DeviceKind::uring, .limit_bytes = 32 * kMiB});
  auto shared = make_objects(rig, 16, 2 * kMiB);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 30; ++round) {
        const std::uint64_t bytes = (1 + (round + t) % 4) * kMiB;
        void* own = rig.heap().allocate(bytes, 64, Fill::undefined);
        if (own == nullptr) {
          ++wrong;
          return;
        }
        fill_words(own, bytes, std::uint64_t(100 + t), std::uint64_t(round));
        const std::size_t other = std::size_t(round * 7 + t * 3) % shared.size();
        if (find_wrong_word(shared[other], 2 * kMiB, other, 0) != ~0ull) ++wrong;
        if (find_wrong_word(own, bytes, std::uint64_t(100 + t), std::uint64_t(round)) != ~0ull) ++wrong;
        rig.heap().free(own);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("pager: under forced eviction every block leaves, and nothing is lost") {
  Rig rig({.device = DeviceKind::uring, .limit_bytes = 64 * kMiB, .force_eviction = true, .seed = 7});
  auto objects = make_objects(rig, 16, 2 * kMiB);
  cycle(rig, objects, 2 * kMiB, 10);
  CHECK(rig.counters().blocks_stored > 16);
}

TEST_CASE("pager: pages that the program drops itself read as zero, wherever their block was") {
  Rig rig({.limit_bytes = 16 * kMiB});
  auto objects = make_objects(rig, 32, 2 * kMiB);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    auto* bytes = static_cast<std::byte*>(objects[i]);
    // The first are stored, the last are mapped.
    REQUIRE(madvise(bytes + 64 * kKiB, 1 * kMiB, MADV_DONTNEED) == 0);
    if (i % 3 == 0) REQUIRE(madvise(bytes, 2 * kMiB, MADV_DONTNEED) == 0);
  }
  for (std::size_t i = 0; i < objects.size(); ++i) {
    const auto* words = static_cast<const std::uint64_t*>(objects[i]);
    for (std::uint64_t k = 0; k < 2 * kMiB / 8; ++k) {
      const bool gone = i % 3 == 0 || (k * 8 >= 64 * kKiB && k * 8 < 64 * kKiB + 1 * kMiB);
      if (words[k] != (gone ? 0 : word_at(i, k, 0))) {
        CAPTURE(i);
        CAPTURE(k);
        REQUIRE(words[k] == (gone ? 0 : word_at(i, k, 0)));
      }
    }
  }
}

TEST_CASE("pager: a limit that shrinks is kept, one that grows is used") {
  Rig rig({.device = DeviceKind::uring, .limit_bytes = 96 * kMiB});
  auto objects = make_objects(rig, 64, 2 * kMiB);
  rig.pager().set_object_limit(16 * kMiB);
  for (int i = 0; i < 300 && rig.pager().resident_granules() * kGranuleBytes > 16 * kMiB; ++i) usleep(10000);
  CHECK(rig.pager().resident_granules() * kGranuleBytes <= 16 * kMiB + kChunkBytes);
  rig.pager().set_object_limit(160 * kMiB);
  while (rig.pager().limit_granules() * kGranuleBytes < 160 * kMiB) usleep(1000);
  for (std::size_t i = 0; i < objects.size(); ++i)
    REQUIRE(find_wrong_word(objects[i], 2 * kMiB, i, 0) == ~0ull);
  const std::uint64_t in = rig.counters().bytes_in;
  for (std::size_t i = 0; i < objects.size(); ++i)
    REQUIRE(find_wrong_word(objects[i], 2 * kMiB, i, 0) == ~0ull);
  CHECK(rig.counters().bytes_in == in);
}

TEST_CASE("pager: every transition of the residency machine is taken, those of failing I/O too") {
  {
    Rig rig({.device = DeviceKind::uring,
             .limit_bytes = 32 * kMiB,
             .faults = {{.kind = io::FaultKind::eio, .on = io::FaultOn::writes, .times = 10, .one_in = 7},
                        // A block that cannot be read three times in a row ends the job.
                        {.kind = io::FaultKind::eio, .on = io::FaultOn::reads, .times = 2, .one_in = 7}}});
    auto objects = make_objects(rig, 48, 2 * kMiB);
    cycle(rig, objects, 2 * kMiB, 3);
    for (int pass = 0; pass < 3; ++pass)  // unchanged: leaves without a write
      for (std::size_t i = 0; i < objects.size(); ++i)
        REQUIRE(find_wrong_word(objects[i], 2 * kMiB, i, 3) == ~0ull);
    CHECK(rig.faulty().strikes() == 12);
  }
  {
    // A write that fails wherever it goes: the block comes home, and the job goes on when the disk does. Each
    // block is tried three times, so some block fails for good however many are under way.
    Rig rig({.device = DeviceKind::uring,
             .limit_bytes = 32 * kMiB,
             .faults = {{.kind = io::FaultKind::no_space, .on = io::FaultOn::writes, .times = 40}}});
    auto objects = make_objects(rig, 24, 2 * kMiB);
    cycle(rig, objects, 2 * kMiB, 2);
  }
  {
    // Forced out and touched again at once, until one is rescued before it is written and one after.
    Rig rig({.device = DeviceKind::uring, .limit_bytes = 64 * kMiB, .force_eviction = true, .seed = 3});
    auto objects = make_objects(rig, 16, 2 * kMiB);
    const auto rescued = [](Residency from) { return transitions_taken(from, Cause::rescue) > 0; };
    for (int pass = 0; pass < 500; ++pass) {
      cycle_once(rig, objects, 2 * kMiB, pass);
      if (pass >= 10 && rescued(Residency::staged_dirty) && rescued(Residency::staged_clean)) break;
    }
  }
  for (std::uint32_t from = 0; from < kResidencyCount; ++from) {
    for (std::uint32_t cause = 0; cause < kCauseCount; ++cause) {
      if (!transition(Residency(from), Cause(cause)).allowed) continue;
      CAPTURE(std::string(to_text(Residency(from))));
      CAPTURE(std::string(to_text(Cause(cause))));
      CHECK(transitions_taken(Residency(from), Cause(cause)) > 0);
    }
  }
}
