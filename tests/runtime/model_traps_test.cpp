// The traps of the data plane that apply to one process: what the program, the kernel on its behalf, or
// chance may do to a block at the worst moment. Each case compares bytes, runs in a child with a time limit,
// and under forced eviction where that makes the moment likely.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <csignal>

#include "tests/runtime/model_child.hpp"
#include "tests/runtime/model_history.hpp"
#include "tests/runtime/pager_rig.hpp"

using namespace terrace;
using namespace terrace::runtime;
using namespace terrace::runtime::test;

namespace {

constexpr std::uint64_t kBytes = 2 * kMiB;
constexpr int kNotHere = 77;  // the machine lacks something; the note says what

std::uint64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::uint64_t(t.tv_sec) * 1000 + std::uint64_t(t.tv_nsec) / 1'000'000;
}

// How long a thread may stand still: 2 s, in proportion more where others keep the machine busy.
std::uint64_t most_stall_ms() {
  double load = 1;
  if (getloadavg(&load, 1) != 1) load = 1;
  const double cores = std::max(1.0, double(std::thread::hardware_concurrency()));
  return std::uint64_t(2000 * std::max(1.0, load / cores / 2));
}

template <typename Body>
void expect_right(int timeout_s, Body body) {
  const ChildResult result = in_child(timeout_s, body);
  INFO(result.text);
  if (std::getenv("TERRACE_TEST_VERBOSE") != nullptr) MESSAGE(result.text);
  CHECK(result.in_time);
  if (result.in_time && result.code == kNotHere) {
    MESSAGE("skipped: " << result.text);
    return;
  }
  CHECK(result.code == 0);
}

std::byte* make(Rig& rig, std::uint64_t bytes, std::uint64_t object, std::uint64_t version = 0) {
  auto* p = static_cast<std::byte*>(rig.heap().allocate(bytes, 64, Fill::undefined));
  if (p != nullptr) fill_words(p, bytes, object, version);
  return p;
}

bool right(const void* p, std::uint64_t bytes, std::uint64_t object, std::uint64_t version = 0) {
  return find_wrong_word(p, bytes, object, version) == ~0ull;
}

// Waits until nothing of the object is in the program's memory, or `ms` have passed. True when it is all
// away.
bool wait_until_away(const void* p, std::uint64_t bytes, int ms = 3000) {
  std::vector<unsigned char> pages(bytes / kPageBytes);
  for (int i = 0; i < ms; ++i) {
    if (mincore(const_cast<void*>(p), bytes, pages.data()) != 0) return false;
    if (std::none_of(pages.begin(), pages.end(), [](unsigned char c) { return (c & 1) != 0; })) return true;
    usleep(1000);
  }
  return false;
}

int unnamed_file(int flags) {
  return open(Rig::store_directory().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
}

RigOptions forced(std::uint64_t seed) {
  return {.device = DeviceKind::uring, .limit_bytes = 32 * kMiB, .force_eviction = true, .seed = seed};
}

}  // namespace

