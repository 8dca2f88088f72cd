// The mover against the kernel: what it says has moved has, and nothing else.
#include <doctest/doctest.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "base/types.hpp"
#include "runtime/mover.hpp"
#include "tests/runtime/model_child.hpp"
#include "tests/runtime/model_history.hpp"

using namespace terrace;
using namespace terrace::runtime;
using terrace::runtime::test::Random;
namespace test = terrace::runtime::test;

namespace {

// A piece of program memory and a shadow of the same size, as the pager has them.
class Ranges {
 public:
  explicit Ranges(std::uint32_t chunks) : bytes_(chunks * kChunkBytes) {
    const Status opened = mover_.open();
    if (!opened.ok()) {
      MESSAGE("skipped: " << opened.text << ", errno " << opened.errno_value);
      return;
    }
    home_ = map();
    shadow_ = map();
    REQUIRE(mover_.init_trash().ok());
    REQUIRE(mover_.watch_program(home_, bytes_).ok());
    REQUIRE(mover_.watch_shadow(shadow_, bytes_).ok());
    usable_ = true;
  }
  ~Ranges() {
    mover_.close();  // first: munmap of a watched range waits for its event to be read
    if (home_ != nullptr) munmap(home_, bytes_);
    if (shadow_ != nullptr) munmap(shadow_, bytes_);
  }
  bool usable() const { return usable_; }
  Mover& mover() { return mover_; }
  std::byte* home(std::uint64_t granule) { return home_ + granule * kGranuleBytes; }
  std::byte* shadow(std::uint64_t granule) { return shadow_ + granule * kGranuleBytes; }

