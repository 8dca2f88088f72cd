// P6: what a fault costs. A demand fault on a stored block of 2 MiB against one disk read of it; the rescue
// of a staged block against the bare round trip of a fault (a pager that sleeps in poll and answers with one
// MOVE).
//
// bench_fault [--dir DIR] [--rounds N] [--json]
//
// The pager runs as a thread on the store's real device; each measured touch comes after a pause in which it
// falls asleep, so the figures are those of an idle pager. Demand and rescue are told apart by the pager's
// own counters. Exit status: 0 all rows hold, 1 one does not, 77 no userfaultfd.
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>

#include "base/clock.hpp"
#include "base/linux_abi.hpp"
#include "io/io_memory.hpp"
#include "tests/runtime/pager_rig.hpp"

using namespace terrace;
using namespace terrace::runtime;
using namespace terrace::runtime::test;

namespace {

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::nth_element(v.begin(), v.begin() + std::ptrdiff_t(v.size() / 2), v.end());
  return v[v.size() / 2];
}

double us_since(std::uint64_t start_ns) { return double(monotonic_ns() - start_ns) * 1e-3; }

void touch(void* p) { (void)*static_cast<volatile std::uint64_t*>(p); }

// One 2 MiB read at a time, O_DIRECT through a ring, into a huge page.
std::vector<double> disk_reads(const std::string& directory, int rounds) {
  io::Store store;
  if (!store.open({.directory = directory.c_str()}).ok() || !store.reserve(256 * kMiB).ok()) std::exit(2);
  io::UringDevice ring;
  if (!ring.open(store.descriptor(), {8, store.alignment()}).ok()) std::exit(77);
  io::IoMemory memory;
  if (!memory.map(kChunkBytes).ok()) std::exit(2);
  io::Completion done[8];
  const auto transfer = [&](io::Op op, std::uint64_t chunk) {
    if (!ring.submit({chunk, op, memory.data(), chunk * kChunkBytes, std::uint32_t(kChunkBytes)}).ok())
      std::exit(2);
    ring.flush();
    while (ring.poll(done) == 0) ring.wait(1000);
    if (done[0].errno_value != 0) std::exit(2);
  };
  std::memset(memory.data(), 1, kChunkBytes);
  for (std::uint64_t c = 0; c < 128; ++c) transfer(io::Op::write, c);
  std::mt19937 random(1);
  std::vector<double> us;
  for (int i = 0; i < rounds; ++i) {
    usleep(3000);
    const std::uint64_t start = monotonic_ns();
    transfer(io::Op::read, random() % 128);
    us.push_back(us_since(start));
  }
  return us;
}