TEST_CASE("traps: direct I/O of the program from and into objects that are being evicted") {
  expect_right(60, [](Note& note) {
    const int file = unnamed_file(O_DIRECT);
    if (file < 0) return note.say(kNotHere, "no file with O_DIRECT, errno %d", errno);
    Rig rig(forced(3));
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::byte* from = make(rig, kBytes, t);
        std::byte* to = make(rig, kBytes, 100 + t);
        for (std::uint64_t version = 1; version < 40; ++version) {
          fill_words(from, kBytes, t, version);
          if (pwrite(file, from, kBytes, off_t(t * kBytes)) != ssize_t(kBytes)) ++wrong;
          if (pread(file, to, kBytes, off_t(t * kBytes)) != ssize_t(kBytes)) ++wrong;
          if (!right(to, kBytes, t, version) || !right(from, kBytes, t, version)) ++wrong;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    // What is wanted back at once is rescued before it is written.
    if (rig.counters().faults_rescued + rig.counters().blocks_stored == 0)
      return note.say(2, "nothing was evicted");
    return wrong == 0 ? 0 : note.say(1, "%d wrong transfers", wrong.load());
  });
}

TEST_CASE(
    "traps: buffers that the program registered with io_uring stay, counted, and move again afterwards") {
  expect_right(60, [](Note& note) {
    io_uring_params params{};
    const int ring = int(syscall(SYS_io_uring_setup, 4, &params));
    if (ring < 0) return note.say(kNotHere, "no io_uring, errno %d", errno);
    Rig rig(forced(4));
    std::byte* pinned = make(rig, kBytes, 1);
    std::byte* other = make(rig, kBytes, 2);
    if (!wait_until_away(other, kBytes)) return note.say(2, "an unpinned object does not leave");
    const iovec range{pinned, kBytes};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &range, 1) != 0)
      return note.say(kNotHere, "a buffer cannot be registered (memlock?), errno %d", errno);
    const auto& unmovable = rig.job().fallbacks[std::size_t(Fallback::unmovable_block)];
    for (int i = 0; i < 2000 && unmovable == 0; ++i) usleep(1000);
    if (unmovable == 0) return note.say(3, "a pinned block was not counted");
    // The kernel writes through its own reference to the pages: what it puts there must be what the program
    // sees.
    std::vector<unsigned char> pages(kBytes / kPageBytes);
    mincore(pinned, kBytes, pages.data());
    if (std::any_of(pages.begin(), pages.end(), [](unsigned char c) { return (c & 1) == 0; }))
      return note.say(4, "a pinned page has left");
    if (!right(pinned, kBytes, 1)) return note.say(5, "wrong bytes while pinned");
    fill_words(pinned, kBytes, 1, 7);
    syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, nullptr, 0);
    close(ring);
    if (!wait_until_away(pinned, kBytes, 10'000))
      return note.say(6, "it never leaves after the pin has gone");
    return right(pinned, kBytes, 1, 7) ? 0 : note.say(7, "wrong bytes after the pin");
  });
}

TEST_CASE("traps: a pinned piece of a huge page neither holds up the pager nor moves") {
  expect_right(60, [](Note& note) {
    io_uring_params params{};
    const int ring = int(syscall(SYS_io_uring_setup, 4, &params));
    if (ring < 0) return note.say(kNotHere, "no io_uring, errno %d", errno);
    Rig rig({.device = DeviceKind::uring, .limit_bytes = 16 * kMiB, .start = false});
    // Eight neighbours in one huge page of the program, the third of them pinned for good.
    constexpr std::uint64_t kPiece = 256 * kKiB;
    std::byte* pieces[8];
    for (std::uint64_t i = 0; i < 8; ++i) pieces[i] = make(rig, kPiece, i);
    rig.start_pager();
    const iovec range{pieces[2], kPiece};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &range, 1) != 0)
      return note.say(kNotHere, "a buffer cannot be registered (memlock?), errno %d", errno);
    std::vector<std::byte*> objects;
    for (std::uint64_t i = 0; i < 24; ++i) objects.push_back(make(rig, kBytes, 100 + i));
    for (int pass = 0; pass < 3; ++pass) {
      for (std::uint64_t i = 0; i < objects.size(); ++i)
        if (!right(objects[i], kBytes, 100 + i)) return note.say(1, "object %llu", (unsigned long long)i);
    }
    for (std::uint64_t i = 0; i < 8; ++i)
      if (!right(pieces[i], kPiece, i)) return note.say(1, "piece %llu", (unsigned long long)i);
    return 0;
  });
}

