// What the policies cost on whole access patterns, against LRU and Belady's optimum.
#include <doctest/doctest.h>

#include "tests/tiering/patterns.hpp"

using namespace terrace::tiering;
using namespace terrace::tiering::test;

namespace {

Machine machine_of(std::uint32_t budget) {
  Machine m;
  m.budget = budget;
  return m;
}

std::uint32_t blocks_of(const Accesses& accesses) {
  std::uint32_t n = 0;
  for (const Access& a : accesses) n = std::max(n, a.block + 1);
  return n;
}

// Counts from access `warm` on.
template <class Policy>
Counts run(const Accesses& accesses, const Machine& machine, std::size_t warm) {
  Owned<Policy> owned(blocks_of(accesses));
  const std::size_t marks[] = {warm};
  const ReplayResult r = replay(owned.policy, accesses, machine, marks);
  return r.at_marks[1] - r.at_marks[0];
}

std::uint64_t optimum(const Accesses& accesses, std::uint32_t budget, std::size_t warm) {
  const std::size_t marks[] = {warm};
  const auto loads = belady_loads(accesses, budget, marks);
  return loads[1] - loads[0];
}

double ratio(std::uint64_t a, std::uint64_t b) { return double(a) / double(b); }

}  // namespace

TEST_CASE("belady_loads: a cyclic scan of N blocks with room for B loads (N - B) / (N - 1) of its touches") {
  const Accesses a = cyclic(1024, 1023);
  CHECK(belady_loads(a, 512, {}).back() == doctest::Approx(1023.0 * 1024 * 512 / 1023).epsilon(0.002));
  CHECK(belady_loads(a, 1024, {}).back() == 0);
  // By hand: room for two; 0 1 2 0 1: filling 2 drops 1, which is needed last; then 0 is there and 1 is
  // loaded.
  const Accesses small = {{0}, {1}, {2}, {0}, {1}};
  CHECK(belady_loads(small, 2, {}).back() == 1);
}

TEST_CASE("belady_loads: no policy does better with the same frames") {
  Machine m = machine_of(200);
  m.window = m.spare = 0;
  m.batch = 1;
  m.map_ahead = false;
  for (const Accesses& a : {cyclic(400, 6), permutations(400, 6), zipf(800, 6000), to_and_fro(400, 4)}) {
    const std::uint64_t best = belady_loads(a, 200).back();
    CHECK(run<StreamPolicy>(a, m, 0).loads() >= best);
    CHECK(run<LruPolicy>(a, m, 0).loads() >= best);
  }
}

TEST_CASE("lru: a cyclic scan that is too large loads everything, read ahead after the first few") {
  const Accesses a = cyclic(1024, 5);
  const Counts c = run<LruPolicy>(a, machine_of(512), 3 * 1024);
  CHECK(c.loads() == 3 * 1024);
  CHECK(c.demand <= 3 * 8);
  CHECK(c.wasted == 0);
}

TEST_CASE("lru: nothing is read ahead in random order") {
  const Counts c = run<LruPolicy>(permutations(1024, 8), machine_of(512), 2 * 1024);
  CHECK(ratio(c.prefetched, c.loads()) < 0.02);
}

TEST_CASE(
    "stream: a cyclic scan comes within 5 % of the optimum after two passes, with waits for under 5 %") {
  for (const std::uint32_t budget : {512u, 16384u}) {
    CAPTURE(budget);
    const std::uint32_t n = 2 * budget;
    for (const Kind kind : {Kind::write, Kind::read}) {
      const Accesses a = cyclic(n, budget == 512 ? 10 : 5, kind);
      const Counts c = run<StreamPolicy>(a, machine_of(budget), 3 * n);
      CHECK(ratio(c.loads(), optimum(a, budget, 3 * n)) <= 1.05);
      CHECK(ratio(c.demand, c.loads()) <= 0.05);
      CHECK(ratio(c.wasted, c.loads()) <= 0.01);
      if (kind == Kind::read)
        CHECK(ratio(c.blocks_out, c.loads()) < 0.1);  // what was not written is not written out
    }
  }
}

TEST_CASE("stream: a cyclic scan is seen all along, its hits are not one long stretch") {
  constexpr std::uint32_t kBudget = 512, kBlocks = 2 * kBudget, kWindow = 64;
  const Accesses a = cyclic(kBlocks, 10);
  std::vector<std::size_t> marks;
  for (std::size_t at = 7 * kBlocks; at < a.size(); at += kWindow) marks.push_back(at);
  std::vector<std::byte> memory(StreamPolicy::memory_bytes(kBlocks));
  StreamPolicy policy;
  policy.init(memory.data(), memory.size(), kBlocks);
  const auto counts = replay(policy, a, machine_of(kBudget), marks).at_marks;
  std::size_t unseen = 0;
  for (std::size_t i = 1; i < counts.size(); ++i) unseen += (counts[i] - counts[i - 1]).faults == 0;
  CHECK(unseen <= counts.size() / 10);  // with one stretch of hits: half of them
}

TEST_CASE("stream: an order drawn once and repeated is learned in one pass") {
  const Accesses a = shuffled_cyclic(1024, 8);
  const Counts c = run<StreamPolicy>(a, machine_of(512), 2 * 1024);
  CHECK(ratio(c.loads(), optimum(a, 512, 2 * 1024)) <= 1.15);
  CHECK(ratio(c.demand, c.loads()) <= 0.15);
  CHECK(ratio(c.wasted, c.loads()) <= 0.05);
}

