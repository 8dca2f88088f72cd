// One bit for each of the 128 granules of a chunk.
//
// A value type without invariant; any thread, no allocation. Used for presence in an arena chunk, for frames
// of a shadow chunk and for extents of a store segment, so that all three search and count in the same way.
#pragma once

#include <bit>
#include <cstdint>

#include "base/types.hpp"

namespace terrace {

class GranuleMask {
 public:
  constexpr GranuleMask() = default;

  // The `count` granules from `first` on; first + count <= 128.
  static constexpr GranuleMask range(std::uint32_t first, std::uint32_t count) {
    if (count == 0) return {};
    const Word ones = ~Word{0} >> (kGranulesPerChunk - count);
    return GranuleMask(ones << first);
  }
  static constexpr GranuleMask from_words(std::uint64_t low, std::uint64_t high) {
    return GranuleMask(Word{high} << 64 | low);
  }
  static constexpr GranuleMask all() { return range(0, kGranulesPerChunk); }

  constexpr bool none() const { return bits_ == 0; }
  constexpr bool any() const { return bits_ != 0; }
  constexpr bool test(std::uint32_t i) const { return (bits_ >> i) & 1; }
  constexpr std::uint32_t count() const {
    return std::uint32_t(std::popcount(std::uint64_t(bits_)) + std::popcount(std::uint64_t(bits_ >> 64)));
  }
  // Index of the lowest set bit; 128 when there is none.
  constexpr std::uint32_t first() const {
    const auto low = std::uint64_t(bits_);
    if (low != 0) return std::uint32_t(std::countr_zero(low));
    return 64u + std::uint32_t(std::countr_zero(std::uint64_t(bits_ >> 64)));
  }
  // Length of the run of set bits that begins at `i`.
  constexpr std::uint32_t run_at(std::uint32_t i) const {
    return GranuleMask(~(bits_ >> i)).first_or(kGranulesPerChunk - i);
  }
  // First index at which `count` (>= 1) set bits follow each other; 128 when there is no such run.
  constexpr std::uint32_t find_run(std::uint32_t count) const {
    Word runs = bits_;  // bit i stays set while granules i .. i + have - 1 are set
    for (std::uint32_t have = 1; have < count && runs != 0;) {
      const std::uint32_t step = have < count - have ? have : count - have;
      runs &= runs >> step;
      have += step;
    }
    return GranuleMask(runs).first();
  }

  constexpr GranuleMask operator&(GranuleMask o) const { return GranuleMask(bits_ & o.bits_); }
  constexpr GranuleMask operator|(GranuleMask o) const { return GranuleMask(bits_ | o.bits_); }
  constexpr GranuleMask operator~() const { return GranuleMask(~bits_); }
  constexpr GranuleMask& operator&=(GranuleMask o) { return bits_ &= o.bits_, *this; }
  constexpr GranuleMask& operator|=(GranuleMask o) { return bits_ |= o.bits_, *this; }
  constexpr bool operator==(const GranuleMask&) const = default;

  constexpr std::uint64_t low_word() const { return std::uint64_t(bits_); }
  constexpr std::uint64_t high_word() const { return std::uint64_t(bits_ >> 64); }

 private:
  using Word = unsigned __int128;
  constexpr explicit GranuleMask(Word bits) : bits_(bits) {}
  constexpr std::uint32_t first_or(std::uint32_t limit) const {
    const std::uint32_t f = first();
    return f < limit ? f : limit;
  }

  Word bits_ = 0;
};

}  // namespace terrace
