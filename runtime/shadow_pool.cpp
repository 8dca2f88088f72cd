#include "runtime/shadow_pool.hpp"

#include <sys/mman.h>

#include "base/check.hpp"
#include "base/syscall.hpp"

namespace terrace::runtime {
namespace {

constexpr int kMadvPopulateWrite = 23;  // Linux 5.14

}  // namespace

std::uint64_t ShadowPool::table_bytes(std::uint32_t chunks) {
  return std::uint64_t(chunks) * sizeof(ChunkState);
}

void ShadowPool::init(std::byte* base, std::uint32_t chunks, void* tables) {
  base_ = base;
  chunks_ = chunks;
  table_ = static_cast<ChunkState*>(tables);
}

void ShadowPool::hold(ChunkState& chunk, const Slot& slot) {
  free_frames_ -= (chunk.frame & slot.mask()).count();
  chunk.used |= slot.mask();
}

Slot ShadowPool::take_whole(bool with_frames) {
  const GranuleMask want = with_frames ? GranuleMask::all() : GranuleMask();
  // First those that were always whole, then (holes only) split ones that are empty: a huge page splits
  // there, slower but right.
  for (std::uint32_t split = 0; split < 2; ++split) {
    for (std::uint32_t i = 0; i < chunks_; ++i) {
      ChunkState& chunk = table_[i];
      if (chunk.split != split || chunk.used.any() || !(chunk.frame == want)) continue;
      if (i >= high_water_) high_water_ = i + 1;
      const Slot slot{i, 0, std::uint16_t(kGranulesPerChunk)};
      hold(chunk, slot);
      return slot;
    }
  }
  return {};
}

Slot ShadowPool::take_piece(std::uint32_t count, bool with_frames) {
  for (std::uint32_t i = 0; i < high_water_; ++i) {
    ChunkState& chunk = table_[i];
    if (chunk.split == 0) continue;
    const std::uint32_t first = (~chunk.used & (with_frames ? chunk.frame : ~chunk.frame)).find_run(count);
    if (first == kGranulesPerChunk) continue;
    const Slot slot{i, std::uint16_t(first), std::uint16_t(count)};
    hold(chunk, slot);
    return slot;
  }
  // Split a whole chunk.
  Slot slot = take_whole(with_frames);
  if (!slot.valid()) return {};
  release(slot);
  ChunkState& chunk = table_[slot.chunk];
  chunk.split = 1;
  slot.count = std::uint16_t(count);
  hold(chunk, slot);
  return slot;
}

Slot ShadowPool::take_frame(std::uint32_t count) {
  if (free_frames_ < count) return {};
  return count == kGranulesPerChunk ? take_whole(true) : take_piece(count, true);
}

Slot ShadowPool::take_hole(std::uint32_t count) {
  return count == kGranulesPerChunk ? take_whole(false) : take_piece(count, false);
}

void ShadowPool::release(const Slot& slot) {
  ChunkState& chunk = table_[slot.chunk];
  TERRACE_CHECK((chunk.used & slot.mask()) == slot.mask(), "a slot is released once");
  chunk.used &= ~slot.mask();
  chunk.zero &= chunk.frame;
  free_frames_ += (chunk.frame & slot.mask()).count();
}

void ShadowPool::filled(const Slot& slot) {
  ChunkState& chunk = table_[slot.chunk];
  frames_ += (slot.mask() & ~chunk.frame).count();
  chunk.frame |= slot.mask();
  chunk.zero &= ~slot.mask();
}

void ShadowPool::emptied(const Slot& slot) {
  ChunkState& chunk = table_[slot.chunk];
  frames_ -= (slot.mask() & chunk.frame).count();
  chunk.frame &= ~slot.mask();
  chunk.zero &= ~slot.mask();
}

bool ShadowPool::populate_chunk() {
  const Slot slot = take_whole(false);
  if (!slot.valid()) return false;
  const bool populated = sys(SYS_madvise, address_of(slot), kChunkBytes, kMadvPopulateWrite) == 0;
  if (populated) {
    filled(slot);
    table_[slot.chunk].zero = GranuleMask::all();
  }
  release(slot);
  return populated;
}

Slot ShadowPool::take_any_frames() {
  for (std::uint32_t split = 2; split-- > 0;) {
    for (std::uint32_t i = 0; i < high_water_; ++i) {
      ChunkState& chunk = table_[i];
      const GranuleMask free = chunk.frame & ~chunk.used;
      if (chunk.split != split || free.none()) continue;
      const std::uint32_t first = free.first();
      const Slot slot{i, std::uint16_t(first), std::uint16_t(free.run_at(first))};
      hold(chunk, slot);
      return slot;
    }
  }
  return {};
}

bool ShadowPool::known_zero(const Slot& slot) const {
  return (table_[slot.chunk].zero & slot.mask()) == slot.mask();
}

void ShadowPool::validate() const {
  std::uint64_t frames = 0, free_frames = 0;
  for (std::uint32_t i = 0; i < chunks_; ++i) {
    frames += table_[i].frame.count();
    free_frames += (table_[i].frame & ~table_[i].used).count();
  }
  TERRACE_CHECK(frames == frames_ && free_frames == free_frames_, "the shadow counts its frames");
}

}  // namespace terrace::runtime