TEST_CASE("stream: fresh random orders cost no more than with lru, and hardly a wasted read") {
  const Accesses a = permutations(1024, 20);
  const Counts stream = run<StreamPolicy>(a, machine_of(512), 2 * 1024);
  CHECK(ratio(stream.loads(), run<LruPolicy>(a, machine_of(512), 2 * 1024).loads()) <= 1.0);
  CHECK(ratio(stream.wasted, stream.loads()) <= 0.05);
}

TEST_CASE("stream: the first random pass after a sequential fill wastes few reads") {
  const Accesses a = permutations(4096, 1);
  const Counts c = run<StreamPolicy>(a, machine_of(1024), 4096);
  CHECK(ratio(c.wasted, c.loads()) <= 0.05);
}

TEST_CASE("stream: hot and cold blocks (Zipf) cost no more than with lru") {
  for (const double exponent : {0.7, 0.9, 1.1}) {
    CAPTURE(exponent);
    const Accesses a = zipf(4096, 60'000, exponent);
    const Counts stream = run<StreamPolicy>(a, machine_of(1024), 16384);
    CHECK(ratio(stream.loads(), run<LruPolicy>(a, machine_of(1024), 16384).loads()) <= 1.0);
    CHECK(ratio(stream.wasted, stream.loads()) <= 0.05);
  }
}

TEST_CASE("stream: activations filled forward and freed backward cost what lru, the optimum here, costs") {
  const Accesses a = stack_dying(1024, 8);
  const std::size_t warm = 3 * 3 * 1024;
  const Counts stream = run<StreamPolicy>(a, machine_of(512), warm);
  CHECK(ratio(stream.loads(), run<LruPolicy>(a, machine_of(512), warm).loads()) <= 1.1);
  CHECK(ratio(stream.demand, stream.loads()) <= 0.05);
}

TEST_CASE("stream: weights touched forward and backward cost little more than with lru, and few waits") {
  const Accesses a = to_and_fro(1024, 10);
  const Counts stream = run<StreamPolicy>(a, machine_of(512), 5 * 1024);
  const Counts lru = run<LruPolicy>(a, machine_of(512), 5 * 1024);
  CHECK(ratio(stream.loads(), lru.loads()) <= 1.3);
  CHECK(ratio(stream.demand, lru.demand) <= 0.5);
}

TEST_CASE("stream: two threads that take turns at random keep their streams") {
  const Accesses a = interleaved(512, 10);
  const Counts c = run<StreamPolicy>(a, machine_of(512), 3 * 1024);
  CHECK(ratio(c.loads(), optimum(a, 512, 3 * 1024)) <= 1.3);
  CHECK(ratio(c.demand, c.loads()) <= 0.15);
  CHECK(ratio(c.wasted, c.loads()) <= 0.08);
}

TEST_CASE("stream: a hot set stays beside a scan that is too large") {
  const Accesses a = hot_and_scan(128, 1024, 10);
  const std::size_t warm = 1024 + 3 * 1792;
  const Counts c = run<StreamPolicy>(a, machine_of(512), warm);
  CHECK(ratio(c.loads(), optimum(a, 512, warm)) <= 1.15);
}

TEST_CASE("stream: the blocks of an ended phase leave within three passes") {
  // Blocks with a history of cyclic touches, then never touched again while others cycle.
  constexpr std::uint32_t kHalf = 1024, kPasses = 6;
  const Accesses a = phases(kHalf, kPasses);
  std::vector<std::size_t> marks;
  for (std::uint32_t p = 0; p <= 4; ++p) marks.push_back((2 + kPasses + p) * kHalf);
  Owned<StreamPolicy> owned(2 * kHalf);
  const ReplayResult r = replay(owned.policy, a, machine_of(512), marks, kHalf);
  CHECK(r.mapped_at_marks[0] > 400);
  CHECK(r.mapped_at_marks[3] < 51);
  CHECK(ratio((r.at_marks[5] - r.at_marks[4]).loads(), 2 * 512) <= 1.15);
}

TEST_CASE("stream: the same accesses give the same decisions") {
  for (const Accesses& a : {permutations(500, 5), zipf(900, 8000), training(200, 200, 5)}) {
    Owned<StreamPolicy> one(blocks_of(a)), two(blocks_of(a));
    CHECK(replay(one.policy, a, machine_of(180)).at_marks == replay(two.policy, a, machine_of(180)).at_marks);
  }
}

TEST_CASE("stream: budgets of a few blocks work") {
  for (const std::uint32_t budget : {1u, 2u, 3u, 5u, 9u, 17u}) {
    CAPTURE(budget);
    for (const std::uint32_t batch : {1u, 8u, 32u}) {
      Machine m = machine_of(budget);
      m.batch = batch;
      for (const Accesses& a : {cyclic(64, 5), permutations(64, 5), zipf(64, 2000), training(20, 20, 5)}) {
        CHECK(run<StreamPolicy>(a, m, 0).loads() > 0);
        CHECK(run<LruPolicy>(a, m, 0).loads() > 0);
      }
    }
  }
}
