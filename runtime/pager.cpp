#include "runtime/pager.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/line.hpp"
#include "base/linux_abi.hpp"
#include "base/resident.hpp"
#include "base/syscall.hpp"

namespace terrace::runtime {

using tiering::OnlinePolicy;

namespace {

constexpr std::uint64_t kTickNs = 10 * kNsPerMs;
// After work, look again for this long before sleeping: waking a sleeping pager costs a fault 30 to 50 us.
constexpr std::uint64_t kSpinNs = 30'000;
// Share of the reserved store that is promised: extents lie within 2 MiB segments, so some space is lost
// between them.
constexpr std::uint64_t promised(std::uint64_t reserved_bytes) { return reserved_bytes / 8 * 7; }
constexpr std::uint64_t to_reserve(std::uint64_t live_bytes) { return live_bytes / 7 * 8 + 16 * kMiB; }

}  // namespace

Status Pager::start(const PagerParts& parts, const PagerOptions& options) {
  options_ = options;
  arena_ = parts.arena;
  heap_ = parts.heap;
  link_ = parts.link;
  mover_ = parts.mover;
  device_ = parts.device;
  store_ = parts.store;
  policy_ = parts.policy;
  job_ = parts.job;
  counters_ = &job_->counters;
  owner_pidfd_ = parts.owner_pidfd;
  random_ = options.seed * 2 + 1;
  requested_limit_bytes_.store(options.object_limit_bytes, std::memory_order_relaxed);

  resident_descriptor_ = open_resident_size();
  if (resident_descriptor_ < 0) return Status::from_errno(-resident_descriptor_, "opening /proc/self/statm");
  if (Status s = books_.init(arena_->reserved_bytes()); !s.ok()) return s;
  if (Status s = map_shadow(options.shadow_bytes); !s.ok()) return s;
  if (Status s = mover_->init_trash(); !s.ok()) return s;
  // Until fork is supported (process life), a child that touches an object must die clearly instead of
  // reading zeros.
  auto* const arena = reinterpret_cast<void*>(arena_->base());
  (void)sys(SYS_madvise, arena, arena_->reserved_bytes(), MADV_DONTFORK);
  if (Status s = mover_->watch_program(arena, arena_->reserved_bytes()); !s.ok()) return s;
  // From here on no page appears in the arena except by our hand: what is present now is found once and for
  // all.
  if (Status s = find_present(); !s.ok()) return s;
  set_limit_from_rest();
  heap_->for_each_object(&Pager::book_visitor, this);
  for (Chunk c = 0; c < arena_->opened_bytes() / kChunkBytes; ++c) {
    GranuleMask dead = books_.present(c);
    for (std::uint32_t i = dead.first(); i < kGranulesPerChunk; ++i)
      if (dead.test(i) && books_.block_at(c * kGranulesPerChunk + i) != kNoBlock)
        dead &= ~GranuleMask::range(i, 1);
    if (dead.any()) books_.set_dead(c, dead);
  }
  const std::uint64_t live = booked_granules_ * kGranuleBytes;
  if (Status s = store_->reserve(to_reserve(live)); !s.ok() && promised(store_->reserved_bytes()) < live)
    return s;
  link_->room_bytes.store(promised(store_->reserved_bytes()), std::memory_order_seq_cst);
  link_->present = books_.present_words();
  next_tick_ns_ = monotonic_ns() + kTickNs;
  next_forced_ns_ = 0;
  link_->active.store(1, std::memory_order_seq_cst);
  return Status::success();
}

void Pager::stop() {
  link_->active.store(0, std::memory_order_seq_cst);
  link_->present = nullptr;
  mover_->close();  // first: unmapping what it watches would wait for a message that nobody reads any more
  if (resident_descriptor_ >= 0) (void)sys(SYS_close, resident_descriptor_);
  books_.release();
  if (shadow_mapping_ != nullptr) (void)sys(SYS_munmap, shadow_mapping_, shadow_mapping_bytes_);
  shadow_mapping_ = nullptr;
}

Status Pager::map_shadow(std::uint64_t bytes) {
  const std::uint32_t chunks = std::uint32_t(bytes / kChunkBytes);
  const std::uint64_t table_bytes = round_up(ShadowPool::table_bytes(chunks), kPageBytes);
  // Guard pages on both sides: mappings merge with their neighbours.
  shadow_mapping_bytes_ = bytes + table_bytes + 2 * kChunkBytes;
  const long mapped = sys(SYS_mmap, nullptr, shadow_mapping_bytes_, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped < 0 && mapped > -4096) return Status::from_errno(int(-mapped), "mapping the shadow");
  shadow_mapping_ = reinterpret_cast<void*>(mapped);
  auto* const base = reinterpret_cast<std::byte*>(round_up(std::uint64_t(mapped) + kPageBytes, kChunkBytes));
  auto* const tables = base + bytes + kPageBytes;
  long error = sys(SYS_mprotect, base, bytes, PROT_READ | PROT_WRITE);
  if (error == 0) error = sys(SYS_mprotect, tables, table_bytes, PROT_READ | PROT_WRITE);
  if (error != 0) return Status::from_errno(int(-error), "opening the shadow");
  (void)sys(SYS_madvise, base, bytes, MADV_HUGEPAGE);
  (void)sys(SYS_madvise, shadow_mapping_, shadow_mapping_bytes_, MADV_DONTDUMP);
  (void)sys(SYS_madvise, shadow_mapping_, shadow_mapping_bytes_, MADV_DONTFORK);
  shadow_.init(base, chunks, tables);
  return mover_->watch_shadow(base, bytes);
}

Status Pager::find_present() {
  const long pagemap = sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0);
  if (pagemap < 0) return Status::from_errno(int(-pagemap), "opening /proc/self/pagemap");
  Status status = Status::success();
  std::uint64_t at = arena_->base();
  const std::uint64_t end = at + arena_->opened_bytes();
  while (at < end) {
    abi::PageRegion regions[64];
    abi::PmScanArg scan{};
    scan.size = sizeof scan;
    scan.start = at;
    scan.end = end;
    scan.vec = std::uint64_t(regions);
    scan.vec_len = 64;
    scan.category_anyof_mask = abi::kPageIsPresent | abi::kPageIsSwapped;
    scan.return_mask = abi::kPageIsPresent | abi::kPageIsSwapped;
    const long found = sys(SYS_ioctl, pagemap, abi::kPagemapScan, &scan);
    if (found < 0) {
      status = Status::from_errno(int(-found), "PAGEMAP_SCAN (kernel 6.7)");
      break;
    }
    for (long i = 0; i < found; ++i) {
      const Granule first = Granule((regions[i].start - arena_->base()) / kGranuleBytes);
      const Granule last = Granule((regions[i].end - 1 - arena_->base()) / kGranuleBytes);
      for (Granule g = first; g <= last;) {
        const Granule chunk_end = (chunk_of(g) + 1) * kGranulesPerChunk;
        const std::uint32_t run = (chunk_end <= last ? chunk_end : last + 1) - g;
        books_.set_present(chunk_of(g), GranuleMask::range(offset_in_chunk(g), run));
        g += run;
      }
    }
    at = scan.walk_end;
  }
  (void)sys(SYS_close, pagemap);
  return status;
}

