// Arithmetic of granules and chunks that the parts of the heap share. Private to heap*.cpp; any thread, no
// state.
#pragma once

#include <cstdint>

#include "base/granule_mask.hpp"
#include "base/types.hpp"

namespace terrace::runtime {

constexpr std::uint32_t kAll = kGranulesPerChunk;

constexpr Granule align_up(Granule g, std::uint32_t unit) { return Granule(round_up(g, unit)); }
constexpr Granule align_down(Granule g, std::uint32_t unit) { return Granule(round_down(g, unit)); }
constexpr std::uint32_t chunks_for(std::uint32_t granules) { return (granules + kAll - 1) / kAll; }

// Calls body(chunk, mask) for the part of [start, start + granules) in each chunk.
template <typename Body>
void for_each_chunk(Granule start, std::uint32_t granules, Body body) {
  const std::uint64_t end = std::uint64_t(start) + granules;
  for (std::uint64_t at = start; at < end;) {
    const std::uint32_t first = offset_in_chunk(Granule(at));
    const std::uint32_t count = std::uint32_t(end - at < kAll - first ? end - at : kAll - first);
    body(chunk_of(Granule(at)), GranuleMask::range(first, count));
    at += count;
  }
}

}  // namespace terrace::runtime
