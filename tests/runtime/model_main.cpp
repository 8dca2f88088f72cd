// The truth-teller: a seeded model checker of the data plane.
//
//   test_model                     one run; see --help for its flags
//   test_model --quick             each device, policy and mode once, about a minute
//   test_model --long              thousands of operations by many seeds
//   test_model --prove             defects that the checker must catch and shrink
//
// Prints its seed first. A failing history of one thread is shrunk to a short list of operations. Exit
// status: 0 all passed, 1 a failure, 2 a wrong flag, 77 nothing could run here.
#include <cstring>
#include <ctime>

#include "tests/runtime/model_run.hpp"

using namespace terrace;
using namespace terrace::runtime::test;

namespace {

struct Flags {
  RunConfig config;
  std::size_t operations = 300, threads = 1;
  std::uint64_t seeds = 1;
  int shrink_s = 240;
  bool quick = false, whole = false, prove = false, spoil = false;
};

void print_help() {
  std::puts(
      "test_model [--seed N] [--seeds N] [--operations N] [--threads N] [--device memory|uring|sync] "
      "[--policy stream|lru]\n"
      "           [--force-eviction] [--faults none|transient|stale|never] [--limit BYTES] [--timeout S] "
      "[--spoil]\n"
      "           [--shrink S] | --quick | --long | --prove");
}

bool parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> const char* { return i + 1 < argc ? argv[++i] : ""; };
    const auto choice = [&](std::initializer_list<const char*> names, auto& into) {
      const std::string given = value();
      int index = 0;
      for (const char* name : names) {
        if (given == name) return into = std::remove_reference_t<decltype(into)>(index), true;
        ++index;
      }
      return false;
    };
    int policy = 0;
    if (flag == "--seed")
      flags.config.seed = std::strtoull(value(), nullptr, 0);
    else if (flag == "--seeds")
      flags.seeds = std::strtoull(value(), nullptr, 0);
    else if (flag == "--operations")
      flags.operations = std::strtoull(value(), nullptr, 0);
    else if (flag == "--threads")
      flags.threads = std::min<std::size_t>(16, std::strtoull(value(), nullptr, 0));
    else if (flag == "--limit")
      flags.config.limit_bytes = std::strtoull(value(), nullptr, 0);
    else if (flag == "--timeout")
      flags.config.timeout_s = std::atoi(value());
    else if (flag == "--shrink")
      flags.shrink_s = std::atoi(value());
    else if (flag == "--force-eviction")
      flags.config.force_eviction = true;
    else if (flag == "--spoil")
      flags.spoil = true;
    else if (flag == "--quick")
      flags.quick = true;
    else if (flag == "--long")
      flags.whole = true;
    else if (flag == "--prove")
      flags.prove = true;
    else if (flag == "--device" && choice({"memory", "uring", "sync"}, flags.config.device))
      continue;
    else if (flag == "--faults" && choice({"none", "transient", "stale", "never"}, flags.config.faults))
      continue;
    else if (flag == "--policy" && choice({"stream", "lru"}, policy))
      flags.config.lru = policy == 1;
    else
      return false;
  }
  return flags.threads != 0 && flags.operations != 0;
}

struct Tally {
  int passed = 0, failed = 0, skipped = 0;
};

std::vector<History> histories_of(const RunConfig& config, std::size_t operations, std::size_t threads,
                                  bool spoil) {
  std::vector<History> histories;
  for (std::size_t t = 0; t < threads; ++t) {
    HistoryOptions options;
    options.seed = config.seed * 64 + t;
    options.operations = operations;
    options.objects = std::uint16_t(threads == 1 ? 24 : 10);
    options.most_live_bytes = (threads == 1 ? 64 : 80 / threads) * kMiB;
    options.limits = t == 0;
    options.shared_objects = config.shared_objects;
    options.spoil = spoil;
    histories.push_back(make_history(options));
  }
  return histories;
}

// Runs once, prints one line and, after a failure, the shrunk history. Returns the outcome; `shrunk` gets its
// length.
Outcome run_once(RunConfig config, std::size_t operations, std::size_t threads, bool spoil, int shrink_s,
                 Tally& tally, std::size_t* shrunk = nullptr) {
  if (threads > 1) config.shared_objects = 8;
  const auto histories = histories_of(config, operations, threads, spoil);
  const std::time_t started = std::time(nullptr);
  const Outcome outcome = attempt(config, histories);
  std::printf(
      "model: %s operations=%zu threads=%zu: %s in=%lluMiB out=%lluMiB stored=%llu strikes=%llu s=%ld\n",
      to_text(config).c_str(), operations, threads, to_text(outcome.verdict),
      (unsigned long long)outcome.bytes_in >> 20, (unsigned long long)outcome.bytes_out >> 20,
      (unsigned long long)outcome.blocks_stored, (unsigned long long)outcome.strikes,
      long(std::time(nullptr) - started));
  if (outcome.verdict == Verdict::passed) {
    // A run that moves nothing proves nothing.
    if (outcome.blocks_stored == 0 && operations >= 100) {
      std::printf("model: nothing was stored in this run\n");
      ++tally.failed;
    } else {
      ++tally.passed;
    }
    return outcome;
  }
  std::printf("model:   %s\n", outcome.text.c_str());
  if (outcome.verdict == Verdict::skipped) return ++tally.skipped, outcome;
  ++tally.failed;
  std::printf("model:   in operation %zu of %zu\n", outcome.at, operations);
  std::fflush(stdout);
  if (threads != 1 || shrink_s == 0) return outcome;
  const History shorter = shrink(config, histories[0], outcome, shrink_s);
  std::printf("model:   shrunk to %zu operations:\n", shorter.size());
  constexpr std::size_t kShown = 60;
  for (std::size_t i = 0; i < shorter.size() && i < kShown; ++i)
    std::printf("model:     %s\n", to_text(shorter[i]).c_str());
  if (shorter.size() > kShown) std::printf("model:     ... more time (--shrink S) may make it shorter\n");
  std::fflush(stdout);
  if (shrunk != nullptr) *shrunk = shorter.size();
  return outcome;
}