void Pager::book_visitor(void* self, Granule head, std::uint32_t granules) {
  auto* const pager = static_cast<Pager*>(self);
  pager->booked_granules_ += granules;
  pager->born(head, granules, true);
}

bool Pager::run_once(int timeout_ms) {
  if (fatal_ || owner_gone_) return false;
  const std::uint64_t now = monotonic_ns();
  job_->heartbeat.fetch_add(1, std::memory_order_relaxed);
  if (now >= next_tick_ns_) tick(now);
  if (work(now)) {
    last_work_ns_ = monotonic_ns();
    job_->heartbeat_due_ns.store(last_work_ns_, std::memory_order_relaxed);
  } else if (now - last_work_ns_ > kSpinNs) {
    sleep(timeout_ms);
  }
  return !fatal_ && !owner_gone_;
}

// One round of work in order of urgency. True when something was done.
bool Pager::work(std::uint64_t now) {
  const std::uint64_t before = work_done_;
  take_messages();
  take_commands();
  take_completions();
  while (waiting_.head != kNoBlock && !fatal_) {
    const BlockId id = waiting_.head;
    books_.remove(waiting_, id);
    const bool mapped = serve(id);
    if (mapped || books_[id].state == Residency::reading) {
      ++work_done_;
      continue;
    }
    break;  // no frame yet: serve() put it back
  }
  if (fatal_) return false;
  demand_reading_ = false;
  for (const Transfer& transfer : transfers_)
    demand_reading_ |=
        transfer.kind == TransferKind::read && books_[transfer.block].wanted && ahead_size_ == 0;
  device_->flush();  // what is waited for starts before anything is hashed or moved
  if (hash_slice()) ++work_done_;
  settle(now);
  if (options_.force_eviction) force_eviction(now);
  if (make_room(now)) ++work_done_;
  read_ahead(now);
  // Settling blocks leave soon; but where even a long stay did not suffice, the program needs more at once
  // than there is.
  if (waiting_.head != kNoBlock && transfers_used_ == 0 && device_->in_flight() == 0 && outgoing_.size == 0 &&
      (settling_.size == 0 || books_[waiting_.head].refaults == kMostRefaults))
    overshoot();
  device_->flush();
  return work_done_ != before;
}

