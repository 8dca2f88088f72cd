#include "clients/cli/watchdog.hpp"

#include <algorithm>

namespace terrace::cli {

bool Watchdog::tick(std::uint64_t now_ns, std::uint64_t beat, std::uint64_t due_ns, char state) {
  const std::uint64_t gap_ns = last_tick_ns_ == 0 || now_ns < last_tick_ns_ ? 0 : now_ns - last_tick_ns_;
  last_tick_ns_ = now_ns;
  const bool moved = beat != last_beat_ || due_ns != last_due_ns_;
  last_beat_ = beat;
  last_due_ns_ = due_ns;
  if (moved) late_ns_ = 0;
  if (!late(now_ns, due_ns)) {
    late_ns_ = 0;
    return false;
  }
  const bool stopped = state == 'T' || state == 't' || gap_ns > kGapMaxNs;
  if (!stopped) late_ns_ += std::min(gap_ns, now_ns - due_ns);
  const bool starved = state == 'R' || state == 'D';
  return late_ns_ > (starved ? kStarvedMaxNs : kLateMaxNs);
}

}  // namespace terrace::cli