TEST_CASE("traps: an object of which a part is made read-only keeps its bytes, and its block comes back") {
  expect_right(60, [](Note& note) {
    Rig rig({.device = DeviceKind::uring, .limit_bytes = 16 * kMiB});
    std::vector<std::byte*> objects;
    for (std::uint64_t i = 0; i < 24; ++i) objects.push_back(make(rig, kBytes, i));
    // Some are stored, some mapped, when their protection changes: a part, or all.
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const bool part = i % 2 == 0;
      if (mprotect(objects[i] + (part ? 512 * kKiB : 0), part ? 1 * kMiB : kBytes, PROT_READ) != 0)
        return note.say(2, "mprotect");
    }
    for (int pass = 0; pass < 3; ++pass)
      for (std::size_t i = 0; i < objects.size(); ++i)
        if (!right(objects[i], kBytes, i)) return note.say(1, "object %zu, pass %d", i, pass);
    for (std::byte* p : objects)
      if (mprotect(p, kBytes, PROT_READ | PROT_WRITE) != 0) return note.say(2, "mprotect");
    for (std::size_t i = 0; i < objects.size(); ++i) {
      if (!right(objects[i], kBytes, i)) return note.say(1, "object %zu at the end", i);
      fill_words(objects[i], kBytes, i, 1);
    }
    for (std::size_t i = 0; i < objects.size(); ++i)
      if (!right(objects[i], kBytes, i, 1)) return note.say(1, "object %zu written again", i);
    return 0;
  });
}

TEST_CASE("traps: system calls on evicted buffers give what they give on any memory") {
  expect_right(120, [](Note& note) {
    Rig rig({.device = DeviceKind::uring, .limit_bytes = 8 * kMiB, .force_eviction = true, .seed = 11});
    std::byte* a = make(rig, kBytes, 1);
    std::byte* b = make(rig, kBytes, 2);
    const int file = unnamed_file(0);
    int sockets[2];
    if (file < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
      return note.say(kNotHere, "no file or socket");
    const auto away = [&] { return wait_until_away(a, kBytes) && wait_until_away(b, kBytes); };
    for (std::uint64_t round = 0; round < 6; ++round) {
      fill_words(a, kBytes, 1, round);
      if (!away()) return note.say(2, "the objects do not leave");
      if (pwrite(file, a, kBytes, 0) != ssize_t(kBytes)) return note.say(3, "pwrite errno %d", errno);
      if (!away()) return note.say(2, "the objects do not leave");
      if (pread(file, b, kBytes, 0) != ssize_t(kBytes)) return note.say(4, "pread errno %d", errno);
      if (!right(b, kBytes, 1, round)) return note.say(5, "pread brought wrong bytes");

      if (!away()) return note.say(2, "the objects do not leave");
      const iovec out[3] = {{a, 4096}, {a + 1 * kMiB, 12345}, {a + kBytes - 7, 7}};
      if (pwritev(file, out, 3, 0) != 4096 + 12345 + 7) return note.say(6, "pwritev errno %d", errno);
      std::memset(b, 0, kBytes);
      if (!away()) return note.say(2, "the objects do not leave");
      const iovec in[3] = {{b + kBytes - 4096, 4096}, {b + 3, 12345}, {b + 1 * kMiB, 7}};
      if (preadv(file, in, 3, 0) != 4096 + 12345 + 7) return note.say(7, "preadv errno %d", errno);
      if (std::memcmp(b + kBytes - 4096, a, 4096) != 0 || std::memcmp(b + 3, a + 1 * kMiB, 12345) != 0 ||
          std::memcmp(b + 1 * kMiB, a + kBytes - 7, 7) != 0)
        return note.say(8, "preadv brought wrong bytes");

      if (!away()) return note.say(2, "the objects do not leave");
      std::thread receiver([&] {
        for (std::uint64_t got = 0; got < kBytes;) {
          iovec to{b + got, kBytes - got};
          msghdr message{};
          message.msg_iov = &to;
          message.msg_iovlen = 1;
          const ssize_t n = recvmsg(sockets[1], &message, 0);
          if (n <= 0) return;
          got += std::uint64_t(n);
        }
      });
      ssize_t sent = 0;
      while (sent >= 0 && std::uint64_t(sent) < kBytes) {
        iovec from{a + sent, kBytes - std::uint64_t(sent)};
        msghdr message{};
        message.msg_iov = &from;
        message.msg_iovlen = 1;
        const ssize_t n = sendmsg(sockets[0], &message, 0);
        if (n <= 0) return note.say(9, "sendmsg errno %d", errno);
        sent += n;
      }
      receiver.join();
      if (!right(b, kBytes, 1, round)) return note.say(10, "sendmsg and recvmsg brought wrong bytes");

      if (!away()) return note.say(2, "the objects do not leave");
      if (getrandom(b + 4000, 200, 0) != 200) return note.say(11, "getrandom errno %d", errno);
      if (!right(b, 3968, 1, round)) return note.say(12, "getrandom wrote elsewhere");
      if (right(b + 4000, 192, 1, round)) return note.say(13, "getrandom wrote nothing");
      if (!away()) return note.say(2, "the objects do not leave");
      const iovec local{b, kBytes}, remote{a, kBytes};
      if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != ssize_t(kBytes))
        return note.say(14, "process_vm_readv errno %d", errno);
      if (!right(b, kBytes, 1, round)) return note.say(15, "process_vm_readv brought wrong bytes");
      if (!away()) return note.say(2, "the objects do not leave");
      if (fstat(file, reinterpret_cast<struct stat*>(b)) != 0) return note.say(16, "fstat errno %d", errno);
      if (reinterpret_cast<struct stat*>(b)->st_size != off_t(kBytes))
        return note.say(17, "fstat gave a wrong size");
    }
    return 0;
  });
}