// A block is wanted, nothing is on its way and nothing can leave: one chunk more than the limit, or the end.
void Pager::overshoot() {
  if (!shadow_.populate_chunk())
    return fatal("no memory for a block that the program needs, and nothing can leave",
                 &books_[waiting_.head], ENOMEM);
  count(counters_->overshoots);
  ++work_done_;
}

void Pager::tick(std::uint64_t now) {
  next_tick_ns_ = now + kTickNs;
  set_limit_from_rest();
  check_timeouts(now);
  retry_unmovable(now);
  const std::uint64_t wanted = link_->room_wanted_bytes.load(std::memory_order_seq_cst);
  if (wanted > promised(store_->reserved_bytes()) &&
      wanted > link_->room_refused_bytes.load(std::memory_order_relaxed)) {
    const Status grown = store_->reserve(to_reserve(wanted));
    if (!grown.ok() && promised(store_->reserved_bytes()) < wanted) {
      count(Fallback::store_full);
      link_->room_refused_bytes.store(wanted, std::memory_order_seq_cst);
    }
  }
  link_->room_bytes.store(promised(store_->reserved_bytes()), std::memory_order_seq_cst);
}

void Pager::sleep(int timeout_ms) {
  // The heap's queue and the budget are looked at in every round, so never sleep long while the program may
  // run.
  if (waiting_.size != 0 && settling_.size != 0 && timeout_ms > 1) timeout_ms = 1;
  job_->heartbeat_due_ns.store(monotonic_ns() + std::uint64_t(timeout_ms) * kNsPerMs,
                               std::memory_order_relaxed);
  pollfd watched[3] = {
      {mover_->descriptor(), POLLIN, 0}, {device_->poll_descriptor(), POLLIN, 0}, {owner_pidfd_, POLLIN, 0}};
  timespec timeout{timeout_ms / 1000, (timeout_ms % 1000) * 1'000'000l};
  (void)sys(SYS_ppoll, watched, 3, &timeout, nullptr, 0);
  if (owner_pidfd_ >= 0 && watched[2].revents != 0) owner_gone_ = true;
}

// Ends the job with one line: what, where, why, and what helps.
void Pager::fatal(const char* what, const Block* block, int errno_value) {
  if (fatal_) return;
  fatal_ = true;
  Line line;
  line.text("terrace: ").text(what);
  if (block != nullptr) {
    line.text(" object=").hex(std::uint64_t(arena_->address_of(block->first)));
    line.field("bytes", std::int64_t(bytes_of(*block)));
    if (block->extent.valid()) line.field("extent", std::int64_t(block->extent.offset_bytes()));
    line.field("state", to_text(block->state));
  }
  line.text(" errno=").error(errno_value);
  line.text(errno_value == ENOSPC || errno_value == EFBIG
                ? "; free space in the store's directory, or name another one with --store"
            : errno_value == ENOMEM ? "; raise --dram"
                                    : "; look at the disk under --store (dmesg), or name another one");
  say(*job_, line.view());
  job_->phase.store(PagerPhase::fatal, std::memory_order_release);
}

void Pager::validate() const {
  books_.validate();
  shadow_.validate();
}

}  // namespace terrace::runtime
