// Seeded numbers for test doubles: splitmix64 (Steele, Lea, Flood 2014). Any state is a good seed.
#pragma once

#include <cstdint>

namespace terrace::io {

inline std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace terrace::io
