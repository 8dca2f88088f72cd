// Decides when the pager is too late with its heartbeat. Pure: the supervisor feeds it what it sees at each
// tick.
//
// Noun: the pager promises its next beat by `due_ns` (0: it sleeps and promises nothing). It is overdue when
// it has been late for a whole second in which it could have run: time in which it, or we, were stopped does
// not count, and one that runs or waits for the kernel (states R and D) gets ten, since it is starved and not
// stuck.
#pragma once

#include <cstdint>

namespace terrace::cli {

class Watchdog {
 public:
  static constexpr std::uint64_t kLateMaxNs = 1'000'000'000;
  static constexpr std::uint64_t kStarvedMaxNs = 10'000'000'000;
  static constexpr std::uint64_t kGapMaxNs =
      1'000'000'000;  // between two ticks; above it we were stopped ourselves

  // Whether the pager is overdue. `state` is the letter of /proc/PID/stat, asked for only when the beat is
  // late (it costs a file): give 0 while late() is false.
  bool tick(std::uint64_t now_ns, std::uint64_t beat, std::uint64_t due_ns, char state);
  static bool late(std::uint64_t now_ns, std::uint64_t due_ns) { return due_ns != 0 && now_ns > due_ns; }
  std::uint64_t late_ns() const { return late_ns_; }

 private:
  std::uint64_t last_tick_ns_ = 0, last_beat_ = 0, last_due_ns_ = 0;
  std::uint64_t late_ns_ = 0;  // since the last beat, without stopped time
};

}  // namespace terrace::cli
