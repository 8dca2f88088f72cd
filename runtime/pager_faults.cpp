// Messages of the kernel, births and deaths from the heap, and how a fault is answered.
#include <cerrno>
#include <cstring>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "runtime/pager.hpp"

namespace terrace::runtime {

using tiering::OnlinePolicy;
using tiering::Touch;
using Place = OnlinePolicy::Place;

void Pager::take_messages() {
  uffd_msg message;
  // A range that is dropped is noted until its block is home: with many of them on their way, further ones
  // wait.
  while (!fatal_ && removals_size_ < kRemovals / 2 && mover_->next_message(message)) {
    take_commands();  // whatever the heap did before the program could fault
    switch (message.event) {
      case UFFD_EVENT_PAGEFAULT: on_fault(message.arg.pagefault.address); break;
      case UFFD_EVENT_REMOVE:
      case UFFD_EVENT_UNMAP: on_removed(message.arg.remove.start, message.arg.remove.end); break;
      case UFFD_EVENT_REMAP:
        on_removed(message.arg.remap.from, message.arg.remap.from + message.arg.remap.len);
        break;
      default: break;
    }
  }
}

void Pager::take_commands() {
  Command command;
  while (link_->queue.pop(command)) {
    if (command.kind == Command::Kind::born) {
      born(command.head, command.granules, command.zeroed != 0);
    } else {
      died(command.head, command.granules);
    }
  }
}

void Pager::born(Granule head, std::uint32_t granules, bool zeroed) {
  const std::uint64_t now = monotonic_ns();
  const Granule end = head + granules;
  for (Granule first = head; first < end;) {
    const Chunk chunk = chunk_of(first);
    const Granule chunk_end = (chunk + 1) * kGranulesPerChunk;
    const std::uint32_t count = (chunk_end < end ? chunk_end : end) - first;
    const BlockId id = books_.create(first, count);
    if (id == kNoBlock) return fatal("the pager's table of blocks is full", nullptr, ENOMEM);
    Block& block = books_[id];
    block.zero = zeroed;
    const BlockId before = first == 0 ? kNoBlock : books_.block_at(first - 1);
    policy_->inserted(id, before, now);
    const GranuleMask mask = BlockTable::mask_of(block);
    books_.clear_dead(chunk, mask);
    if ((books_.present(chunk) & mask).any()) {
      block.state = next_residency(block.state, Cause::populate);
      policy_->touched(id, Touch::first, now);
      policy_->placed(id, Place::mapped);
    }
    first += count;
  }
}

void Pager::died(Granule head, std::uint32_t granules) {
  const Granule end = head + granules;
  for (Granule g = head; g < end;) {
    const BlockId id = books_.block_at(g);
    if (id == kNoBlock) {
      ++g;
      continue;
    }
    g = books_[id].first + books_[id].count;
    policy_->removed(id);
    end_block(id);
  }
}

// Whether the heap has freed the block's object since commands were last taken: the memory may belong to
// another object by now, and may hold its bytes. Asked after a block's pages were taken, or marked present:
// what the program does to them from then on waits for us, and what it did before, it did after its command
// was pushed.
bool Pager::death_pending(const Block& block) const {
  return link_->queue.any([&](const Command& command) {
    return command.kind == Command::Kind::died && block.first - command.head < command.granules;
  });
}

// Books granules of a block as mapped, before its pages are moved there. False when its object was freed
// meanwhile: nothing has changed then, and take_commands() will end the block.
bool Pager::mark_present(const Block& block, GranuleMask mask) {
  const Chunk chunk = chunk_of(block.first);
  books_.set_present(chunk, mask);
  if (!death_pending(block)) return true;
  books_.clear_present(chunk, mask);
  return false;
}

// Takes a block out of the books; its frames become dead or free, its extent is given back. With I/O in
// flight that waits until the I/O ends.
void Pager::end_block(BlockId id) {
  Block& block = books_[id];
  const Chunk chunk = chunk_of(block.first);
  const GranuleMask mask = BlockTable::mask_of(block);
  if (block.ahead) forget_ahead(id);
  if (block.mapped_ahead) {
    for (std::uint32_t i = 0; i < mapped_ahead_size_; ++i) {
      if (mapped_ahead_[i] != id) continue;
      std::memmove(mapped_ahead_ + i, mapped_ahead_ + i + 1, (mapped_ahead_size_ - i - 1) * sizeof(BlockId));
      --mapped_ahead_size_;
      break;
    }
    block.mapped_ahead = false;
  }
  if (last_touched_ == id) last_touched_ = kNoBlock;
  if (block.wanted)
    mover_->wake(arena_->address_of(block.first),
                 bytes_of(block));  // a read of what is freed: it tries again
  apply_removals(id, nullptr);
  unlist(id);

  books_.set_dead(chunk, books_.present(chunk) & mask);
  if (block.transfer != ~0u && transfers_[block.transfer].in_flight != 0) {
    block.dying = true;
    books_.detach(id);
    return;
  }
  if (block.transfer != ~0u) end_transfer(transfers_[block.transfer]);
  if (block.state == Residency::staged_dirty || block.state == Residency::writing)
    staged_out_granules_ -= block.count;
  if (block.slot.valid()) shadow_.release(block.slot);
  if (block.extent.valid()) store_->release(block.extent);
  books_.destroy(id);
}

void Pager::want(BlockId id) {
  Block& block = books_[id];
  if (!block.wanted) {
    block.wanted = true;
    block.fault_ns = monotonic_ns();
  }
}

void Pager::on_fault(std::uint64_t address) {
  ++work_done_;
  auto* const page = reinterpret_cast<void*>(round_down(address, kPageBytes));
  if (!arena_->contains(page)) return mover_->wake(page, kPageBytes);
  const Granule g = arena_->granule_at(page);
  const BlockId id = books_.block_at(g);
  if (id == kNoBlock) {
    // Memory that the program has freed (or never got): as after free() in any allocator, its contents are
    // undefined.
    books_.set_present(chunk_of(g), GranuleMask::range(offset_in_chunk(g), 1));
    books_.set_dead(chunk_of(g), GranuleMask::range(offset_in_chunk(g), 1));
    return mover_->fill_zero_page(page);
  }
  Block& block = books_[id];
  if (block.state == Residency::mapped) {
    const std::uint32_t at = offset_in_chunk(g);
    const GranuleMask present = books_.present(chunk_of(g));
    // Present: a stale message, or a hole of one page, which reads as zero.
    if (present.test(at)) {
      if (block.mapped_ahead) infer_mapped_ahead();
      return mover_->fill_zero_page(page);
    }
  }
  want(id);
  (void)serve(id);
}

bool Pager::serve(BlockId id) {
  Block& block = books_[id];
  switch (block.state) {
    case Residency::empty:
    case Residency::mapped:
      if (populate(id)) return true;
      unlist(id);
      books_.append(waiting_, ListName::waiting, id);
      return false;
    case Residency::staged_dirty:
      unlist(id);
      if (block.transfer != ~0u) end_transfer(transfers_[block.transfer]);
      if (!map_slot(id)) return false;
      count(counters_->faults_rescued);
      answered(id, Touch::rescued);
      return true;
    case Residency::staged_clean:
      unlist(id);
      if (!map_slot(id)) return false;
      count(counters_->faults_rescued);
      answered(id, Touch::rescued);
      return true;
    case Residency::writing:
    case Residency::reading: return false;  // when its I/O ends
    case Residency::stored: {
      const Slot slot = obtain_frame(block.count, true);
      if (slot.valid() && begin_read(id, slot, true)) return false;
      if (slot.valid()) shadow_.release(slot);
      if (block.list == ListName::none) books_.append(waiting_, ListName::waiting, id);
      return false;
    }
  }
  return false;
}

// Gives a block that is empty, or mapped in part, the frames it lacks.
bool Pager::populate(BlockId id) {
  Block& block = books_[id];
  const Chunk chunk = chunk_of(block.first);
  for (;;) {
    const GranuleMask absent = BlockTable::mask_of(block) & ~books_.present(chunk);
    if (absent.none()) break;
    const std::uint32_t first = absent.first();
    if (!populate_run(block, first, absent.run_at(first))) return false;
  }
  if (block.state == Residency::empty) block.state = next_residency(block.state, Cause::populate);
  count(counters_->faults_first);
  answered(id, Touch::first);
  return true;
}

bool Pager::populate_run(Block& block, std::uint32_t first, std::uint32_t run) {
  const Slot slot = obtain_frame(run, true);
  if (!slot.valid()) return false;
  const Chunk chunk = chunk_of(block.first);
  std::byte* const target = arena_->address_of(chunk * kGranulesPerChunk + first);
  std::byte* const frame = shadow_.address_of(slot);
  const std::uint64_t bytes = std::uint64_t(run) * kGranuleBytes;
  if (block.zero && !shadow_.known_zero(slot)) std::memset(frame, 0, bytes);
  if (!mark_present(block, GranuleMask::range(first, run))) {
    shadow_.release(slot);
    return false;
  }
  const MoveOutcome outcome = mover_->move_home(target, frame, bytes);
  count(counters_->moves);
  if (outcome.moved_bytes != bytes) {
    const int error = mover_->copy_in(target + outcome.moved_bytes, frame + outcome.moved_bytes,
                                      bytes - outcome.moved_bytes);
    count(counters_->copies);
    count(Fallback::copy_in);
    mover_->wake(target, bytes);
    if (error != 0) fatal("a frame cannot be mapped", &block, error);
    shadow_.release(slot);  // what was moved left holes; counted as frames, so on the safe side
    return true;
  }
  shadow_.emptied(slot);
  shadow_.release(slot);
  return true;
}

// Moves a staged block's pages back to its home. False after fatal(), and when its object was freed
// meanwhile.
bool Pager::map_slot(BlockId id) {
  Block& block = books_[id];
  if (!mark_present(block, BlockTable::mask_of(block))) return false;
  if (block.state == Residency::staged_dirty) staged_out_granules_ -= block.count;
  std::byte* const home = arena_->address_of(block.first);
  std::byte* const frame = shadow_.address_of(block.slot);
  const std::uint64_t bytes = std::uint64_t(block.count) * kGranuleBytes;
  apply_removals(id, frame);
  MoveOutcome outcome = mover_->move_home(home, frame, bytes);
  count(counters_->moves);
  bool copied = false;
  while (outcome.moved_bytes != bytes && outcome.errno_value == EEXIST) {
    // A page that is there already is newer than the copy in the shadow.
    const std::uint64_t at = outcome.moved_bytes + kPageBytes;
    copied = true;
    outcome = at < bytes ? mover_->move_home(home + at, frame + at, bytes - at) : MoveOutcome{bytes - at, 0};
    outcome.moved_bytes += at;
  }
  if (outcome.moved_bytes != bytes) {
    const std::uint64_t at = outcome.moved_bytes;
    const int error = mover_->copy_in(home + at, frame + at, bytes - at);
    count(counters_->copies);
    count(Fallback::copy_in);
    copied = true;
    if (error != 0) {
      fatal("a block cannot be mapped", &block, error);
      return false;
    }
  }
  if (copied) {
    mover_->wake(home, bytes);
    mover_->discard(frame, bytes);
  }
  shadow_.emptied(block.slot);
  shadow_.release(block.slot);
  block.slot = {};
  block.state = next_residency(block.state, Cause::rescue);
  return true;
}

// The block is mapped: tells the policy, and takes it out of what was read ahead.
void Pager::answered(BlockId id, Touch how) {
  Block& block = books_[id];
  const std::uint64_t now = monotonic_ns();
  if (block.fault_ns != 0) count(counters_->stall_ns, now - block.fault_ns);
  block.fault_ns = 0;
  block.wanted = false;
  infer_mapped_ahead();
  policy_->touched(id, how, now);
  const bool soon = block.answered_ns != 0 && answers_ - block.answer <= kRefaultAnswers;
  block.refaults = !soon ? 0 : block.refaults < kMostRefaults ? block.refaults + 1 : kMostRefaults;
  block.answer = ++answers_;
  block.answered_ns = now;
  unlist(id);
  books_.append(settling_, ListName::settling, id);
  if (block.ahead) touched_ahead(id);
  last_touched_ = id;
  ahead_exhausted_ = false;
}

// Blocks that were mapped ahead of their touch count as touched once a later one is.
void Pager::infer_mapped_ahead() {
  if (mapped_ahead_size_ == 0) return;
  const std::uint64_t now = monotonic_ns();
  for (std::uint32_t i = 0; i < mapped_ahead_size_; ++i) {
    const BlockId id = mapped_ahead_[i];
    books_[id].mapped_ahead = false;
    policy_->touched(id, Touch::inferred, now);
    policy_->placed(id, Place::mapped);
  }
  mapped_ahead_size_ = 0;
}

// A block that was read ahead is touched: those before it in the expected order were passed over; some after
// it are mapped without waiting for their touch, as far as the policy trusts the order.
void Pager::touched_ahead(BlockId id) {
  std::uint32_t at = 0;
  while (at < ahead_size_ && ahead_[at] != id) ++at;
  if (at == ahead_size_) return;
  for (std::uint32_t i = 0; i <= at; ++i) {
    Block& passed = books_[ahead_[i]];
    passed.ahead = false;
    ahead_granules_ -= passed.count;
    if (i == at) continue;
    if (passed.state == Residency::staged_clean) {
      policy_->read_in_vain(ahead_[i]);
      count(counters_->bytes_in_vain, std::uint64_t(passed.count) * kGranuleBytes);
      books_.append(clean_, ListName::clean, ahead_[i]);
    }
  }
  std::uint32_t next = at + 1;
  for (std::uint32_t trust = policy_->map_ahead(); trust > 0 && next < ahead_size_; --trust, ++next) {
    Block& block = books_[ahead_[next]];
    if (block.state != Residency::staged_clean || mapped_ahead_size_ == kAheadMax) break;
    block.ahead = false;
    ahead_granules_ -= block.count;
    if (!map_slot(ahead_[next])) {
      ++next;
      break;
    }
    block.mapped_ahead = true;
    mapped_ahead_[mapped_ahead_size_++] = ahead_[next];
  }
  std::memmove(ahead_, ahead_ + next, (ahead_size_ - next) * sizeof(BlockId));
  ahead_size_ -= next;
}

// Zeroes what the program dropped of a block while it was away. `frame` null: forgets it.
void Pager::apply_removals(BlockId id, std::byte* frame) {
  for (std::uint32_t i = 0; i < removals_size_;) {
    if (removals_[i].block != id) {
      ++i;
      continue;
    }
    if (frame != nullptr) std::memset(frame + removals_[i].offset, 0, removals_[i].bytes);
    removals_[i] = removals_[--removals_size_];
  }
}

// The program (not the heap) dropped, unmapped or moved pages of the arena. What is stored or staged of them
// must read as zero from now on: bring the block home, then the range is empty there as the program asked.
void Pager::on_removed(std::uint64_t start, std::uint64_t end) {
  const std::uint64_t low = arena_->base(), high = low + arena_->opened_bytes();
  if (start < low) start = low;
  if (end > high) end = high;
  for (std::uint64_t at = start; at < end;) {
    const Granule g = Granule((at - low) / kGranuleBytes);
    const BlockId id = books_.block_at(g);
    if (id == kNoBlock) {
      at = low + std::uint64_t(g + 1) * kGranuleBytes;
      continue;
    }
    Block& block = books_[id];
    const std::uint64_t block_start = low + std::uint64_t(block.first) * kGranuleBytes;
    const std::uint64_t block_end = block_start + std::uint64_t(block.count) * kGranuleBytes;
    const std::uint64_t from = at > block_start ? at : block_start, to = end < block_end ? end : block_end;
    block.zero = true;  // what was never populated of it reads as zero, too
    if (from == block_start && to == block_end && block.state == Residency::stored) {
      // All of it: forget the stored copy.
      store_->release(block.extent);
      block.extent = {};
      block.has_copy = false;
      block.state = Residency::empty;
      block.zero = true;
      policy_->placed(id, Place::none);
    } else if (block.state == Residency::mapped) {
      // The kernel drops the pages after this message was read, not yet now: a block staged in that gap would
      // bring old bytes back later. It stays where it is for a while.
      if (block.list == ListName::waiting)
        block.held_since_ns = monotonic_ns();
      else
        hold(id);
    } else if (block.state != Residency::empty) {
      if (removals_size_ == kRemovals)
        return fatal("too many ranges were dropped by the program at once", &block, ENOMEM);
      removals_[removals_size_++] = {id, std::uint32_t(from - block_start), std::uint32_t(to - from)};
      want(id);
      (void)serve(id);
    }
    at = block_end;
  }
}

}  // namespace terrace::runtime
