// Wall time for mechanisms, behind one seam so that tests can drive it by hand.
#pragma once

#include <cstdint>
#include <ctime>

namespace terrace {

inline constexpr std::uint64_t kNsPerMs = 1'000'000;
inline constexpr std::uint64_t kNsPerS = 1'000'000'000;

// CLOCK_MONOTONIC in ns, through the vDSO: any context.
inline std::uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::uint64_t(t.tv_sec) * kNsPerS + std::uint64_t(t.tv_nsec);
}

// A clock that a test moves by hand.
struct ManualClock {
  std::uint64_t now_ns = 0;
  void advance_ms(std::uint64_t ms) { now_ns += ms * kNsPerMs; }
};

}  // namespace terrace