 private:
  std::byte* map() {
    void* p = mmap(nullptr, bytes_ + kChunkBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(p != MAP_FAILED);
    auto* aligned = reinterpret_cast<std::byte*>(round_up(std::uint64_t(p), kChunkBytes));
    madvise(aligned, bytes_, MADV_HUGEPAGE);
    return aligned;
  }
  std::uint64_t bytes_;
  Mover mover_;
  std::byte* home_ = nullptr;
  std::byte* shadow_ = nullptr;
  bool usable_ = false;
};

bool is_present(const void* page) {
  unsigned char in = 0;
  REQUIRE(mincore(const_cast<void*>(page), kPageBytes, &in) == 0);
  return (in & 1) != 0;
}

void fill(std::byte* p, std::uint64_t bytes, std::uint8_t value) { std::memset(p, value, bytes); }

bool holds(const std::byte* p, std::uint64_t bytes, std::uint8_t value) {
  for (std::uint64_t i = 0; i < bytes; ++i)
    if (p[i] != std::byte(value)) return false;
  return true;
}

}  // namespace

TEST_CASE("mover: pages change places, holes stay holes, and contents go with them") {
  constexpr std::uint32_t kChunks = 3, kGranules = kChunks * kGranulesPerChunk;
  Ranges ranges(kChunks);
  if (!ranges.usable()) return;
  Random random(4);
  std::vector<int> at_home(kGranules, -1), at_shadow(kGranules, -1);  // content, or -1: a hole
  for (int step = 0; step < 3000; ++step) {
    const std::uint32_t chunk = std::uint32_t(random.below(kChunks));
    const std::uint32_t first = random.chance(4) ? 0 : std::uint32_t(random.below(kGranulesPerChunk));
    const std::uint32_t most = kGranulesPerChunk - first;
    const std::uint32_t count =
        first == 0 && random.chance(2) ? kGranulesPerChunk : 1 + std::uint32_t(random.below(most));
    const std::uint32_t g = chunk * kGranulesPerChunk + first;
    const std::uint64_t bytes = count * kGranuleBytes;
    const auto all = [&](const std::vector<int>& where, bool hole) {
      for (std::uint32_t i = 0; i < count; ++i)
        if ((where[g + i] < 0) != hole) return false;
      return true;
    };
    switch (random.below(6)) {
      case 0: {  // new contents in the shadow
        const int content = int(random.below(256));
        fill(ranges.shadow(g), bytes, std::uint8_t(content));
        for (std::uint32_t i = 0; i < count; ++i) at_shadow[g + i] = content;
        break;
      }
      case 1:  // home, over whatever is a hole there
        if (!all(at_home, true)) break;
        {
          const MoveOutcome outcome = ranges.mover().move_home(ranges.home(g), ranges.shadow(g), bytes);
          REQUIRE(outcome.errno_value == 0);
          REQUIRE(outcome.moved_bytes == bytes);
          for (std::uint32_t i = 0; i < count; ++i) at_home[g + i] = at_shadow[g + i], at_shadow[g + i] = -1;
        }
        break;
      case 2:
        if (!all(at_shadow, true)) break;
        {
          const MoveOutcome outcome = ranges.mover().move(ranges.shadow(g), ranges.home(g), bytes);
          REQUIRE(outcome.errno_value == 0);
          REQUIRE(outcome.moved_bytes == bytes);
          for (std::uint32_t i = 0; i < count; ++i) at_shadow[g + i] = at_home[g + i], at_home[g + i] = -1;
        }
        break;
      case 3:  // a copy goes to holes only
        if (!all(at_shadow, false)) break;
        REQUIRE(ranges.mover().copy_in(ranges.home(g), ranges.shadow(g), bytes) == 0);
        for (std::uint32_t i = 0; i < count; ++i)
          if (at_home[g + i] < 0) at_home[g + i] = at_shadow[g + i];
        break;
      case 4:
        if (!all(at_shadow, false)) break;
        ranges.mover().discard(ranges.shadow(g), bytes);
        for (std::uint32_t i = 0; i < count; ++i) at_shadow[g + i] = -1;
        break;
      default:  // onto something that is there: refused, nothing changes
        if (!all(at_home, false) || !all(at_shadow, false)) break;
        REQUIRE(ranges.mover().move_home(ranges.home(g), ranges.shadow(g), bytes).errno_value == EEXIST);
        break;
    }
    if (step % 20 != 0) continue;
    for (std::uint32_t i = 0; i < kGranules; ++i) {
      REQUIRE(is_present(ranges.home(i)) == (at_home[i] >= 0));
      if (at_home[i] >= 0) REQUIRE(holds(ranges.home(i), kGranuleBytes, std::uint8_t(at_home[i])));
      REQUIRE(is_present(ranges.shadow(i)) == (at_shadow[i] >= 0));
      if (at_shadow[i] >= 0) REQUIRE(holds(ranges.shadow(i), kGranuleBytes, std::uint8_t(at_shadow[i])));
    }
  }
}

TEST_CASE("mover: what the program drops while its block is on its way home stays dropped") {
  Ranges ranges(1);
  if (!ranges.usable()) return;
  for (int round = 0; round < 20; ++round) {
    fill(ranges.shadow(0), kChunkBytes, 0x77);
    std::atomic<bool> dropped{false};
    std::thread program([&] {
      madvise(ranges.home(16), 4 * kGranuleBytes, MADV_DONTNEED);  // waits until its event is read
      dropped = true;
    });
    pollfd waiting{ranges.mover().descriptor(), POLLIN, 0};
    REQUIRE(poll(&waiting, 1, 5000) == 1);
    REQUIRE_FALSE(dropped);
    const MoveOutcome outcome = ranges.mover().move_home(ranges.home(0), ranges.shadow(0), kChunkBytes);
    REQUIRE(outcome.moved_bytes == kChunkBytes);
    program.join();
    REQUIRE(ranges.mover().has_backlog());
    for (std::uint32_t g = 0; g < kGranulesPerChunk; ++g) {
      if (g >= 16 && g < 20) {
        if (is_present(ranges.home(g))) REQUIRE(holds(ranges.home(g), kGranuleBytes, 0));
      } else {
        REQUIRE(holds(ranges.home(g), kGranuleBytes, 0x77));
      }
    }
    uffd_msg message;
    REQUIRE(ranges.mover().next_message(message));
    REQUIRE(message.event == UFFD_EVENT_REMOVE);
    REQUIRE(std::uint64_t(message.arg.remove.start) == std::uint64_t(ranges.home(16)));
    REQUIRE_FALSE(ranges.mover().next_message(message));
    REQUIRE(ranges.mover().move(ranges.shadow(0), ranges.home(0), kChunkBytes).moved_bytes == kChunkBytes);
    ranges.mover().discard(ranges.shadow(0), kChunkBytes);
  }
}

TEST_CASE("mover: a copy serves a range of several mappings, some of them read-only") {
  Ranges ranges(1);
  if (!ranges.usable()) return;
  REQUIRE(mprotect(ranges.home(30), 10 * kGranuleBytes, PROT_READ) == 0);
  for (std::uint32_t g = 0; g < kGranulesPerChunk; ++g)
    fill(ranges.shadow(g), kGranuleBytes, std::uint8_t(g + 1));
  const MoveOutcome outcome = ranges.mover().move_home(ranges.home(0), ranges.shadow(0), kChunkBytes);
  CHECK(outcome.errno_value == EINVAL);
  CHECK(outcome.moved_bytes == 0);
  REQUIRE(ranges.mover().copy_in(ranges.home(0), ranges.shadow(0), kChunkBytes) == 0);
  for (std::uint32_t g = 0; g < kGranulesPerChunk; ++g) {
    REQUIRE(is_present(ranges.home(g)));
    REQUIRE(holds(ranges.home(g), kGranuleBytes, std::uint8_t(g + 1)));
  }
}

TEST_CASE("mover: pages that the program has pinned stay, and what moved before them comes back") {
  Ranges ranges(1);
  if (!ranges.usable()) return;
  io_uring_params params{};
  const int ring = int(syscall(SYS_io_uring_setup, 4, &params));
  if (ring < 0) {
    MESSAGE("skipped: no io_uring, errno " << errno);
    return;
  }
  for (std::uint32_t g = 0; g < kGranulesPerChunk; ++g) {
    fill(ranges.shadow(g), kGranuleBytes, std::uint8_t(g));
    REQUIRE(ranges.mover().move_home(ranges.home(g), ranges.shadow(g), kGranuleBytes).errno_value == 0);
  }
  const iovec pinned{ranges.home(60), kGranuleBytes};
  REQUIRE(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &pinned, 1) == 0);
  const MoveOutcome out = ranges.mover().move(ranges.shadow(0), ranges.home(0), kChunkBytes);
  CHECK(out.errno_value == EBUSY);
  CHECK(out.moved_bytes <= 60 * kGranuleBytes);
  REQUIRE(ranges.mover().move_home(ranges.home(0), ranges.shadow(0), out.moved_bytes).moved_bytes ==
          out.moved_bytes);
  for (std::uint32_t g = 0; g < kGranulesPerChunk; ++g)
    REQUIRE(holds(ranges.home(g), kGranuleBytes, std::uint8_t(g)));
  REQUIRE(syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, nullptr, 0) == 0);
  close(ring);
  MoveOutcome later{};
  for (int tries = 0; tries < 100; ++tries) {  // the unpin may lag
    later = ranges.mover().move(ranges.shadow(0) + later.moved_bytes, ranges.home(0) + later.moved_bytes,
                                kChunkBytes - later.moved_bytes);
    if (later.errno_value == 0) break;
    (void)ranges.mover().move_home(ranges.home(0), ranges.shadow(0), later.moved_bytes);
    later.moved_bytes = 0;
    usleep(10'000);
  }
  CHECK(later.errno_value == 0);
}

