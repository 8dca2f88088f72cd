// The heap against a brute-force model: an ordered map of the intervals that are live, and the bytes each
// must hold.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/heap.hpp"

using namespace terrace;
using namespace terrace::runtime;

namespace {

struct World {
  explicit World(HeapOptions options = {}) {
    REQUIRE(arena.reserve().ok());
    REQUIRE(heap.init(&arena, link.get(), options).ok());
  }
  ~World() { arena.release(); }
  Arena arena;
  std::unique_ptr<PagerLink> link = std::make_unique<PagerLink>();
  Heap heap;
};

std::uint64_t resident_kib() {
  std::FILE* f = std::fopen("/proc/self/statm", "r");
  unsigned long size = 0, resident = 0;
  REQUIRE(std::fscanf(f, "%lu %lu", &size, &resident) == 2);
  std::fclose(f);
  return resident * 4;
}

// A byte at the start, the end and every page, drawn from the seed: cheap, and catches overlap and lost
// pages.
void fill(std::byte* p, std::size_t bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes; i += 4096) p[i] = std::byte(seed + i / 4096);
  p[bytes - 1] = std::byte(seed * 3);
}
bool holds(const std::byte* p, std::size_t bytes, std::uint64_t seed) {
  if (p[bytes - 1] != std::byte(seed * 3)) return false;
  for (std::size_t i = 0; i < bytes; i += 4096) {
    if (i != bytes - 1 && p[i] != std::byte(seed + i / 4096)) return false;
  }
  return true;
}
bool is_zero(const std::byte* p, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i++) {
    if (p[i] != std::byte{0}) return false;
  }
  return true;
}

// Fills with bytes that are never zero, so that calloc after it has something to clear.
void soil(void* p, std::size_t bytes) { std::memset(p, 0x5a, bytes); }

class Model {
 public:
  Model(Heap& heap, std::uint64_t seed) : heap_(heap), random_(seed) {}

  void step() {
    const unsigned dice = random_() % 100;
    if (objects_.empty() || dice < 45) {
      allocate();
    } else if (dice < 80) {
      auto it = pick();
      check(it);
      heap_.free(it->first);
      objects_.erase(it);
    } else {
      resize(pick());
    }
  }
  void finish() {
    for (auto it = objects_.begin(); it != objects_.end(); it = objects_.erase(it)) {
      check(it);
      heap_.free(it->first);
    }
  }
  std::size_t live() const { return objects_.size(); }

 private:
  struct Object {
    std::size_t bytes;
    std::uint64_t seed;
  };
  using Objects = std::map<std::byte*, Object>;

  Objects::iterator pick() { return std::next(objects_.begin(), long(random_() % objects_.size())); }
  std::size_t draw_bytes() {
    const std::size_t most = std::size_t(1) << (14 + random_() % 10);  // 16 KiB to 8 MiB
    return 1 + random_() % most;
  }
  void check(Objects::iterator it) {
    REQUIRE(holds(it->first, it->second.bytes, it->second.seed));
    REQUIRE(heap_.usable_bytes(it->first) == it->second.bytes);
  }
  void allocate() {
    const std::size_t bytes = draw_bytes();
    const std::size_t alignment = random_() % 4 == 0 ? std::size_t(1) << (random_() % 24) : 16;
    const bool zero = random_() % 3 == 0;
    auto* p = static_cast<std::byte*>(heap_.allocate(bytes, alignment, zero ? Fill::zero : Fill::undefined));
    REQUIRE(p != nullptr);
    REQUIRE(std::uintptr_t(p) % alignment == 0);
    if (zero) REQUIRE(is_zero(p, bytes));
    const auto next = objects_.lower_bound(p);
    if (next != objects_.end()) REQUIRE(p + bytes <= next->first);
    if (next != objects_.begin()) REQUIRE(std::prev(next)->first + std::prev(next)->second.bytes <= p);
    soil(p, bytes);
    const std::uint64_t seed = random_();
    fill(p, bytes, seed);
    objects_[p] = {bytes, seed};
  }
  void resize(Objects::iterator it) {
    check(it);
    const std::size_t bytes = draw_bytes(), old = it->second.bytes;
    if (heap_.resize_in_place(it->first, bytes)) {
      const auto next = std::next(it);
      if (next != objects_.end()) REQUIRE(it->first + bytes <= next->first);
      if (bytes >= old) REQUIRE(holds(it->first, old, it->second.seed));
      it->second.bytes = bytes;
      soil(it->first, bytes);
      fill(it->first, bytes, it->second.seed);
    } else {
      check(it);  // nothing changed
    }
  }

