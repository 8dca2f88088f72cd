// Access patterns and policy instances for the tests of tiering/.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "tiering/lru.hpp"
#include "tiering/replay.hpp"
#include "tiering/stream.hpp"

namespace terrace::tiering::test {

// A policy with the memory it lives in.
template <class Policy>
struct Owned {
  explicit Owned(std::uint32_t capacity)
      : memory((Policy::memory_bytes(capacity) + 7) / 8, 0xA5A5A5A5A5A5A5A5) {
    policy.init(memory.data(), memory.size() * 8, capacity);
  }
  std::vector<std::uint64_t> memory;
  Policy policy;
};

using Kind = Access::Kind;
using Accesses = std::vector<Access>;

inline void pass(Accesses& out, std::uint32_t from, std::uint32_t to, Kind kind = Kind::write) {
  for (std::uint32_t b = from; b < to; ++b) out.push_back({b, kind});
}

inline Accesses cyclic(std::uint32_t n, std::uint32_t passes, Kind kind = Kind::write) {
  Accesses out;
  pass(out, 0, n);  // the fill
  for (std::uint32_t p = 0; p < passes; ++p) pass(out, 0, n, kind);
  return out;
}

// One order, drawn once, run through again and again after a fill in address order.
inline Accesses shuffled_cyclic(std::uint32_t n, std::uint32_t passes) {
  Accesses out;
  pass(out, 0, n);
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  for (std::uint32_t p = 0; p < passes; ++p) {
    for (const std::uint32_t b : order) out.push_back({b});
  }
  return out;
}

// A fresh order in each pass.
inline Accesses permutations(std::uint32_t n, std::uint32_t passes) {
  Accesses out;
  pass(out, 0, n);
  std::mt19937 random(11);
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  for (std::uint32_t p = 0; p < passes; ++p) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::uint32_t b : order) out.push_back({b});
  }
  return out;
}

// Independent draws, the block of rank r with weight 1 / r^exponent; ranks scattered over the addresses.
inline Accesses zipf(std::uint32_t n, std::size_t draws, double exponent = 0.9) {
  Accesses out;
  pass(out, 0, n);
  std::vector<double> weights(n);
  for (std::uint32_t r = 0; r < n; ++r) weights[r] = 1 / std::pow(r + 1, exponent);
  std::discrete_distribution<std::uint32_t> draw(weights.begin(), weights.end());
  std::mt19937 random(13);
  std::vector<std::uint32_t> scatter(n);
  std::iota(scatter.begin(), scatter.end(), 0u);
  std::shuffle(scatter.begin(), scatter.end(), random);
  for (std::size_t i = 0; i < draws; ++i) out.push_back({scatter[draw(random)]});
  return out;
}

// Training: `n` activations are filled forward, read backward and die; then the next step.
inline Accesses stack_dying(std::uint32_t n, std::uint32_t steps) {
  Accesses out;
  for (std::uint32_t s = 0; s < steps; ++s) {
    pass(out, 0, n);
    for (std::uint32_t b = n; b-- > 0;) {
      out.push_back({b, Kind::read});
      out.push_back({b, Kind::free});
    }
  }
  return out;
}

// Weights: forward and backward over the same blocks.
inline Accesses to_and_fro(std::uint32_t n, std::uint32_t steps) {
  Accesses out;
  pass(out, 0, n);
  for (std::uint32_t s = 0; s < steps; ++s) {
    pass(out, 0, n, Kind::read);
    for (std::uint32_t b = n; b-- > 0;) out.push_back({b});
  }
  return out;
}

// Training as a whole: weights read forward; then weights written and activations read and freed, backward.
inline Accesses training(std::uint32_t weights, std::uint32_t activations, std::uint32_t steps) {
  Accesses out;
  pass(out, 0, weights);
  for (std::uint32_t s = 0; s < steps; ++s) {
    for (std::uint32_t i = 0; i < std::max(weights, activations); ++i) {
      if (i < weights) out.push_back({i, Kind::read});
      if (i < activations) out.push_back({weights + i});
    }
    for (std::uint32_t i = std::max(weights, activations); i-- > 0;) {
      if (i < activations) {
        out.push_back({weights + i, Kind::read});
        out.push_back({weights + i, Kind::free});
      }
      if (i < weights) out.push_back({i});
    }
  }
  return out;
}

// Two threads, each on its own array, taking turns at random.
inline Accesses interleaved(std::uint32_t each, std::uint32_t passes) {
  Accesses out;
  std::mt19937 random(17);
  std::uint64_t a = 0, b = 0;
  const std::uint64_t total = std::uint64_t(each) * (passes + 1);
  while (a < total || b < total) {
    const bool first = b >= total || (a < total && (random() & 1) != 0);
    std::uint64_t& at = first ? a : b;
    out.push_back({std::uint32_t((first ? 0 : each) + at++ % each)});
  }
  return out;
}

// A cyclic scan over the first half of the blocks, then for ever over the second half.
inline Accesses phases(std::uint32_t half, std::uint32_t passes_each) {
  Accesses out;
  pass(out, 0, 2 * half);
  for (std::uint32_t p = 0; p < passes_each; ++p) pass(out, 0, half);
  for (std::uint32_t p = 0; p < passes_each; ++p) pass(out, half, 2 * half);
  return out;
}

// A hot set touched at every turn, and a cyclic scan that is too large.
inline Accesses hot_and_scan(std::uint32_t hot, std::uint32_t n, std::uint32_t passes) {
  Accesses out;
  pass(out, 0, n);
  std::mt19937 random(19);
  for (std::uint32_t p = 0; p < passes; ++p) {
    for (std::uint32_t b = hot; b < n; ++b) {
      out.push_back({b});
      out.push_back({std::uint32_t(random() % hot)});
    }
  }
  return out;
}

}  // namespace terrace::tiering::test