void run_quick(const Flags& flags, Tally& tally) {
  RunConfig config = flags.config;
  for (const DeviceKind device : {DeviceKind::memory, DeviceKind::uring, DeviceKind::sync}) {
    for (const bool lru : {false, true}) {
      for (const bool force : {false, true}) {
        config.device = device;
        config.lru = lru;
        config.force_eviction = force;
        config.faults = Faults::none;
        config.seed++;
        run_once(config, 700, 1, false, flags.shrink_s, tally);
      }
    }
    config.lru = false;
    config.seed++;
    config.force_eviction = false;
    config.faults = Faults::transient;
    run_once(config, 1200, 1, false, flags.shrink_s, tally);
    config.faults = Faults::none;
    config.seed++;
    config.force_eviction = device == DeviceKind::uring;
    run_once(config, 500, 4, false, flags.shrink_s, tally);
  }
}

void run_long(const Flags& flags, Tally& tally) {
  RunConfig config = flags.config;
  config.timeout_s = 300;
  const std::uint64_t seeds = flags.seeds > 1 ? flags.seeds : 8;
  for (std::uint64_t s = 0; s < seeds; ++s) {
    for (int combination = 0; combination < 12; ++combination) {
      config.device = DeviceKind(combination % 3);
      config.lru = combination / 3 % 2 != 0;
      config.force_eviction = combination / 6 != 0;
      config.seed++;
      config.faults = s % 2 != 0 ? Faults::transient : Faults::none;
      const bool many = (s + std::uint64_t(combination)) % 3 == 0;
      run_once(config, many ? 600 : 2000, many ? 2 + std::size_t(combination) % 5 : 1, false, flags.shrink_s,
               tally);
      if (tally.failed > 3) return;
    }
  }
}

// Each defect must be seen, and be told by a short list of operations.
int prove(const Flags& flags) {
  struct Defect {
    const char* name;
    bool spoil;
    Faults faults;
    Verdict expected;
    std::size_t most_operations;
  };
  constexpr Defect kDefects[] = {
      {"one byte of the shadow copy is flipped", true, Faults::none, Verdict::wrong_bytes, 6},
      {"the device loses writes", false, Faults::stale, Verdict::ended, 16},
      {"a read never completes", false, Faults::never, Verdict::ended, 0},
  };
  int missed = 0;
  for (const Defect& defect : kDefects) {
    RunConfig config = flags.config;
    config.device = DeviceKind::memory;
    config.faults = defect.faults;
    config.limit_bytes = 8 * kMiB;
    Tally tally;
    std::size_t shrunk = 0;
    // One that takes the time limit of an I/O to fail takes too long to shrink in a test.
    const int shrink_s = defect.faults == Faults::never ? 0 : 60;
    const Outcome outcome = run_once(config, 150, 1, defect.spoil, shrink_s, tally, &shrunk);
    if (outcome.verdict == Verdict::skipped) return 77;
    const bool caught = outcome.verdict == defect.expected;
    const bool short_enough = shrink_s == 0 || (shrunk != 0 && shrunk <= defect.most_operations);
    std::printf("model: defect \"%s\": %s", defect.name, caught ? "caught" : "MISSED");
    if (shrink_s != 0) std::printf(", shrunk to %zu operations", shrunk);
    std::puts("");
    missed += !caught || !short_enough;
  }
  return missed != 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  if (!parse(argc, argv, flags)) {
    print_help();
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("model: seed=%llu\n", (unsigned long long)flags.config.seed);
  if (flags.prove) return prove(flags);
  Tally tally;
  if (flags.quick) {
    run_quick(flags, tally);
  } else if (flags.whole) {
    run_long(flags, tally);
  } else {
    for (std::uint64_t s = 0; s < flags.seeds; ++s, ++flags.config.seed)
      run_once(flags.config, flags.operations, flags.threads, flags.spoil, flags.shrink_s, tally);
  }
  std::printf("model: %d passed, %d failed, %d skipped\n", tally.passed, tally.failed, tally.skipped);
  return tally.failed != 0 ? 1 : tally.passed == 0 ? 77 : 0;
}