namespace {
std::atomic<std::uint64_t> signals_seen{0};
}

TEST_CASE("traps: a storm of signals during faults loses neither bytes nor faults") {
  expect_right(60, [](Note& note) {
    Rig rig({.device = DeviceKind::uring, .limit_bytes = 16 * kMiB});
    struct sigaction action {};
    action.sa_handler = [](int) { ++signals_seen; };
    sigaction(SIGUSR1, &action, nullptr);
    std::atomic<int> wrong{0}, running{3};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::vector<std::byte*> objects;
        for (std::uint64_t i = 0; i < 8; ++i) objects.push_back(make(rig, kBytes, t * 10 + i));
        for (std::uint64_t version = 0; version < 8; ++version) {
          for (std::uint64_t i = 0; i < 8; ++i) {
            if (!right(objects[i], kBytes, t * 10 + i, version)) ++wrong;
            fill_words(objects[i], kBytes, t * 10 + i, version + 1);
          }
        }
        --running;
      });
    }
    while (running != 0) {  // at 1 kHz each
      for (auto& thread : threads)
        if (running == 3) pthread_kill(thread.native_handle(), SIGUSR1);
      usleep(1000);
    }
    for (auto& thread : threads) thread.join();
    if (signals_seen < 20) return note.say(2, "only %llu signals", (unsigned long long)signals_seen);
    if (rig.counters().bytes_in < 64 * kMiB) return note.say(3, "hardly a fault");
    return wrong == 0 ? 0 : note.say(1, "%d wrong objects", wrong.load());
  });
}

TEST_CASE("traps: 512 threads fault at once on a device that takes 8 requests") {
  for (const DeviceKind device : {DeviceKind::uring, DeviceKind::memory, DeviceKind::sync}) {
    expect_right(90, [device](Note& note) {
      constexpr std::size_t kThreads = 512;
      constexpr std::uint64_t kSmall = 128 * kKiB;
      Rig rig({.device = device, .limit_bytes = 16 * kMiB, .depth = 8});
      std::vector<std::byte*> objects;
      for (std::uint64_t i = 0; i < kThreads; ++i) {
        objects.push_back(make(rig, kSmall, i));
        if (objects.back() == nullptr) return note.say(2, "object %llu", (unsigned long long)i);
      }
      std::atomic<bool> go{false};
      std::atomic<std::size_t> wrong{0}, done{0};
      std::vector<std::thread> threads;
      for (std::size_t i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
          while (!go) usleep(500);
          if (!right(objects[i], kSmall, i)) ++wrong;
          ++done;
        });
      }
      go = true;
      const std::uint64_t started = now_ms();
      while (done < kThreads && now_ms() - started < 30'000) usleep(1000);
      if (done < kThreads) return note.say(3, "%zu of %zu faults served in 30 s", done.load(), kThreads);
      for (auto& thread : threads) thread.join();
      return wrong == 0 ? 0 : note.say(1, "%zu wrong objects", wrong.load());
    });
  }
}

