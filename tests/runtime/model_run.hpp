// Runs histories against a real heap and pager and compares every byte that is defined with a shadow copy.
//
// The shadow copy lies in ordinary memory outside of the arena: Terrace neither moves nor knows it. attempt()
// runs in a child process with a time limit, because a failure may be a hang, an abort or the end of the job
// by the pager's line. Threads: one attempt at a time, from a process with one thread.
#pragma once

#include <string>
#include <vector>

#include "tests/runtime/model_history.hpp"
#include "tests/runtime/pager_rig.hpp"

namespace terrace::runtime::test {

enum class Faults : std::uint8_t {
  none,
  transient,  // each kind that a job must survive, spread over the run
  stale,      // a defect: now and then a write is lost
  never,      // a defect: one read never completes
};

struct RunConfig {
  DeviceKind device = DeviceKind::memory;
  bool lru = false;
  bool force_eviction = false;
  Faults faults = Faults::none;
  std::uint64_t seed = 1;
  std::uint64_t limit_bytes = 24 << 20;  // at the start
  std::uint16_t shared_objects = 0;      // of 1.5 MiB each
  int timeout_s = 60;
};
std::string to_text(const RunConfig& config);

enum class Verdict : std::uint8_t {
  passed,
  skipped,  // the machine lacks something
  wrong_bytes,
  ended,  // the pager ended the job, or a check failed
  hung,
};
const char* to_text(Verdict verdict);

struct Outcome {
  Verdict verdict = Verdict::passed;
  std::string text;    // what was seen
  std::size_t at = 0;  // index of the operation that the (first failing) thread was in
  std::uint64_t bytes_in = 0, bytes_out = 0, blocks_stored = 0, strikes = 0;
};

// One thread for each history.
Outcome attempt(const RunConfig& config, const std::vector<History>& histories);

// Leaves out of a failing history whatever it fails without, for at most `most_s` seconds.
History shrink(const RunConfig& config, History history, const Outcome& first, int most_s);

}  // namespace terrace::runtime::test
