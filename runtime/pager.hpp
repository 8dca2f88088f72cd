// The pager: answers the page faults of one program from the shadow and the store, and keeps the program's
// objects within their share of DRAM.
//
// It runs as a process of its own on the program's memory (runtime/pager_process), or as a thread in tests.
// One round (run_once) goes in order of urgency: messages of the kernel and births from the heap,
// completions, blocks that the program waits for, one slice of hashing, then reading ahead and making room.
// It never waits for the program: it takes no lock of the heap, uses no libc heap, no stdio, no errno.
//
// Invariants: resident_granules() == present + shadow frames; it stays at or below the limit except for one
// chunk at a time when nothing can move (then `overshoot` is counted). A block that leaves DRAM has a
// checksum, verified when it returns; what cannot be served ends the job through fatal(), never as a zero
// page.
//
// Sources: pager_faults.cpp (messages, faults, births), pager_transfer.cpp (hashing, reads, writes),
// pager_reclaim.cpp (budget, victims, frames), pager.cpp (start, loop).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "io/block_device.hpp"
#include "io/checksum.hpp"
#include "io/store.hpp"
#include "runtime/arena.hpp"
#include "runtime/block_table.hpp"
#include "runtime/heap.hpp"
#include "runtime/job_page.hpp"
#include "runtime/mover.hpp"
#include "runtime/pager_link.hpp"
#include "runtime/shadow_pool.hpp"
#include "tiering/policy.hpp"

namespace terrace::runtime {

struct PagerParts {
  Arena* arena = nullptr;
  Heap* heap = nullptr;  // read once, at the start, while its lock is held for us
  PagerLink* link = nullptr;
  Mover* mover = nullptr;  // open
  io::BlockDevice* device = nullptr;
  io::Store* store = nullptr;  // open
  tiering::OnlinePolicy* policy = nullptr;
  JobPage* job = nullptr;
  int owner_pidfd = -1;  // readable when the program is gone; -1 in tests
};

struct PagerOptions {
  std::uint64_t dram_bytes = 0;  // for the whole process
  std::uint64_t object_limit_bytes =
      0;  // tests: fixed limit for objects, frames and shadow; 0: from dram_bytes
  std::uint64_t shadow_bytes = 1 * kGiB;  // address space of the shadow
  std::uint32_t io_timeout_ms = 120'000;
  bool force_eviction = false;
  std::uint64_t seed = 0;  // of forced evictions
};

class Pager {
 public:
  // Registers the arena and the shadow, books every live object and present page. Call with the heap's lock
  // held by (or for) the caller; sets link->active at the end. Errors: as Mover and Store report them;
  // no_memory.
  Status start(const PagerParts& parts, const PagerOptions& options);
  void stop();  // tests: closes the mover, unmaps the tables; objects that are not home then are lost

  // One round. Waits up to `timeout_ms` when there is nothing to do. False: the program is gone, or fatal()
  // was called.
  bool run_once(int timeout_ms);

  // Tests and settings: changes the limit while running.
  void set_object_limit(std::uint64_t bytes) {
    requested_limit_bytes_.store(bytes, std::memory_order_relaxed);
  }
  bool failed() const { return fatal_; }
  std::uint64_t resident_granules() const { return books_.present_granules() + shadow_.frames(); }
  std::uint64_t limit_granules() const { return limit_granules_; }
  void validate() const;

