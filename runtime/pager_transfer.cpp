// What happens to a staged block: it is compared with its stored copy, written, read and verified, slice by
// slice so that a fault never waits long for a hash.
#include <cerrno>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "runtime/pager.hpp"

namespace terrace::runtime {

using tiering::OnlinePolicy;
using tiering::Touch;
using Place = OnlinePolicy::Place;

namespace {

constexpr double kCleanMemory = 64;  // blocks

// A pager that works looks at its time limits every 10 ms.
constexpr std::uint64_t kAwayNs = 500 * kNsPerMs;

// The id of a request names its transfer, the piece, and the use of the transfer, so that a completion that
// comes late is never counted for the next use.
std::uint64_t request_id(std::uint32_t transfer, std::uint32_t piece, std::uint32_t sequence) {
  return std::uint64_t(sequence) << 32 | std::uint64_t(piece) << 16 | transfer;
}

}  // namespace

io::BlockIdentity Pager::identity_of(const Block& block) const {
  return {store_->id(), block.extent.offset_bytes(), block.generation, block.extent.length_bytes()};
}

Pager::Transfer* Pager::begin_transfer(BlockId id, TransferKind kind) {
  for (std::uint32_t i = 0; i < kTransfers; ++i) {
    Transfer& transfer = transfers_[i];
    if (transfer.kind != TransferKind::none) continue;
    transfer.block = id;
    transfer.kind = kind;
    transfer.pieces = 1;
    transfer.arrived = 0;
    transfer.attempts = 0;
    transfer.errno_value = 0;
    transfer.sequence = ++sequence_;
    transfer.hashed_bytes = 0;
    transfer.in_flight = 0;
    transfer.started_ns = monotonic_ns();
    transfer.hasher.reset();
    books_[id].transfer = i;
    ++transfers_used_;
    return &transfer;
  }
  return nullptr;
}

void Pager::end_transfer(Transfer& transfer) {
  TERRACE_CHECK(transfer.in_flight == 0, "a transfer ends after its last request");
  books_[transfer.block].transfer = ~0u;
  transfer.kind = TransferKind::none;
  transfer.block = kNoBlock;
  --transfers_used_;
}

bool Pager::submit(const io::Request& request) { return device_->submit(request).ok(); }

// Starts reading a stored block into a slot that has frames. False when the device or the transfers are full.
bool Pager::begin_read(BlockId id, const Slot& slot, bool demanded) {
  Block& block = books_[id];
  const std::uint64_t bytes = block.extent.length_bytes();
  std::uint32_t pieces = demanded ? std::uint32_t(bytes / kPieceBytes) : 1;
  pieces = pieces < 1 ? 1 : pieces > kPieces ? kPieces : pieces;
  const std::uint32_t room = device_->depth() - device_->in_flight();
  if (room == 0) return false;
  if (pieces > room) pieces = room;
  Transfer* transfer = begin_transfer(id, TransferKind::read);
  if (transfer == nullptr) return false;
  if (block.list == ListName::waiting) books_.remove(waiting_, id);
  shadow_.filled(slot);  // no longer zeros
  block.slot = slot;
  block.state = next_residency(block.state, Cause::read_begin);
  policy_->placed(id, Place::none);
  transfer->pieces = std::uint8_t(pieces);
  std::byte* const frame = shadow_.address_of(slot);
  const std::uint64_t piece_bytes = pieces == 1 ? bytes : round_up(bytes / pieces, kGranuleBytes);
  for (std::uint32_t i = 0; i < pieces; ++i) {
    const std::uint64_t from = i * piece_bytes, to = i + 1 == pieces ? bytes : from + piece_bytes;
    const io::Request request{request_id(block.transfer, i, transfer->sequence), io::Op::read, frame + from,
                              block.extent.offset_bytes() + from, std::uint32_t(to - from)};
    if (!submit(request)) {
      fatal("a read was refused by its device", &block, EIO);
      return true;
    }
    ++transfer->in_flight;
  }
  count(counters_->bytes_in, bytes);
  count(counters_->bytes_contiguous, bytes);
  return true;
}

// Takes staged blocks that wait to be compared into transfers.
void Pager::begin_compare() {
  while (outgoing_.head != kNoBlock && transfers_used_ < kTransfers - 16) {
    const BlockId id = outgoing_.head;
    if (begin_transfer(id, TransferKind::compare) == nullptr) return;
    books_.remove(outgoing_, id);
  }
}

// A thread of the program waits for a read: writes would double its time on the disk, so they wait too as
// long as there are frames for what comes next.
bool Pager::yields_to_demand() const {
  return demand_reading_ && supply_granules() >= 2 * kGranulesPerChunk && waiting_.size == 0;
}

bool Pager::may_write() const { return device_->in_flight() < device_->depth() && !yields_to_demand(); }

bool Pager::submit_write(Transfer& transfer) {
  Block& block = books_[transfer.block];
  const io::Request request{request_id(block.transfer, 0, transfer.sequence), io::Op::write,
                            shadow_.address_of(block.slot), block.extent.offset_bytes(),
                            std::uint32_t(block.extent.length_bytes())};
  if (!submit(request)) return false;
  transfer.kind = TransferKind::write;
  transfer.in_flight = 1;
  transfer.started_ns = monotonic_ns();
  return true;
}

void Pager::take_completions() {
  io::Completion completions[32];
  while (!fatal_) {
    const std::size_t got = device_->poll(completions);
    for (std::size_t i = 0; i < got; ++i) on_completion(completions[i]);
    if (got < 32) return;
  }
}

void Pager::on_completion(const io::Completion& completion) {
  ++work_done_;
  const std::uint32_t index = std::uint32_t(completion.id & 0xffff);
  const std::uint32_t piece = std::uint32_t(completion.id >> 16 & 0xffff);
  if (index >= kTransfers) return;
  Transfer& transfer = transfers_[index];
  if (transfer.kind == TransferKind::none || transfer.sequence != std::uint32_t(completion.id >> 32) ||
      transfer.in_flight == 0)
    return;
  --transfer.in_flight;
  if (completion.errno_value != 0) {
    count(counters_->io_errors);
    if (transfer.errno_value == 0) transfer.errno_value = completion.errno_value;
  }
  transfer.arrived |= std::uint8_t(1u << piece);
  Block& block = books_[transfer.block];
  if (block.dying) {
    if (transfer.in_flight != 0) return;
    const BlockId id = transfer.block;
    end_transfer(transfer);
    if (block.state == Residency::writing) staged_out_granules_ -= block.count;
    if (block.slot.valid()) shadow_.release(block.slot);
    if (block.extent.valid()) store_->release(block.extent);
    books_.destroy(id);
    return;
  }
  if (transfer.kind == TransferKind::write) return write_complete(transfer);
  if (transfer.errno_value != 0 && transfer.in_flight == 0) return read_complete(transfer);
}

// Hashes one slice of the most urgent transfer. False when there is nothing to hash.
bool Pager::hash_slice() {
  begin_compare();
  if (transfers_used_ == 0) return false;
  Transfer* best = nullptr;
  std::uint32_t best_rank = 0;
  for (std::uint32_t k = 0; k < kTransfers; ++k) {
    Transfer& transfer = transfers_[(hash_cursor_ + k) % kTransfers];
    if (transfer.kind == TransferKind::none) continue;
    const Block& block = books_[transfer.block];
    if (block.dying) continue;
    std::uint32_t rank = 0;
    if (transfer.kind == TransferKind::read && transfer.errno_value == 0) {
      const std::uint64_t bytes = block.extent.length_bytes();
      const std::uint64_t piece_bytes =
          transfer.pieces == 1 ? bytes : round_up(bytes / transfer.pieces, kGranuleBytes);
      const std::uint32_t piece = std::uint32_t(transfer.hashed_bytes / piece_bytes);
      if ((transfer.arrived >> piece & 1) == 0) continue;
      rank = block.wanted ? 3 : 2;
    } else if (transfer.kind == TransferKind::compare &&
               (transfer.hashed_bytes < bytes_of(block) || may_write())) {
      rank = 1;  // to hash, or hashed and waiting for a place in the device's queue
    }
    if (rank > best_rank) {
      best_rank = rank;
      best = &transfer;
      if (rank == 3) break;
    }
  }
  if (best == nullptr) return false;
  return hash_some(*best);
}

bool Pager::hash_some(Transfer& transfer) {
  const Block& block = books_[transfer.block];
  const std::uint64_t bytes = bytes_of(block);
  const std::byte* const frame = shadow_.address_of(block.slot);
  std::uint64_t slice = bytes - transfer.hashed_bytes;
  if (slice > kHashSliceBytes) slice = kHashSliceBytes;
  if (transfer.kind == TransferKind::read && transfer.pieces > 1) {
    // Never beyond the piece that has arrived.
    const std::uint64_t piece_bytes = round_up(bytes / transfer.pieces, kGranuleBytes);
    const std::uint64_t left = piece_bytes - transfer.hashed_bytes % piece_bytes;
    if (slice > left) slice = left;
  }
  if (slice > 0) {
    transfer.hasher.update(frame + transfer.hashed_bytes, slice);
    transfer.hashed_bytes += std::uint32_t(slice);
    if (transfer.hashed_bytes < bytes) return true;
    transfer.content = transfer.hasher.digest();
  }
  hash_cursor_ = block.transfer + 1;
  if (transfer.kind == TransferKind::read) {
    read_complete(transfer);
  } else {
    compare_complete(transfer);
  }
  return true;
}

void Pager::read_complete(Transfer& transfer) {
  const BlockId id = transfer.block;
  Block& block = books_[id];
  int error = transfer.errno_value;
  if (error == 0 && !(io::block_checksum(transfer.content, identity_of(block)) == block.checksum)) {
    count(counters_->checksum_failures);
    error = EBADMSG;
  }
  if (error != 0) {
    // Once more, whole: a transient error, or bytes that were damaged on the way.
    const std::uint8_t attempts = std::uint8_t(transfer.attempts + 1);
    const Slot slot = block.slot;
    end_transfer(transfer);
    block.slot = {};
    block.state = next_residency(block.state, Cause::read_failed);
    policy_->placed(id, Place::stored);
    if (attempts < kAttempts && begin_read(id, slot, false)) {
      transfers_[block.transfer].attempts = attempts;
      return;
    }
    shadow_.release(slot);
    if (block.ahead) forget_ahead(id);
    if (block.wanted && attempts < kAttempts) {
      books_.append(waiting_, ListName::waiting, id);  // the device is full
    } else if (block.wanted) {
      fatal(error == EBADMSG ? "a stored block came back with other bytes (checksum)"
                             : "a stored block cannot be read",
            &block, error);
    }
    return;
  }
  end_transfer(transfer);
  block.state = next_residency(block.state, Cause::read_done);
  if (block.ahead) count(counters_->bytes_in_prefetched, bytes_of(block));
  if (block.wanted) {
    const bool was_ahead = block.ahead;
    if (!map_slot(id)) return;
    count(was_ahead ? counters_->faults_rescued : counters_->faults_demand);
    answered(id, was_ahead ? Touch::rescued : Touch::demand);
  } else if (!block.ahead) {
    books_.append(clean_, ListName::clean, id);
  }
}

void Pager::compare_complete(Transfer& transfer) {
  const BlockId id = transfer.block;
  Block& block = books_[id];
  if (block.has_copy && io::block_checksum(transfer.content, identity_of(block)) == block.checksum) {
    end_transfer(transfer);
    block.state = next_residency(block.state, Cause::same_hash);
    staged_out_granules_ -= block.count;
    count(counters_->blocks_dropped_clean);
    clean_share_ += (1 - clean_share_) / kCleanMemory;
    books_.append(clean_, ListName::clean, id);
    return;
  }
  if (!block.extent.valid()) {
    block.extent = store_->allocate(block.count);
    if (!block.extent.valid()) {
      (void)store_->reserve(store_->reserved_bytes() + kChunkBytes);
      block.extent = store_->allocate(block.count);
    }
  }
  if (!block.extent.valid()) return keep_home(transfer, ENOSPC);
  if (!may_write()) return;  // hash_slice() comes back when there is room
  block.has_copy = false;    // until the new version is whole
  ++block.generation;
  block.checksum = io::block_checksum(transfer.content, identity_of(block));
  block.state = next_residency(block.state, Cause::write_begin);
  if (!submit_write(transfer)) fatal("a write was refused by its device", &block, EIO);
}

void Pager::write_complete(Transfer& transfer) {
  const BlockId id = transfer.block;
  Block& block = books_[id];
  if (transfer.errno_value != 0) {
    const int error = transfer.errno_value;
    if (++transfer.attempts < kAttempts) {
      // Elsewhere, if possible: the place may be bad, the bytes are still here.
      const io::Extent other = store_->allocate(block.count);
      if (other.valid()) {
        store_->release(block.extent);
        block.extent = other;
        block.checksum = io::block_checksum(transfer.content, identity_of(block));
      }
      transfer.errno_value = 0;
      transfer.sequence = ++sequence_;
      if (submit_write(transfer)) return;
    }
    block.state = next_residency(block.state, Cause::write_failed);
    return keep_home(transfer, error);
  }
  end_transfer(transfer);
  block.has_copy = true;
  block.state = next_residency(block.state, Cause::write_done);
  staged_out_granules_ -= block.count;
  write_failures_ = 0;
  clean_share_ -= clean_share_ / kCleanMemory;
  count(counters_->bytes_out, bytes_of(block));
  count(counters_->blocks_stored);
  count(counters_->bytes_contiguous, bytes_of(block));
  if (block.wanted) {
    (void)serve(id);
  } else {
    books_.append(clean_, ListName::clean, id);
  }
}

// A block that cannot be written goes back to the program and stays there for a while; nothing is lost.
void Pager::keep_home(Transfer& transfer, int errno_value) {
  const BlockId id = transfer.block;
  Block& block = books_[id];
  end_transfer(transfer);
  if (!map_slot(id)) return;
  if (block.wanted) answered(id, Touch::rescued);
  hold(id);
  // The store takes nothing any more: the budget cannot be kept, and the job must not be paged to a
  // standstill.
  if (++write_failures_ >= kWriteFailures) fatal("the store takes no more blocks", &block, errno_value);
}

// Reads ahead along the policy's order: a small window always, beyond it as long as what is read is needed
// before what has to leave for it, so that the disk works while the program computes.
void Pager::read_ahead(std::uint64_t now) {
  if (last_touched_ == kNoBlock || ahead_exhausted_ || options_.force_eviction || yields_to_demand()) return;
  while (ahead_size_ < kAheadMax && waiting_.size == 0 && supply_granules() != 0) {
    const bool deep = ahead_granules_ >= ahead_window();
    if (deep && (policy_->map_ahead() == 0 || ahead_granules_ >= limit_granules_ / 2)) return;
    BlockId next[16];
    const std::size_t room = deep ? 1 : kAheadMax - ahead_size_ < 16 ? kAheadMax - ahead_size_ : 16;
    const BlockId from = ahead_size_ != 0 ? ahead_[ahead_size_ - 1] : last_touched_;
    const std::size_t got = policy_->read_ahead(from, now, {next, room});
    if (got == 0) {
      ahead_exhausted_ = ahead_size_ == 0;
      return;
    }
    if (deep) {
      BlockId victim[1];
      if (policy_->victims(now, victim) == 0) return;
      if (policy_->expected_ns(victim[0], now) <= kDoNoHarm * policy_->expected_ns(next[0], now)) return;
    }
    for (std::size_t i = 0; i < got; ++i) {
      Block& block = books_[next[i]];
      if (block.state != Residency::stored) return;
      const Slot slot = obtain_frame(block.count, false);
      if (!slot.valid()) return;  // when room is made
      if (!begin_read(next[i], slot, false)) {
        shadow_.release(slot);
        return;
      }
      block.ahead = true;
      ahead_[ahead_size_++] = next[i];
      ahead_granules_ += block.count;
    }
  }
}

void Pager::check_timeouts(std::uint64_t now) {
  // Time in which the pager did not run (stopped, frozen with its cgroup, starved) is not the device's:
  // completions may have been waiting all the while.
  const std::uint64_t away_ns = now - timeouts_checked_ns_;
  timeouts_checked_ns_ = now;
  if (away_ns > kAwayNs)
    for (Transfer& transfer : transfers_)
      transfer.started_ns = transfer.started_ns + away_ns < now ? transfer.started_ns + away_ns : now;
  for (Transfer& transfer : transfers_) {
    if (transfer.in_flight == 0) continue;
    if (now - transfer.started_ns > options_.io_timeout_ms * kNsPerMs)
      return fatal("the store's device does not answer", &books_[transfer.block], ETIMEDOUT);
  }
}

}  // namespace terrace::runtime
