#include "tiering/lru.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace terrace::tiering {
namespace {

constexpr std::uint32_t kWindowMax = 32;  // blocks: 64 MiB of whole chunks
constexpr std::uint32_t kWalkMax = 128;   // blocks looked at by one read_ahead()

}  // namespace

std::size_t LruPolicy::memory_bytes(std::uint32_t capacity) { return std::size_t(capacity) * sizeof(Entry); }

void LruPolicy::init(void* memory, std::size_t bytes, std::uint32_t capacity) {
  TERRACE_CHECK(bytes >= memory_bytes(capacity), "lru: memory too small for its capacity");
  entries_ = static_cast<Entry*>(memory);
  capacity_ = capacity;
  newest_ = oldest_ = last_seen_ = kNoBlock;
  window_ = 0;
}

void LruPolicy::push_newest(BlockId block) {
  Entry& e = entries_[block];
  e.newer = kNoBlock;
  e.older = newest_;
  (newest_ == kNoBlock ? oldest_ : entries_[newest_].newer) = block;
  newest_ = block;
}

void LruPolicy::unlink(BlockId block) {
  const Entry& e = entries_[block];
  (e.newer == kNoBlock ? newest_ : entries_[e.newer].older) = e.older;
  (e.older == kNoBlock ? oldest_ : entries_[e.older].newer) = e.newer;
}

void LruPolicy::inserted(BlockId block, BlockId after, std::uint64_t) {
  TERRACE_CHECK(block < capacity_ && (after == kNoBlock || after < capacity_),
                "lru: block id beyond its capacity");
  BlockId above = kNoBlock;
  if (after != kNoBlock) {
    above = entries_[after].above;
    entries_[after].above = block;
    if (above != kNoBlock) entries_[above].below = block;
  }
  entries_[block] = {kNoBlock, kNoBlock, above, after, Place::none, false};
}

void LruPolicy::removed(BlockId block) {
  Entry& e = entries_[block];
  if (e.place == Place::mapped) unlink(block);
  if (e.below != kNoBlock) entries_[e.below].above = e.above;
  if (e.above != kNoBlock) entries_[e.above].below = e.below;
  if (last_seen_ == block) last_seen_ = kNoBlock;
  e.place = Place::none;
}

void LruPolicy::touched(BlockId block, Touch how, std::uint64_t) {
  Entry& e = entries_[block];
  e.ahead = false;
  if (e.place == Place::mapped) {
    unlink(block);
    push_newest(block);
  }
  if (how == Touch::inferred) return;
  // A run is sequential when the next touch that is seen is the next block that was not already mapped; a few
  // steps suffice, for a longer mapped stretch ends the run anyway.
  bool sequential = false;
  BlockId at = last_seen_;
  for (std::uint32_t i = 0; i < 8 && at != kNoBlock && !sequential; ++i) {
    at = entries_[at].above;
    sequential = at == block;
    if (at != kNoBlock && entries_[at].place != Place::mapped) break;
  }
  window_ = sequential ? std::clamp(window_ * 2, 1u, kWindowMax) : window_ / 4;
  last_seen_ = block;
}

void LruPolicy::placed(BlockId block, Place place) {
  Entry& e = entries_[block];
  if (e.place == Place::mapped && place != Place::mapped) unlink(block);
  if (e.place != Place::mapped && place == Place::mapped) push_newest(block);
  e.place = place;
}

std::size_t LruPolicy::victims(std::uint64_t, std::span<BlockId> out) {
  std::size_t n = 0;
  for (BlockId at = oldest_; at != kNoBlock && n < out.size(); at = entries_[at].newer) out[n++] = at;
  return n;
}

std::size_t LruPolicy::read_ahead(BlockId from, std::uint64_t, std::span<BlockId> out) {
  std::size_t n = 0;
  std::uint32_t depth = 0;  // blocks ahead that are not mapped, those being read already too
  BlockId at = from;
  for (std::uint32_t i = 0; i < kWalkMax && depth < window_ && n < out.size(); ++i) {
    at = entries_[at].above;
    if (at == kNoBlock) break;
    if (entries_[at].place == Place::mapped) continue;
    ++depth;
    if (entries_[at].place != Place::stored) continue;
    entries_[at].ahead = true;
    out[n++] = at;
  }
  return n;
}

void LruPolicy::read_in_vain(BlockId block) {
  if (!entries_[block].ahead) return;
  entries_[block].ahead = false;
  window_ /= 2;
}

}  // namespace terrace::tiering