// A fault answered by a thread that sleeps in poll and moves one prepared huge page.
std::vector<double> bare_round_trips(int rounds) {
  const std::size_t bytes = 2 * kChunkBytes;
  auto map = [&] {
    auto* p = static_cast<std::byte*>(mmap(nullptr, bytes + kChunkBytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    p = reinterpret_cast<std::byte*>(round_up(std::uint64_t(p), kChunkBytes));
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
  };
  std::byte* const program = map();
  std::byte* const shadow = map();
  Mover mover;
  if (!mover.open().ok() || !mover.watch_program(program, bytes).ok() ||
      !mover.watch_shadow(shadow, bytes).ok())
    std::exit(77);
  std::memset(shadow, 1, kChunkBytes);
  std::atomic<bool> stop{false};
  std::thread pager([&] {
    while (!stop) {
      pollfd p{mover.descriptor(), POLLIN, 0};
      if (poll(&p, 1, 50) <= 0) continue;
      uffd_msg message;
      if (mover.next_message(message)) mover.move(program, shadow, kChunkBytes);
    }
  });
  std::vector<double> us;
  for (int i = 0; i < rounds; ++i) {
    usleep(3000);
    const std::uint64_t start = monotonic_ns();
    touch(program + 8192);
    us.push_back(us_since(start));
    mover.move(shadow, program, kChunkBytes);
  }
  stop = true;
  pager.join();
  return us;
}

struct Faults {
  std::vector<double> demand, rescued;
};

Faults pager_faults(int rounds, std::vector<double>& disk, std::vector<double>& bare,
                    const std::string& directory) {
  setenv("TERRACE_TEST_STORE", directory.c_str(), 1);
  Rig rig({.device = DeviceKind::uring, .limit_bytes = 256 * kMiB});
  std::vector<std::byte*> objects;
  for (int i = 0; i < 256; ++i) {
    auto* p = static_cast<std::byte*>(rig.heap().allocate(kChunkBytes, 64, Fill::undefined));
    fill_words(p, kChunkBytes, std::uint64_t(i), 0);
    objects.push_back(p);
  }
  Faults faults;
  std::mt19937 random(7);
  const JobCounters& counters = rig.counters();
  for (int part = 0; part < 8; ++part) {  // the peers in the same minute, in turns
    for (double us : disk_reads(directory, rounds / 8 + 1)) disk.push_back(us);
    for (double us : bare_round_trips(rounds / 8 + 1)) bare.push_back(us);
    for (int i = 0; i < rounds; ++i) {
      usleep(3000);
      // Now and then one that left a moment ago, so that it is still staged.
      std::byte* const p = objects[random() % objects.size()];
      const std::uint64_t demand = counters.faults_demand, rescued = counters.faults_rescued,
                          in = counters.bytes_in;
      const std::uint64_t start = monotonic_ns();
      touch(p + (random() % 512) * kPageBytes);
      const double us = us_since(start);
      usleep(200);  // the counters are the pager's
      if (counters.faults_demand != demand)
        faults.demand.push_back(us);
      else if (counters.faults_rescued != rescued && counters.bytes_in == in)
        faults.rescued.push_back(us);
    }
  }
  for (int i = 0; i < 256; ++i)
    if (find_wrong_word(objects[std::size_t(i)], kChunkBytes, std::uint64_t(i), 0) != ~0ull) {
      std::fprintf(stderr, "bench_fault: wrong bytes\n");
      std::exit(2);
    }
  return faults;
}

// A row in us: `allowed_us` more than the peer.
bool row(bool json, const char* name, const char* peer_name, const std::vector<double>& ours,
         const std::vector<double>& peer, double allowed_us) {
  const double a = median(ours), b = median(peer);
  const bool holds = !ours.empty() && a <= b + allowed_us;
  if (json) {
    std::printf(
        "{\"name\": \"%s\", \"terrace\": %.1f, \"peer\": %.1f, \"peer_name\": \"%s\", \"unit\": \"us\", "
        "\"ratio\": %.3f, "
        "\"bound\": %.1f, \"target\": \"peer + %.0f us\", \"holds\": %s}\n",
        name, a, b, peer_name, b > 0 ? a / b : 0, b + allowed_us, allowed_us, holds ? "true" : "false");
  } else {
    std::printf("%-36s %8.1f us, %s %8.1f us, %+.1f us (allowed %+.0f), %zu samples: %s\n", name, a,
                peer_name, b, a - b, allowed_us, ours.size(), holds ? "holds" : "does not hold");
  }
  return holds;
}

}  // namespace

int main(int argc, char** argv) {
  std::string directory = ".";
  int rounds = 200;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json")
      json = true;
    else if (word == "--dir" && i + 1 < argc)
      directory = argv[++i];
    else if (word == "--rounds" && i + 1 < argc)
      rounds = std::atoi(argv[++i]);
    else
      return std::fprintf(stderr, "usage: bench_fault [--dir DIR] [--rounds N] [--json]\n"), 2;
  }
  std::vector<double> disk, bare;
  const Faults faults = pager_faults(rounds, disk, bare, directory);
  const bool demand = row(json, "demand fault on a stored 2 MiB block", "disk read", faults.demand, disk, 60);
  const bool rescue =
      row(json, "rescue of a staged 2 MiB block", "bare round trip", faults.rescued, bare, 10);
  return demand && rescue ? 0 : 1;
}