TEST_CASE("traps: whole blocks come from a device that takes 8 requests, or 1, while it is writing") {
  for (const std::uint32_t depth : {8u, 1u}) {
    expect_right(90, [depth](Note& note) {
      Rig rig({.device = DeviceKind::uring, .limit_bytes = 16 * kMiB, .depth = depth});
      std::vector<std::byte*> objects;
      for (std::uint64_t i = 0; i < 24; ++i) objects.push_back(make(rig, kBytes, i));
      std::atomic<int> wrong{0};
      std::vector<std::thread> threads;
      for (std::uint64_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          for (std::uint64_t version = 0; version < 4; ++version) {
            for (std::uint64_t i = t; i < 24; i += 4) {
              if (!right(objects[i], kBytes, i, version)) ++wrong;
              fill_words(objects[i], kBytes, i, version + 1);
            }
          }
        });
      }
      for (auto& thread : threads) thread.join();
      return wrong == 0 ? 0 : note.say(1, "%d wrong objects", wrong.load());
    });
  }
}

TEST_CASE("traps: four writers on one page that is evicted all the time never stall for 2 s") {
  expect_right(60, [](Note& note) {
    Rig rig(forced(8));
    auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(make(rig, kBytes, 1));
    for (int i = 0; i < 8; ++i) words[i] = 0;
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    std::atomic<std::uint64_t> counts[4] = {};
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        while (!stop) {
          ++words[t];
          counts[t].fetch_add(1, std::memory_order_relaxed);
        }
      });
    }
    std::uint64_t last[4] = {}, moved_at[4];
    std::fill(moved_at, moved_at + 4, now_ms());
    std::uint64_t worst = 0;
    for (const std::uint64_t started = now_ms(); now_ms() - started < 6000;) {
      for (int t = 0; t < 4; ++t) {
        if (counts[t] != last[t]) moved_at[t] = now_ms(), last[t] = counts[t];
        worst = std::max(worst, now_ms() - moved_at[t]);
      }
      if (worst > most_stall_ms())
        return note.say(2, "a writer stalled for %llu ms", (unsigned long long)worst);
      usleep(2000);
    }
    stop = true;
    for (auto& thread : threads) thread.join();
    for (int t = 0; t < 4; ++t)
      if (words[t] != counts[t]) return note.say(1, "a count was lost");
    // Taken away and wanted back at once: mostly it is rescued before it is written.
    if (rig.counters().faults_rescued + rig.counters().faults_demand < 50)
      return note.say(3, "the page was taken away %llu times only",
                      (unsigned long long)(rig.counters().faults_rescued + rig.counters().faults_demand));
    return 0;
  });
}

