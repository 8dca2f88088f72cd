// The shadow area: where staged blocks lie, out of the program's reach, and where free frames wait for their
// next use.
//
// Nouns: a *slot* is 1 to 128 granules within one chunk of the shadow. A granule of the shadow is *used*
// (part of a slot that somebody holds) or free, and has a *frame* (physical memory) or is a *hole*. Reads
// from the store go into slots with frames; blocks are staged into slots of holes; giving a block to the
// program turns its frames into holes again. So physical pages only change places, and steady state allocates
// nothing.
//
// Chunks that hold pieces are *split*: kept apart from whole ones, since a page table left behind by a piece
// makes every later whole huge page split.
//
// Invariant: frames() counts the granules with a frame, free_frames() those that nobody uses.
// Threads: the pager only. No heap: its tables live in memory that init() is given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/granule_mask.hpp"
#include "base/status.hpp"

namespace terrace::runtime {

struct Slot {
  std::uint32_t chunk = 0;
  std::uint16_t first = 0;
  std::uint16_t count = 0;  // granules; 0: none
  bool valid() const { return count != 0; }
  GranuleMask mask() const { return GranuleMask::range(first, count); }
};

class ShadowPool {
 public:
  static std::uint64_t table_bytes(std::uint32_t chunks);
  // `base`: chunk-aligned, all holes. `tables`: table_bytes(chunks) zeroed bytes.
  void init(std::byte* base, std::uint32_t chunks, void* tables);

  std::byte* address_of(const Slot& slot) const {
    return base_ + std::uint64_t(slot.chunk) * kChunkBytes + std::uint64_t(slot.first) * kGranuleBytes;
  }

  // A free slot of `count` granules that has all its frames, or is all holes; an invalid one when there is
  // none.
  Slot take_frame(std::uint32_t count);
  Slot take_hole(std::uint32_t count);
  // Gives a slot back, with the frames it has now.
  void release(const Slot& slot);
  // What a move did to a slot that is held: it has frames now, or none.
  void filled(const Slot& slot);
  void emptied(const Slot& slot);
  // Makes the frames of one whole chunk (zeroed by the kernel, one huge page where it has one). False: no
  // memory, or every chunk is in use.
  bool populate_chunk();
  // A slot of free frames that is worth giving back to the system, the largest of the first chunk that has
  // some. The caller discards its pages, then calls emptied() and release().
  Slot take_any_frames();

  // Whether the slot's bytes are still the zeros that the kernel gave.
  bool known_zero(const Slot& slot) const;

  std::uint64_t frames() const { return frames_; }            // granules
  std::uint64_t free_frames() const { return free_frames_; }  // granules
  std::uint32_t chunks() const { return chunks_; }
  void validate() const;

 private:
  struct ChunkState {
    GranuleMask used, frame, zero;
    std::uint32_t split;
  };
  void hold(ChunkState& chunk, const Slot& slot);
  Slot take_piece(std::uint32_t count, bool with_frames);
  Slot take_whole(bool with_frames);

  std::byte* base_ = nullptr;
  ChunkState* table_ = nullptr;
  std::uint32_t chunks_ = 0;
  std::uint32_t high_water_ = 0;  // chunks at or above it were never used
  std::uint64_t frames_ = 0, free_frames_ = 0;
};

}  // namespace terrace::runtime