  Heap& heap_;
  std::mt19937_64 random_;
  Objects objects_;
};

// Answers the heap as a pager would, without moving anything: drains the queue and keeps the books of live
// objects.
class FakePager {
 public:
  explicit FakePager(World& world) : link_(*world.link) {
    present_ = std::make_unique<std::atomic<std::uint64_t>[]>(2 * kChunks);
    for (std::size_t i = 0; i < 2 * kChunks; i++) present_[i] = ~std::uint64_t{0};
    world.heap.lock();
    world.heap.for_each_object(
        [](void* self, Granule head, std::uint32_t granules) {
          static_cast<FakePager*>(self)->books_[head] = granules;
        },
        this);
    link_.present = present_.get();
    link_.active.store(1);
    world.heap.unlock();
    thread_ = std::thread([this] { loop(); });
  }
  ~FakePager() { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  std::map<Granule, std::uint32_t>& books() { return books_; }
  bool wrong() const { return wrong_; }
  std::uint64_t zeroed_births() const { return zeroed_; }

 private:
  static constexpr std::size_t kChunks = 1 << 12;
  void loop() {
    for (bool last = false; !last;) {
      last = stop_;
      Command c;
      while (link_.queue.pop(c)) {
        if (c.kind == Command::Kind::born) {
          wrong_ = wrong_ || books_.count(c.head) != 0;
          books_[c.head] = c.granules;
          zeroed_ += c.zeroed;
        } else {
          wrong_ = wrong_ || books_.count(c.head) == 0 || books_[c.head] != c.granules;
          books_.erase(c.head);
        }
      }
      usleep(100);
    }
  }
  PagerLink& link_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> present_;
  std::map<Granule, std::uint32_t> books_;
  std::atomic<bool> stop_{false}, wrong_{false};
  std::atomic<std::uint64_t> zeroed_{0};
  std::thread thread_;
};

// Status of a child that runs body: dies by SIGABRT where body ends in a failed check.
template <typename Body>
int status_of(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    std::freopen("/dev/null", "w", stderr);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("heap: random work agrees with a model of intervals and bytes") {
  for (std::uint64_t seed = 1; seed <= 4; seed++) {
    CAPTURE(seed);
    World w;
    Model model(w.heap, seed);
    for (int i = 0; i < 3000; i++) {
      model.step();
      if (i % 8 == 0) w.heap.validate();
      if (i % 500 == 250) w.heap.purge(0), w.heap.validate();
    }
    model.finish();
    w.heap.validate();
    CHECK(w.heap.statistics().objects == 0);
    CHECK(w.heap.statistics().live_bytes == 0);
    w.heap.purge(0);
    CHECK(w.heap.statistics().touched_bytes == 0);  // everything joined into whole chunks
    w.heap.validate();
  }
}

TEST_CASE("heap: threads work on one heap, each against its own model") {
  World w;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&w, t] {
      Model model(w.heap, 100 + std::uint64_t(t));
      for (int i = 0; i < 1500; i++) {
        model.step();
        if (i % 300 == 299) w.heap.validate(), w.heap.purge(0);
      }
      model.finish();
    });
  }
  for (auto& t : threads) t.join();
  w.heap.validate();
  CHECK(w.heap.statistics().objects == 0);
}

