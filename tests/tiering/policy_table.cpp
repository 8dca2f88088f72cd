// Prints policy x pattern: loads relative to Belady's optimum with the mapped budget (B) and with all frames
// (+), waits and wasted reads as shares of the loads.
#include <chrono>
#include <cstdio>

#include "tests/tiering/patterns.hpp"

using namespace terrace::tiering;
using namespace terrace::tiering::test;

namespace {

void row(const char* pattern, const Accesses& accesses, std::uint32_t blocks, std::uint32_t budget,
         std::size_t warm) {
  Machine machine;
  machine.budget = budget;
  const std::size_t marks[] = {warm};
  const auto loads = [&](std::uint32_t frames) {
    const auto l = belady_loads(accesses, frames, marks);
    return double(l[1] - l[0]);
  };
  const double best = loads(budget), best_all = loads(budget + machine.window + machine.spare);
  const auto one = [&](OnlinePolicy& policy) {
    const auto start = std::chrono::steady_clock::now();
    const ReplayResult r = replay(policy, accesses, machine, marks);
    const double ns =
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    const Counts c = r.at_marks[1] - r.at_marks[0];
    std::printf("%-16s %6u %6u  %-7s %9llu %7.3f %7.3f %7.1f%% %7.2f%% %9llu %8.0f\n", pattern, blocks,
                budget, policy.name(), (unsigned long long)c.loads(), double(c.loads()) / best,
                double(c.loads()) / best_all, 100.0 * double(c.demand) / double(c.loads()),
                100.0 * double(c.wasted) / double(c.loads()), (unsigned long long)c.blocks_out,
                ns / double(r.at_marks[1].faults));
  };
  Owned<LruPolicy> lru(blocks);
  one(lru.policy);
  Owned<StreamPolicy> stream(blocks);
  one(stream.policy);
}

}  // namespace

int main() {
  std::printf("%-16s %6s %6s  %-7s %9s %7s %7s %8s %8s %9s %8s\n", "pattern", "blocks", "budget", "policy",
              "loads", "/MIN(B)", "/MIN(+)", "waits", "wasted", "out", "ns/fault");
  row("cyclic", cyclic(1024, 12), 1024, 512, 3 * 1024);
  row("cyclic read", cyclic(1024, 12, Kind::read), 1024, 512, 3 * 1024);
  row("cyclic", cyclic(32768, 6), 32768, 16384, 3 * 32768);
  row("cyclic 10 %", cyclic(1100, 12), 1100, 1000, 3 * 1100);
  row("shuffled cyclic", shuffled_cyclic(1024, 12), 1024, 512, 3 * 1024);
  row("permutations", permutations(1024, 30), 1024, 512, 3 * 1024);
  row("permutations", permutations(32768, 6), 32768, 16384, 3 * 32768);
  row("zipf 0.9", zipf(4096, 200'000), 4096, 1024, 3 * 4096);
  row("zipf 0.9", zipf(65536, 1'000'000), 65536, 16384, 3 * 65536);
  row("stack, dying", stack_dying(1024, 12), 1024, 512, 3 * 3 * 1024);
  row("to and fro", to_and_fro(1024, 12), 1024, 512, 7 * 1024);
  row("training", training(512, 512, 12), 1024, 512, 512 + 3 * 2560);
  row("interleaved", interleaved(512, 12), 1024, 512, 3 * 1024);
  row("phases", phases(1024, 9), 2048, 512, 2048);
  row("hot and scan", hot_and_scan(128, 1024, 12), 1024, 512, 1024 + 2 * 1792);
  return 0;
}