TEST_CASE("traps: evicted objects are freed from 8 threads while others fault") {
  expect_right(90, [](Note& note) {
    Rig rig({.device = DeviceKind::uring, .limit_bytes = 16 * kMiB});
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        Random random(t + 1);
        std::vector<std::pair<std::byte*, std::uint64_t>> objects;
        for (std::uint64_t version = 0; version < 60; ++version) {
          const std::uint64_t bytes = kGranuleBytes * (8 + random.below(120));
          std::byte* p = make(rig, bytes, t * 1000 + version);
          if (p == nullptr) {
            ++wrong;
            return;
          }
          objects.emplace_back(p, bytes);
          if (version % 3 == 0) {
            const std::size_t k = random.below(objects.size());
            if (objects[k].first != nullptr && !right(objects[k].first, objects[k].second, t * 1000 + k))
              ++wrong;
          }
          // Most are freed while they are stored, or on their way.
          const std::size_t k = random.below(objects.size());
          if (version % 4 != 0 && objects[k].first != nullptr) {
            rig.heap().free(objects[k].first);
            objects[k].first = nullptr;
          }
        }
        for (std::size_t k = 0; k < objects.size(); ++k) {
          if (objects[k].first == nullptr) continue;
          if (!right(objects[k].first, objects[k].second, t * 1000 + k)) ++wrong;
          rig.heap().free(objects[k].first);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    rig.heap().validate();
    if (rig.heap().statistics().objects != 0) return note.say(2, "objects are left");
    if (rig.counters().bytes_out == 0) return note.say(3, "nothing was stored");
    return wrong == 0 ? 0 : note.say(1, "%d wrong objects", wrong.load());
  });
}

TEST_CASE("traps: a loop of madvise beside faults gives zeros where it dropped, and delays nobody") {
  for (const int droppers : {1, 3}) {
    CAPTURE(droppers);
    expect_right(90, [droppers](Note& note) {
      Rig rig({.device = DeviceKind::uring, .limit_bytes = 16 * kMiB});
      std::vector<std::byte*> objects;
      for (std::uint64_t i = 0; i < 20; ++i) objects.push_back(make(rig, kBytes, i));
      std::atomic<bool> stop{false};
      std::atomic<int> wrong{0};
      std::atomic<std::uint64_t> drops{0}, touched{0};
      std::vector<std::thread> threads;
      for (int d = 0; d < droppers; ++d) {
        threads.emplace_back([&, d] {
          constexpr std::uint64_t kOwn = 4 * kMiB;
          auto* own = static_cast<std::byte*>(rig.heap().allocate(kOwn, 64, Fill::undefined));
          if (own == nullptr) {
            ++wrong;
            return;
          }
          Random random(std::uint64_t(d) + 5);
          while (!stop) {
            const std::uint64_t at = round_down(random.below(kOwn), kPageBytes);
            const std::uint64_t bytes =
                std::min(kOwn - at, kPageBytes * (1 + random.below(random.chance(4) ? 600 : 8)));
            if (random.chance(2)) std::memset(own + at, 0x3c, bytes);
            if (madvise(own + at, bytes, MADV_DONTNEED) != 0) ++wrong;
            ++drops;
            for (std::uint64_t i = 0; i < bytes; i += 64)
              if (own[at + i] != std::byte{0}) {
                ++wrong;
                break;
              }
          }
        });
      }
      std::thread toucher([&] {
        for (std::uint64_t version = 0; !stop; ++version) {
          for (std::uint64_t i = 0; i < objects.size() && !stop; ++i) {
            if (!right(objects[i], kBytes, i)) ++wrong;
            ++touched;
          }
        }
      });
      std::uint64_t last = 0, moved_at = now_ms(), worst = 0;
      for (const std::uint64_t started = now_ms(); now_ms() - started < 5000;) {
        if (touched != last) last = touched, moved_at = now_ms();
        worst = std::max(worst, now_ms() - moved_at);
        usleep(2000);
      }
      stop = true;
      for (auto& thread : threads) thread.join();
      toucher.join();
      if (wrong != 0) return note.say(1, "%d wrong", wrong.load());
      if (worst > most_stall_ms())
        return note.say(2, "a fault waited for %llu ms", (unsigned long long)worst);
      if (drops < 20 || touched < 20)
        return note.say(3, "%llu drops, %llu touches", (unsigned long long)drops,
                        (unsigned long long)touched);
      return note.say(0, "%llu drops, %llu touches, the longest wait %llu ms", (unsigned long long)drops,
                      (unsigned long long)touched, (unsigned long long)worst);
    });
  }
}

TEST_CASE("traps: thousands of small ranges dropped of stored objects are zero, the rest is whole") {
  expect_right(90, [](Note& note) {
    Rig rig({.device = DeviceKind::uring, .limit_bytes = 8 * kMiB});
    std::vector<std::byte*> objects;
    for (std::uint64_t i = 0; i < 16; ++i) objects.push_back(make(rig, kBytes, i));
    for (std::size_t i = 0; i < objects.size(); ++i)
      for (std::uint64_t at = 0; at < kBytes; at += 2 * kPageBytes)
        if (madvise(objects[i] + at, kPageBytes, MADV_DONTNEED) != 0)
          return note.say(2, "madvise errno %d", errno);
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const auto* words = reinterpret_cast<const std::uint64_t*>(objects[i]);
      for (std::uint64_t w = 0; w < kBytes / 8; ++w) {
        const bool dropped = w * 8 / kPageBytes % 2 == 0;
        if (words[w] != (dropped ? 0 : word_at(i, w, 0)))
          return note.say(1, "object %zu word %llu", i, (unsigned long long)w);
      }
    }
    return 0;
  });
}