 private:
  static constexpr std::uint32_t kTransfers = 128;
  static constexpr std::uint32_t kPieces = 8;               // at most, of one read
  static constexpr std::uint32_t kPieceBytes = 512 * kKiB;  // a demanded block is read in such pieces
  static constexpr std::uint32_t kHashSliceBytes =
      256 * kKiB;                                   // 25 us: how long a fault may wait for hashing
  static constexpr std::uint32_t kAheadMax = 1024;  // blocks read ahead and not yet touched
  static constexpr std::uint32_t kAttempts = 3;     // of a failing transfer
  static constexpr double kDoNoHarm =
      1.25;  // how much later a victim must be needed than what is read ahead for it
  static constexpr std::uint64_t kSettleNs = kNsPerMs;  // see settle_ns()
  // Missed again within so few answers: it was taken away before the program could use it. Four blocks may be
  // needed at once by each of eight threads; a pass over much memory comes back later than that.
  static constexpr std::uint32_t kRefaultAnswers = 32;
  static constexpr std::uint8_t kMostRefaults = 6;     // doublings of the stay: 64 ms
  static constexpr std::uint32_t kWriteFailures = 16;  // in a row, of different blocks: the store is done for
  static constexpr std::uint64_t kLeastLimitBytes = 8 * kMiB;  // of objects, frames and shadow

  enum class TransferKind : std::uint8_t { none, compare, write, read };

  // The work on one staged block: hashing what leaves, writing it, reading and verifying what returns.
  struct Transfer {
    BlockId block = kNoBlock;
    TransferKind kind = TransferKind::none;
    std::uint8_t pieces = 0;   // requests of this transfer
    std::uint8_t arrived = 0;  // bit a piece
    std::uint8_t attempts = 0;
    int errno_value = 0;         // first error of its requests
    std::uint32_t sequence = 0;  // of the ids: a late completion of an older use is refused
    std::uint32_t hashed_bytes = 0;
    std::uint32_t in_flight = 0;
    std::uint64_t started_ns = 0;
    io::Hash128 content;
    io::ContentHasher hasher;
  };

  // pager.cpp
  Status map_shadow(std::uint64_t bytes);
  Status find_present();
  static void book_visitor(void* self, Granule head, std::uint32_t granules);
  bool work(std::uint64_t now);
  void tick(std::uint64_t now);
  void overshoot();
  void sleep(int timeout_ms);
  void fatal(const char* what, const Block* block, int errno_value);
  void count(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) {
    counter.fetch_add(by, std::memory_order_relaxed);
  }
  void count(Fallback fallback) { count(job_->fallbacks[std::size_t(fallback)]); }

  // pager_faults.cpp
  void take_messages();
  void take_commands();
  void born(Granule head, std::uint32_t granules, bool zeroed);
  void died(Granule head, std::uint32_t granules);
  bool death_pending(const Block& block) const;
  bool mark_present(const Block& block, GranuleMask mask);
  void end_block(BlockId id);
  void on_fault(std::uint64_t address);
  void on_removed(std::uint64_t start, std::uint64_t end);
  void apply_removals(BlockId id, std::byte* frame);
  bool serve(BlockId id);  // brings a wanted block one step nearer; true when it is mapped
  bool populate(BlockId id);
  bool populate_run(Block& block, std::uint32_t first, std::uint32_t run);
  bool map_slot(BlockId id);
  void answered(BlockId id, tiering::Touch how);
  void want(BlockId id);
  void touched_ahead(BlockId id);
  void infer_mapped_ahead();

  // pager_transfer.cpp
  Transfer* begin_transfer(BlockId id, TransferKind kind);
  void end_transfer(Transfer& transfer);
  bool begin_read(BlockId id, const Slot& slot, bool demanded);
  void begin_compare();
  void take_completions();
  void on_completion(const io::Completion& completion);
  bool hash_slice();
  bool hash_some(Transfer& transfer);
  void read_complete(Transfer& transfer);
  void compare_complete(Transfer& transfer);
  void write_complete(Transfer& transfer);
  bool yields_to_demand() const;
  bool may_write() const;
  bool submit_write(Transfer& transfer);
  void keep_home(Transfer& transfer, int errno_value);
  static std::uint64_t bytes_of(const Block& block) { return std::uint64_t(block.count) * kGranuleBytes; }
  bool submit(const io::Request& request);
  void read_ahead(std::uint64_t now);
  void check_timeouts(std::uint64_t now);
  io::BlockIdentity identity_of(const Block& block) const;