TEST_CASE("heap: with a pager every birth and death is told once and in order") {
  World w;
  Model model(w.heap, 7);
  for (int i = 0; i < 300; i++) model.step();
  FakePager pager(w);
  for (int i = 0; i < 3000; i++) {
    model.step();
    if (i % 64 == 0) w.heap.validate();
  }
  const auto alive = w.heap.statistics().objects;
  pager.stop();
  CHECK_FALSE(pager.wrong());
  CHECK(pager.books().size() == alive);
  CHECK(pager.zeroed_births() > 0);
  CHECK(w.heap.purge(0) == 0);  // frames are the pager's now
}

TEST_CASE("heap: a live object does not grow in place beyond its granules while a pager runs") {
  World w;
  void* p = w.heap.allocate(kMiB, 16, Fill::undefined);
  FakePager pager(w);
  CHECK_FALSE(w.heap.resize_in_place(p, kMiB + 1));
  CHECK(w.heap.resize_in_place(p, 100));
  CHECK(w.heap.usable_bytes(p) == 100);
  CHECK(w.heap.resize_in_place(p, kMiB));
  w.heap.validate();
}

TEST_CASE("heap: while a pager runs, objects of 2 MiB and more begin on a chunk, also in reused memory") {
  World w;
  FakePager pager(w);
  void* odd = w.heap.allocate(3 * kMiB, 16, Fill::undefined);
  void* hole = w.heap.allocate(9 * kMiB, 16, Fill::undefined);
  void* end = w.heap.allocate(kMiB, 16, Fill::undefined);
  CHECK(std::uintptr_t(hole) % kChunkBytes == 0);
  w.heap.free(hole);
  void* again = w.heap.allocate(8 * kMiB, 16, Fill::undefined);
  CHECK(std::uintptr_t(again) % kChunkBytes == 0);
  CHECK(again == hole);
  w.heap.validate();
  for (void* p : {odd, end, again}) w.heap.free(p);
  w.heap.validate();
}