TEST_CASE("mover: the neighbour of a pinned piece of a huge page does not hold up the mover") {
  const test::ChildResult result = test::in_child(20, [](test::Note& note) {
    Ranges ranges(1);
    if (!ranges.usable()) return 77;
    io_uring_params params{};
    const int ring = int(syscall(SYS_io_uring_setup, 4, &params));
    if (ring < 0) return 77;
    for (std::uint32_t g = 0; g < kGranulesPerChunk; ++g)
      fill(ranges.shadow(g), kGranuleBytes, std::uint8_t(g));
    if (ranges.mover().move_home(ranges.home(0), ranges.shadow(0), kChunkBytes).errno_value != 0) return 1;
    const iovec pinned{ranges.home(60), kGranuleBytes};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &pinned, 1) != 0) return 77;
    const MoveOutcome out = ranges.mover().move(ranges.shadow(0), ranges.home(0), 8 * kGranuleBytes);
    note.say(0, "moved %llu bytes, errno %d", (unsigned long long)out.moved_bytes, out.errno_value);
    if (out.errno_value != 0)
      (void)ranges.mover().move_home(ranges.home(0), ranges.shadow(0), out.moved_bytes);
    const std::byte* const now = out.errno_value != 0 ? ranges.home(0) : ranges.shadow(0);
    for (std::uint32_t g = 0; g < 8; ++g)
      if (!holds(now + g * kGranuleBytes, kGranuleBytes, std::uint8_t(g))) return 2;
    return 0;
  });
  if (result.code == 77) {
    MESSAGE("skipped: no userfaultfd or io_uring here");
    return;
  }
  CHECK(result.in_time);
  CHECK(result.code == 0);
  MESSAGE(result.text);
}

TEST_CASE("mover: a missing page reads as zero once it is filled, and one that is there keeps its bytes") {
  Ranges ranges(1);
  if (!ranges.usable()) return;
  std::atomic<int> seen{-1};
  std::thread program([&] { seen = int(*reinterpret_cast<volatile std::uint8_t*>(ranges.home(3))); });
  pollfd waiting{ranges.mover().descriptor(), POLLIN, 0};
  REQUIRE(poll(&waiting, 1, 5000) == 1);
  uffd_msg message;
  REQUIRE(ranges.mover().next_message(message));
  REQUIRE(message.event == UFFD_EVENT_PAGEFAULT);
  ranges.mover().fill_zero_page(ranges.home(3));
  program.join();
  CHECK(seen == 0);
  *ranges.home(3) = std::byte{9};
  ranges.mover().fill_zero_page(ranges.home(3));
  CHECK(*ranges.home(3) == std::byte{9});
}
