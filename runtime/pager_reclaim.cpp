// The budget: how many granules objects may hold, where frames come from, and who has to leave.
#include <cstring>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/resident.hpp"
#include "runtime/pager.hpp"

namespace terrace::runtime {

using tiering::OnlinePolicy;
using Place = OnlinePolicy::Place;

namespace {

// Chunks read ahead and not yet touched, and chunks of frames kept free. Each is taken from the blocks in
// use: a pass over 2 GiB in 1 GiB moves 1,100 MiB with 12 and 8, 1,082 with 8 and 5, at the same share of the
// disk's speed.
constexpr std::uint64_t kAheadChunks = 8, kSpareChunks = 5;
// As many more where nothing that leaves is written: then the disk has all its time for reads. A read-only
// pass is 9 % faster with 12 and 16; with writes, that only moves more.
constexpr double kAheadMoreClean = 4, kSpareMoreClean = 11;
constexpr std::uint64_t kUnmovableRetryNs = 500 * kNsPerMs;
// Under forced eviction: small enough that everything is always on the move, large enough that an instruction
// with several operands, on several threads, makes progress.
constexpr std::uint64_t kForcedLimitBytes = 32 * kMiB;

}  // namespace

// What objects may hold is the budget less everything else that the program and Terrace keep resident.
void Pager::set_limit_from_rest() {
  const std::uint64_t ours = resident_granules() * kGranuleBytes;
  const std::uint64_t resident = resident_bytes(resident_descriptor_);
  if (resident > counters_->dram_peak_bytes.load(std::memory_order_relaxed))
    counters_->dram_peak_bytes.store(resident, std::memory_order_relaxed);
  const std::uint64_t fixed = requested_limit_bytes_.load(std::memory_order_relaxed);
  std::uint64_t bytes = fixed;
  if (fixed == 0) {
    rest_bytes_ = resident > ours ? resident - ours : 0;
    // Page tables take 8 bytes for each 4 KiB page where there are no huge ones.
    const std::uint64_t rest = rest_bytes_ + resident / 512;
    bytes = options_.dram_bytes > rest ? options_.dram_bytes - rest : 0;
    if (options_.force_eviction && bytes > kForcedLimitBytes) bytes = kForcedLimitBytes;
  }
  if (bytes < kLeastLimitBytes) bytes = kLeastLimitBytes;
  limit_granules_ = bytes / kGranuleBytes;
}

std::uint64_t Pager::small_share(std::uint64_t chunks) const {
  const std::uint64_t share = limit_granules_ / 16, most = chunks * kGranulesPerChunk;
  return share > most ? most : share < kGranulesPerChunk ? kGranulesPerChunk : share;
}

std::uint64_t Pager::ahead_window() const {
  return small_share(kAheadChunks + std::uint64_t(kAheadMoreClean * clean_share_));
}

std::uint64_t Pager::low_water() const {
  return small_share(kSpareChunks + std::uint64_t(kSpareMoreClean * clean_share_));
}

// Granules of frames that can be had without moving anything that is in use.
std::uint64_t Pager::supply_granules() const {
  const std::uint64_t resident = resident_granules();
  return shadow_.free_frames() + clean_.granules + books_.dead_granules() +
         (limit_granules_ > resident ? limit_granules_ - resident : 0);
}

// A slot with frames, taken from where it costs least: free frames, room in the budget, memory that the
// program has freed, blocks that are staged and equal to their stored copy. Invalid when nothing of that is
// to be had now.
Slot Pager::obtain_frame(std::uint32_t granules, bool demanded) {
  for (;;) {
    const Slot slot = shadow_.take_frame(granules);
    if (slot.valid()) return slot;
    if (resident_granules() + kGranulesPerChunk <= limit_granules_ && shadow_.populate_chunk()) continue;
    if (reclaim_dead(granules)) continue;
    if (drop_clean(granules, demanded)) continue;
    // Free frames that do not lie together: give some back, so that a whole chunk can be made.
    if (shadow_.free_frames() >= granules && (demanded || shadow_.free_frames() >= 2 * kGranulesPerChunk)) {
      give_back_frames(kGranulesPerChunk);
      if (resident_granules() + kGranulesPerChunk <= limit_granules_ || shadow_.free_frames() == 0) {
        if (shadow_.populate_chunk()) continue;
      } else {
        continue;
      }
    }
    return {};
  }
}

// Undoes a move out of the program's memory, of which `bytes` were moved. 0, or why they cannot go back.
int Pager::give_back(std::byte* home, std::byte* frame, std::uint64_t bytes) {
  const std::uint64_t at = mover_->move_home(home, frame, bytes).moved_bytes;
  if (at == bytes) return 0;
  const int error = mover_->copy_in(home + at, frame + at, bytes - at);
  mover_->wake(home, bytes);
  mover_->discard(frame, bytes);
  return error;
}

// Takes the frames of memory that the program has freed. The heap may hand that memory out at the same
// moment: then its pages go straight back, with whatever was written to them meanwhile.
bool Pager::reclaim_dead(std::uint32_t granules) {
  const Chunk chunk = books_.find_dead(dead_cursor_, granules);
  if (chunk == ~0u) return false;
  dead_cursor_ = chunk;
  const GranuleMask dead = books_.dead(chunk);
  std::uint32_t first = dead.find_run(granules);
  std::uint32_t run = granules;
  if (first == kGranulesPerChunk) {
    first = dead.first();
    run = dead.run_at(first);
  }
  const Slot slot = shadow_.take_hole(run);
  if (!slot.valid()) return false;
  const Granule start = chunk * kGranulesPerChunk + first;
  const GranuleMask mask = GranuleMask::range(first, run);
  std::byte* const home = arena_->address_of(start);
  std::byte* const frame = shadow_.address_of(slot);
  const std::uint64_t bytes = std::uint64_t(run) * kGranuleBytes;
  const MoveOutcome outcome = mover_->move(frame, home, bytes);
  count(counters_->moves);
  bool alive = outcome.moved_bytes != bytes;
  for (std::uint32_t i = 0; i < run && !alive; ++i) alive = arena_->owner(start + i) != kNoGranule;
  if (alive) {
    if (const int error = give_back(home, frame, outcome.moved_bytes))
      fatal("memory that came to life again cannot be given back", nullptr, error);
    shadow_.release(slot);
    books_.clear_dead(chunk, mask);  // its birth is on its way through the queue, or it cannot move
    return true;
  }
  books_.clear_present(chunk, mask);
  shadow_.filled(slot);
  if (options_.force_eviction) std::memset(frame, 0xa5, bytes);
  shadow_.release(slot);
  return true;
}

void Pager::drop(BlockId id) {
  Block& block = books_[id];
  block.state = next_residency(block.state, Cause::drop);
  // What is handed to the next block must never be taken for its bytes.
  if (options_.force_eviction) std::memset(shadow_.address_of(block.slot), 0xa5, bytes_of(block));
  shadow_.release(block.slot);
  block.slot = {};
  if (block.ahead) {
    forget_ahead(id);
    policy_->read_in_vain(id);
    count(counters_->bytes_in_vain, bytes_of(block));
  }
  policy_->placed(id, Place::stored);
}

void Pager::forget_ahead(BlockId id) {
  for (std::uint32_t i = 0; i < ahead_size_; ++i) {
    if (ahead_[i] != id) continue;
    std::memmove(ahead_ + i, ahead_ + i + 1, (ahead_size_ - i - 1) * sizeof(BlockId));
    --ahead_size_;
    ahead_granules_ -= books_[id].count;
    break;
  }
  books_[id].ahead = false;
}

bool Pager::drop_clean(std::uint32_t granules, bool demanded) {
  BlockId id = clean_.head;
  for (std::uint32_t looked = 0; id != kNoBlock && looked < 16; ++looked, id = books_[id].next)
    if (books_[id].count == granules) break;
  if (id == kNoBlock || books_[id].count != granules) id = clean_.head;
  if (id != kNoBlock) {
    books_.remove(clean_, id);
    drop(id);
    return true;
  }
  if (!demanded) return false;
  // What was read ahead, the farthest first.
  for (std::uint32_t i = ahead_size_; i-- > 0;) {
    if (books_[ahead_[i]].state != Residency::staged_clean) continue;
    drop(ahead_[i]);
    return true;
  }
  return false;
}

// Gives free frames back to the system: up to `granules`.
void Pager::give_back_frames(std::uint64_t granules) {
  std::uint64_t given = 0;
  while (given < granules) {
    const Slot slot = shadow_.take_any_frames();
    if (!slot.valid()) return;
    mover_->discard(shadow_.address_of(slot), std::uint64_t(slot.count) * kGranuleBytes);
    given += slot.count;
    shadow_.emptied(slot);
    shadow_.release(slot);
  }
}

// Takes a mapped block out of the program's reach; it then waits to be compared with its stored copy.
bool Pager::stage(BlockId id) {
  Block& block = books_[id];
  // A dropped range that is still to be handled counts for what the block held then, not for what it gets
  // from now on.
  if (mover_->has_backlog()) return false;
  if (block.held_since_ns != 0 && monotonic_ns() < block.held_since_ns + kUnmovableRetryNs) {
    policy_->placed(id, Place::none);
    books_.append(unmovable_, ListName::unmovable, id);
    return false;
  }
  const Slot slot = shadow_.take_hole(block.count);
  if (!slot.valid()) return false;
  std::byte* const home = arena_->address_of(block.first);
  std::byte* const frame = shadow_.address_of(slot);
  const std::uint64_t bytes = bytes_of(block);
  const MoveOutcome outcome = mover_->move(frame, home, bytes);
  count(counters_->moves);
  const bool freed = death_pending(block);
  if (outcome.moved_bytes != bytes || freed) {
    // Pinned, locked or not writable: all or nothing. Or these are the bytes of the object that came after.
    if (const int error = give_back(home, frame, outcome.moved_bytes))
      fatal("a block that cannot leave cannot be given back", &block, error);
    shadow_.release(slot);
    if (!freed) {
      count(Fallback::unmovable_block);
      hold(id);
    }
    return false;
  }
  shadow_.filled(slot);
  books_.clear_present(chunk_of(block.first), BlockTable::mask_of(block));
  block.slot = slot;
  block.state = next_residency(block.state, Cause::stage);
  staged_out_granules_ += block.count;
  policy_->placed(id, Place::none);
  books_.append(outgoing_, ListName::outgoing, id);
  return true;
}

// Stages victims until what is free, and what is on its way to be, covers what will be wanted next. True when
// it staged something.
bool Pager::make_room(std::uint64_t now) {
  if (yields_to_demand()) return false;
  const std::uint64_t resident = resident_granules();
  if (resident > limit_granules_) {
    const std::uint64_t excess = resident - limit_granules_;
    if (shadow_.free_frames() > 0 && waiting_.size == 0)
      give_back_frames(excess);
    else if (waiting_.size == 0 && (books_.dead_granules() > 0 || clean_.size > 0)) {
      if (!reclaim_dead(kGranulesPerChunk)) (void)drop_clean(kGranulesPerChunk, false);
      return true;
    }
  }
  std::uint64_t wanted = low_water() + waiting_.granules;
  if (resident > limit_granules_) wanted += resident - limit_granules_;
  bool staged = false;
  while (supply_granules() + staged_out_granules_ < wanted) {
    BlockId victims[16];
    const std::uint64_t deficit = wanted - supply_granules() - staged_out_granules_;
    std::size_t ask = std::size_t(deficit / kGranulesPerChunk + 1);
    if (ask > 16) ask = 16;
    const std::size_t got = policy_->victims(now, {victims, ask});
    bool any = false;
    for (std::size_t i = 0; i < got; ++i) {
      const Block& victim = books_[victims[i]];
      any |= victim.state == Residency::mapped && victim.list == ListName::none && stage(victims[i]);
    }
    staged |= any;
    if (!any || fatal_) break;
  }
  return staged;
}

// Takes a block off the list that it is on, if any.
void Pager::unlist(BlockId id) {
  switch (books_[id].list) {
    case ListName::none: return;
    case ListName::clean: return books_.remove(clean_, id);
    case ListName::outgoing: return books_.remove(outgoing_, id);
    case ListName::waiting: return books_.remove(waiting_, id);
    case ListName::settling: return books_.remove(settling_, id);
    case ListName::unmovable: return books_.remove(unmovable_, id);
  }
}

// How long a block that was brought to the program stays at least. An instruction may need several blocks at
// once (a copy from one object to another, both over the border of a chunk), on each thread: were they taken
// away before it has all of them, no thread would go on. A block that is missed again and again soon after it
// came stays longer.
std::uint64_t Pager::settle_ns(const Block& block) { return kSettleNs << block.refaults; }

// Blocks that have been with the program for long enough may leave.
void Pager::settle(std::uint64_t now) {
  for (std::uint32_t left = settling_.size; left > 0; --left) {
    const BlockId id = settling_.head;
    const Block& block = books_[id];
    if (now < block.answered_ns + kSettleNs) return;  // in the order of their answers
    books_.remove(settling_, id);
    if (now < block.answered_ns + settle_ns(block))
      books_.append(settling_, ListName::settling, id);
    else
      policy_->placed(id, Place::mapped);
  }
}

// Keeps a mapped block where it is for a while.
void Pager::hold(BlockId id) {
  unlist(id);
  books_[id].held_since_ns = monotonic_ns();
  policy_->placed(id, Place::none);
  books_.append(unmovable_, ListName::unmovable, id);
}

void Pager::retry_unmovable(std::uint64_t now) {
  while (unmovable_.head != kNoBlock && now > books_[unmovable_.head].held_since_ns + kUnmovableRetryNs) {
    const BlockId id = unmovable_.head;
    books_.remove(unmovable_, id);
    policy_->placed(id, Place::mapped);
  }
}

// Every movable block goes to the store and leaves DRAM, at seeded intervals.
void Pager::force_eviction(std::uint64_t now) {
  if (now < next_forced_ns_) {
    while (clean_.head != kNoBlock) (void)drop_clean(kGranulesPerChunk, false);
    return;
  }
  random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
  next_forced_ns_ = now + (1 + (random_ >> 33) % 20) * kNsPerMs;
  infer_mapped_ahead();
  for (BlockId id = 1; id < books_.end() && !fatal_; ++id) {
    const Block& block = books_[id];
    if (block.count != 0 && block.state == Residency::mapped && block.list == ListName::none && !block.dying)
      (void)stage(id);
  }
}

}  // namespace terrace::runtime