TEST_CASE("heap: an allocation waits for room and fails when it is refused") {
  World w;
  FakePager pager(w);
  w.link->room_bytes = 4 * kMiB;
  void* p = w.heap.allocate(3 * kMiB, 16, Fill::undefined);
  REQUIRE(p != nullptr);
  w.link->room_refused_bytes = 100 * kMiB;  // of an older wish: it does not count
  std::thread refuses([&] {
    while (w.link->room_wanted_bytes != 5 * kMiB) usleep(1000);
    w.link->room_refused_bytes = 5 * kMiB;
  });
  CHECK(w.heap.allocate(2 * kMiB, 16, Fill::undefined) == nullptr);
  refuses.join();
  w.heap.validate();
  std::thread grants([&] {
    usleep(20'000);
    w.link->room_bytes = 6 * kMiB;
  });
  void* q = w.heap.allocate(2 * kMiB, 16, Fill::undefined);
  grants.join();
  CHECK(q != nullptr);
  w.heap.validate();
}

TEST_CASE("heap: calloc memory is zero after dirty reuse and costs no frames when it is fresh") {
  World w;
  const std::uint64_t before = resident_kib();
  void* fresh = w.heap.allocate(256 * kMiB, 16, Fill::zero);
  CHECK(resident_kib() - before < 8 * 1024);
  w.heap.free(fresh);
  auto* p = static_cast<std::byte*>(w.heap.allocate(32 * kMiB, 16, Fill::undefined));
  soil(p, 32 * kMiB);
  w.heap.free(p);
  for (std::size_t bytes : {std::size_t(200'000), std::size_t(3 * kMiB + 5), std::size_t(31 * kMiB)}) {
    auto* q = static_cast<std::byte*>(w.heap.allocate(bytes, 16, Fill::zero));
    CHECK(is_zero(q, bytes));
    soil(q, bytes);
    w.heap.free(q);
  }
}

TEST_CASE("heap: freed memory is reused, and purge gives what is idle back to the system") {
  World w;
  const std::uint64_t before = resident_kib();
  void* p = w.heap.allocate(64 * kMiB, 16, Fill::undefined);
  soil(p, 64 * kMiB);
  void* keep = w.heap.allocate(kMiB, 16, Fill::undefined);
  soil(keep, kMiB);
  w.heap.free(p);
  CHECK(w.heap.allocate(64 * kMiB, 16, Fill::undefined) == p);
  CHECK(w.heap.statistics().recycled_count == 1);
  w.heap.free(p);
  CHECK(w.heap.purge(60'000) == 0);  // too young
  CHECK(resident_kib() - before > 60 * 1024);
  CHECK(w.heap.purge(0) == 64 * kMiB);
  CHECK(resident_kib() - before < 8 * 1024);
  CHECK(holds(static_cast<std::byte*>(keep), 1, 0) == false);  // still soiled: its chunk stayed
  CHECK(w.heap.statistics().purged_bytes == 64 * kMiB);
  w.heap.validate();
}

TEST_CASE("heap: frames that were idle for the purge age go back at a later free") {
  HeapOptions options;
  options.purge_age_ms = 150;
  World w(options);
  void* p = w.heap.allocate(32 * kMiB, 16, Fill::undefined);
  void* q = w.heap.allocate(kMiB, 16, Fill::undefined);
  w.heap.free(p);
  CHECK(w.heap.statistics().purged_bytes == 0);
  usleep(300'000);
  w.heap.free(q);
  CHECK(w.heap.statistics().purged_bytes >= 32 * kMiB);
  w.heap.validate();
}

TEST_CASE("heap: every alignment up to 1 GiB holds") {
  World w;
  for (std::size_t alignment = 8; alignment <= kGiB; alignment *= 2) {
    CAPTURE(alignment);
    std::vector<void*> all;
    for (std::size_t bytes : {std::size_t(1), alignment - 1, alignment, alignment + 1, 3 * alignment}) {
      auto* p = static_cast<std::byte*>(w.heap.allocate(bytes, alignment, Fill::undefined));
      REQUIRE(p != nullptr);
      CHECK(std::uintptr_t(p) % alignment == 0);
      p[0] = p[bytes - 1] = std::byte{1};
      all.push_back(p);
    }
    w.heap.validate();
    for (void* p : all) w.heap.free(p);
  }
  w.heap.validate();
  CHECK(w.heap.allocate(1, 2 * kGiB, Fill::undefined) == nullptr);
}

TEST_CASE("heap: a limited heap gives all it has, then null, and again all after frees") {
  HeapOptions options;
  options.limit_bytes = 16 * kMiB;
  World w(options);
  CHECK(w.heap.allocate(17 * kMiB, 16, Fill::undefined) == nullptr);
  for (int round = 0; round < 3; round++) {
    std::vector<void*> all;
    while (void* p = w.heap.allocate(kMiB, 16, Fill::undefined)) all.push_back(p);
    CHECK(all.size() == 16);
    for (std::size_t i = 0; i < all.size(); i += 2) w.heap.free(all[i]);
    w.heap.validate();
    CHECK(w.heap.allocate(2 * kMiB, 16, Fill::undefined) == nullptr);
    for (std::size_t i = 1; i < all.size(); i += 2) w.heap.free(all[i]);
    if (round == 1) w.heap.purge(0);
    void* whole = w.heap.allocate(16 * kMiB, 16, Fill::undefined);
    CHECK(whole != nullptr);
    w.heap.free(whole);
  }
  // Warm, cold and warm memory side by side serve as one where nothing else is left.
  void* a = w.heap.allocate(4 * kMiB, 16, Fill::undefined);
  void* b = w.heap.allocate(8 * kMiB, 16, Fill::undefined);
  void* c = w.heap.allocate(4 * kMiB, 16, Fill::undefined);
  w.heap.free(b);
  w.heap.purge(0);
  w.heap.free(a);
  w.heap.free(c);
  CHECK(w.heap.allocate(16 * kMiB, 16, Fill::undefined) == a);
  w.heap.validate();
}

TEST_CASE("heap: growing in place keeps the bytes and takes fresh memory behind") {
  World w;
  auto* p = static_cast<std::byte*>(w.heap.allocate(3 * kMiB, 16, Fill::undefined));
  fill(p, 3 * kMiB, 9);
  CHECK(w.heap.resize_in_place(p, 20 * kMiB));
  CHECK(holds(p, 3 * kMiB, 9));
  soil(p + 3 * kMiB, 17 * kMiB);
  w.heap.validate();
  CHECK(w.heap.resize_in_place(p, kMiB));
  CHECK(w.heap.statistics().live_bytes == kMiB);
  w.heap.validate();
  auto* q = static_cast<std::byte*>(w.heap.allocate(19 * kMiB, 16, Fill::zero));
  CHECK(q == p + kMiB);
  CHECK(is_zero(q, 19 * kMiB));
  CHECK_FALSE(w.heap.resize_in_place(p, 2 * kMiB));
  CHECK(w.heap.usable_bytes(p) == kMiB);
}

TEST_CASE("heap: under pressure the callback is asked, and idle frames go back when it says so") {
  static int calls, purges;
  static Heap* called;
  calls = purges = 0;
  HeapOptions options;
  options.on_pressure = [](void* context, std::uint64_t touched, std::uint64_t idle) {
    calls++;
    CHECK(touched > 32 * kMiB);
    CHECK(context == &calls);
    if (idle >= 20 * kMiB) {
      purges++;
      return Pressure::purge;
    }
    called->set_pressure_bytes(touched * 2);  // the lock is held
    return Pressure::go_on;
  };
  options.on_pressure_context = &calls;
  World w(options);
  called = &w.heap;
  w.heap.set_pressure_bytes(32 * kMiB);
  void* p = w.heap.allocate(20 * kMiB, 16, Fill::undefined);
  void* guard = w.heap.allocate(2 * kMiB, 16, Fill::undefined);
  w.heap.free(p);
  usleep(1'050'000);  // pressure purges at most once a second
  void* q = w.heap.allocate(30 * kMiB, 16, Fill::undefined);
  CHECK(calls == 1);
  CHECK(purges == 1);
  CHECK(w.heap.statistics().touched_bytes == 32 * kMiB);
  CHECK(w.heap.allocate(4 * kMiB, 16, Fill::undefined) != nullptr);
  CHECK(calls == 2);
  CHECK(purges == 1);
  w.heap.validate();
  w.heap.free(guard);
  w.heap.free(q);
}

TEST_CASE("heap: a double free, an interior pointer and a foreign one abort") {
  World w;
  auto* p = static_cast<std::byte*>(w.heap.allocate(kMiB, 16, Fill::undefined));
  auto* q = static_cast<std::byte*>(w.heap.allocate(kMiB, 16, Fill::undefined));
  w.heap.free(q);
  for (void* bad :
       {static_cast<void*>(q), static_cast<void*>(p + 16), static_cast<void*>(p + kGranuleBytes)}) {
    const int status = status_of([&] { w.heap.free(bad); });
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
  }
  CHECK(status_of([&] { w.heap.free(p); }) == 0);
}

TEST_CASE("heap: the thread that forks may allocate while it holds the lock, and so may the child") {
  World w;
  w.heap.lock_for_fork();
  void* p = w.heap.allocate(kMiB, 16, Fill::undefined);
  CHECK(p != nullptr);
  const int status = status_of([&] {
    w.heap.free(p);
    w.heap.unlock_after_fork();
    w.heap.validate();
  });
  w.heap.unlock_after_fork();
  CHECK(status == 0);
  w.heap.free(p);
  w.heap.validate();
}
