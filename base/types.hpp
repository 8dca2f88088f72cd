// The units of the data plane, shared by every layer.
//
// Nouns: a *granule* (16 KiB) is the smallest piece of an arena, of the shadow or of the store that has a
// state of its own; a *chunk* (2 MiB, one huge page) holds 128 granules, so that one 128-bit mask describes
// it. A block (the unit that moves) is what one object owns of one chunk: 1 to 128 granules, never across a
// chunk. 16 KiB keeps the waste of the smallest object (128 KiB + 1 byte) at 12.5 %, DESIGN section 5.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;
inline constexpr std::uint64_t kTiB = 1024 * kGiB;

inline constexpr std::uint64_t kPageBytes = 4 * kKiB;
inline constexpr std::uint64_t kGranuleBytes = 16 * kKiB;
inline constexpr std::uint64_t kChunkBytes = 2 * kMiB;
inline constexpr std::uint32_t kGranulesPerChunk = kChunkBytes / kGranuleBytes;  // 128
inline constexpr std::uint32_t kPagesPerGranule = kGranuleBytes / kPageBytes;    // 4

// Index of a granule from the start of its arena (or of the store file).
using Granule = std::uint32_t;
// Index of a chunk from the start of its arena (or of the store file).
using Chunk = std::uint32_t;

constexpr Chunk chunk_of(Granule g) { return g / kGranulesPerChunk; }
constexpr std::uint32_t offset_in_chunk(Granule g) { return g % kGranulesPerChunk; }
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) { return value / unit * unit; }
constexpr std::uint64_t granules_for(std::uint64_t bytes) {
  return (bytes + kGranuleBytes - 1) / kGranuleBytes;
}

}  // namespace terrace