  // pager_reclaim.cpp
  void set_limit_from_rest();
  std::uint64_t supply_granules() const;
  std::uint64_t small_share(std::uint64_t chunks) const;  // of the limit: that much, of a small limit less
  std::uint64_t ahead_window() const;                     // granules read ahead and not yet touched, at most
  std::uint64_t low_water() const;  // granules that should be free before they are wanted
  Slot obtain_frame(std::uint32_t granules, bool demanded);
  int give_back(std::byte* home, std::byte* frame, std::uint64_t bytes);
  bool reclaim_dead(std::uint32_t granules);
  bool drop_clean(std::uint32_t granules, bool demanded);
  void drop(BlockId id);
  void forget_ahead(BlockId id);
  void give_back_frames(std::uint64_t granules);
  bool stage(BlockId id);
  bool make_room(std::uint64_t now);
  static std::uint64_t settle_ns(const Block& block);
  void settle(std::uint64_t now);
  void unlist(BlockId id);
  void hold(BlockId id);
  void retry_unmovable(std::uint64_t now);
  void force_eviction(std::uint64_t now);

  PagerOptions options_;
  Arena* arena_ = nullptr;
  Heap* heap_ = nullptr;
  PagerLink* link_ = nullptr;
  Mover* mover_ = nullptr;
  io::BlockDevice* device_ = nullptr;
  io::Store* store_ = nullptr;
  tiering::OnlinePolicy* policy_ = nullptr;
  JobPage* job_ = nullptr;
  JobCounters* counters_ = nullptr;
  int owner_pidfd_ = -1;
  int resident_descriptor_ = -1;

  BlockTable books_;
  ShadowPool shadow_;
  void* shadow_mapping_ = nullptr;
  std::uint64_t shadow_mapping_bytes_ = 0;
  Transfer transfers_[kTransfers];
  std::uint32_t transfers_used_ = 0;
  std::uint32_t hash_cursor_ = 0;
  std::uint32_t sequence_ = 0;

  BlockList clean_;      // staged_clean, may be dropped, oldest first
  BlockList outgoing_;   // staged_dirty, waiting to be compared
  BlockList waiting_;    // wanted, waiting for a frame
  BlockList settling_;   // mapped a moment ago: its program has not had the time to use it
  BlockList unmovable_;  // mapped, could not be staged lately

  struct Removal {
    BlockId block;
    std::uint32_t offset, bytes;
  };
  static constexpr std::uint32_t kRemovals = 512;
  Removal removals_[kRemovals];  // parts of staged or stored blocks that the program dropped: zero when they
                                 // come home
  std::uint32_t removals_size_ = 0;

  BlockId ahead_[kAheadMax];  // read ahead, in the order of their expected touch
  std::uint32_t ahead_size_ = 0;
  std::uint64_t ahead_granules_ = 0;
  BlockId mapped_ahead_[kAheadMax];
  std::uint32_t mapped_ahead_size_ = 0;
  BlockId last_touched_ = kNoBlock;
  bool ahead_exhausted_ = true;  // nothing more to read ahead until the next touch

  std::uint64_t limit_granules_ = 0;
  std::atomic<std::uint64_t> requested_limit_bytes_{0};
  std::uint64_t rest_bytes_ = 0;
  std::uint64_t booked_granules_ = 0;      // of the objects that lived at the start
  std::uint64_t staged_out_granules_ = 0;  // staged_dirty and writing
  double clean_share_ = 0;                 // of the blocks that left lately: those that needed no write
  std::uint64_t next_tick_ns_ = 0, timeouts_checked_ns_ = 0, last_work_ns_ = 0, next_forced_ns_ = 0;
  std::uint64_t random_ = 0;
  Chunk dead_cursor_ = 0;
  std::uint32_t write_failures_ = 0;  // in a row
  std::uint32_t answers_ = 0;         // wraps
  std::uint64_t work_done_ = 0;
  bool demand_reading_ = false;  // a block that the program waits for is being read, out of any order
  bool fatal_ = false;
  bool owner_gone_ = false;
};

}  // namespace terrace::runtime
