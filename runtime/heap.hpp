// The program's side of the arena: which granules are objects, which are free, which free ones still have
// their frames.
//
// Nouns: a *run* is a row of granules. Free runs are kept by size and coalesce with their neighbours
// (boundary tags in Arena's `length` table and in our own). A freed run keeps its mapped huge-page frames for
// the next allocation
// (*recycled frames*); frames that nobody wanted for a while go back to the system (purge by age) as long as
// there is no pager, and to the pager's pool when there is one. Works before and without the pager.
//
// Placement: best fit among *warm* runs (those with frames, see free_runs.hpp), lowest address first among
// equals; only where none fits are new chunks taken, as few as possible: a warm run that ends at cold memory
// is extended into it. While a pager runs, objects of a chunk and more begin on a chunk, to move as whole
// huge pages. Everything from the *frontier* (a chunk) on was never handed out, or was given back.
//
// Invariant (validate()): objects and free runs tile [0, frontier); no two free runs of one kind touch; cold
// runs are whole chunks, and the run before the frontier is not cold. Threads: any; one lock inside (a spin
// lock that sleeps on a futex), never held while waiting for anything but the pager (which never waits for
// us). No libc heap, no stdio, no errno. fork: lock_for_fork / unlock_after_fork.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "runtime/arena.hpp"
#include "runtime/free_runs.hpp"
#include "runtime/job_page.hpp"
#include "runtime/pager_link.hpp"
#include "runtime/spin_lock.hpp"

namespace terrace::runtime {

enum class Fill : std::uint8_t { undefined, zero };

struct HeapStatistics {
  std::uint64_t live_bytes = 0, live_peak_bytes = 0;  // of objects, in whole granules
  std::uint64_t objects = 0;
  std::uint64_t touched_bytes =
      0;  // chunks handed out and not given back to the system: bounds what is resident
  std::uint64_t recycled_count = 0;  // allocations served wholly from runs that had frames
  std::uint64_t purged_bytes = 0;
};

// What the heap is to do when memory becomes short.
enum class Pressure : std::uint8_t {
  go_on,  // take fresh memory
  purge,  // give idle frames back first, then ask again
};

struct HeapOptions {
  // Bounds the address space in use; 0: the arena's reservation.
  std::uint64_t limit_bytes = 0;
  // Frames of free runs older than this go back to the system, no pager running.
  std::uint64_t purge_age_ms = 10'000;
  // Called with the lock held before an allocation would make touched_bytes exceed `pressure_bytes` (settable
  // later): starts the pager, or raises the threshold.
  Pressure (*on_pressure)(void* context, std::uint64_t touched_bytes, std::uint64_t idle_bytes) = nullptr;
  void* on_pressure_context = nullptr;
  // Where live bytes and recycled allocations are shown too; null: nowhere.
  JobCounters* counters = nullptr;
};

class Heap {
 public:
  // Errors: no_memory. `arena` is reserved by the caller; all three outlive the heap.
  Status init(Arena* arena, PagerLink* link, const HeapOptions& options);

  // `bytes` > 0; `alignment` a power of two up to 1 GiB. Null when there is no address space, or no room
  // (link->room_refused_bytes). With Fill::zero every byte reads as zero. The object may grow in place to
  // `capacity_bytes`, where that is more.
  void* allocate(std::size_t bytes, std::size_t alignment, Fill fill, std::size_t capacity_bytes = 0);
  // `p`: from allocate, not yet freed; anything else aborts with one line (a double free, an interior
  // pointer).
  void free(void* p);
  // What was asked for, exactly: with more, a program built with FORTIFY_SOURCE=3 that uses all of it aborts.
  std::size_t usable_bytes(const void* p) const;
  // Shrinks, or grows into free runs behind; false when that is not possible (nothing changed then). While a
  // pager runs the object keeps its granules: it grows within them only.
  bool resize_in_place(void* p, std::size_t bytes);

  // Gives frames of free runs that are older than the purge age (all of them with age 0) back to the system.
  // Does nothing while a pager runs. Returns bytes.
  std::uint64_t purge(std::uint64_t age_ms);

  // Takes the lock for a caller that must see a standing heap (the start of the pager, fork).
  void lock() { lock_.lock(); }
  void unlock() { lock_.unlock(); }
  // Between them (in the child too) the calling thread alone may use the heap: handlers of other libraries
  // allocate.
  void lock_for_fork() { lock_.hold_for_fork(); }
  void unlock_after_fork() { lock_.release_after_fork(); }
  // With the lock held: calls visit(context, head, granules) for each live object, in address order. What was
  // not mapped of such an object reads as zero.
  void for_each_object(void (*visit)(void* context, Granule head, std::uint32_t granules),
                       void* context) const;
  // With the lock held.
  void set_pressure_bytes(std::uint64_t bytes) { pressure_bytes_ = bytes; }

  HeapStatistics statistics() const;
  void validate() const;  // takes the lock

 private:
  // Free granules [start, start + granules) that an object is to take. They lie in one or more free runs, of
  // which `first_run` (the frontier, if they lie behind it) is the first.
  struct Place {
    Granule first_run = kNoGranule, start = 0;
    std::uint32_t fresh_chunks = 0;  // cold chunks that it touches
    bool found() const { return first_run != kNoGranule; }
  };
  // What is left over of the runs that a place cuts.
  struct Leftovers;
  struct ChunkState {
    // Granules whose bytes may differ from zero. Changed under the lock, or by the thread that owns the
    // granule.
    std::atomic<std::uint64_t> dirty[2];
    std::uint32_t freed_at_ms;  // of its last freed granule, on the purge clock
    std::uint32_t unused;
  };

  static std::uint32_t now_ms();
  FreeRuns& order(RunKind kind) { return kind == RunKind::warm ? warm_ : cold_; }
  bool is_free(Granule g) const { return arena_->owner(g) == kNoGranule; }
  Granule limit() const { return limit_granules_; }

  Place find(std::uint32_t granules, std::uint32_t alignment) const;
  Place find_aligned(std::uint32_t granules, std::uint32_t alignment) const;
  Place find_warm(std::uint32_t granules, std::uint32_t alignment) const;
  Place find_fresh(std::uint32_t granules, std::uint32_t alignment) const;
  Place extend(Granule run, std::uint32_t run_granules, std::uint32_t granules,
               std::uint32_t alignment) const;
  Place find_anywhere(std::uint32_t granules, std::uint32_t alignment) const;
  std::uint32_t count_fresh(Granule first_run, Granule start, std::uint32_t granules) const;

  static std::uint64_t chunks_bytes_for(std::uint64_t arena_bytes);
  bool open_up_to(std::uint64_t end);
  bool make_room(std::uint64_t needed_bytes);
  bool settle_pressure(Place& place, std::uint32_t granules, std::uint32_t alignment);
  Leftovers take(const Place& place, std::uint32_t granules);
  void give_back(const Leftovers& leftovers);
  void insert_free(Granule start, std::uint32_t granules, RunKind kind);
  void write_tags(Granule start, std::uint32_t granules, RunKind kind);
  void push(Command::Kind kind, Granule head, std::uint32_t granules, bool zeroed);
  void account_born(std::uint32_t granules);
  void show_live();
  void mark_dirty(Granule start, std::uint32_t granules);
  void zero_dirty(Granule start, std::uint32_t granules);
  void zero_present(Granule start, std::uint32_t granules);
  void regret_purge();
  void purge_sometimes(std::uint32_t now);
  std::uint64_t purge_locked(std::uint64_t age_ms, std::uint64_t most_bytes);
  std::uint64_t purge_run(Granule run, std::uint64_t age_ms, std::uint32_t now, std::uint64_t most_bytes);
  Granule checked_head(const void* p, const char* call) const;

  Arena* arena_ = nullptr;
  PagerLink* link_ = nullptr;
  HeapOptions options_{};
  std::uint64_t pressure_bytes_ = ~std::uint64_t{0};
  RunRecord* records_ = nullptr;  // one a granule
  ChunkState* chunks_ = nullptr;  // one a chunk
  // The part of the arena that the tables are open for; read without the lock by calls that hold a pointer
  // into it.
  std::atomic<std::uint64_t> tables_opened_bytes_{0};
  Granule limit_granules_ = 0;
  Granule frontier_ = 0;
  FreeRuns warm_{}, cold_{};
  HeapStatistics statistics_{};
  std::uint64_t purge_age_ms_ = 0;  // begins as the option, grows when purging was a mistake
  std::uint32_t purge_checked_ms_ = 0, pressure_purged_ms_ = 0, purged_ms_ = 0;
  bool purge_regret_armed_ = false;
  mutable SpinLock lock_{};
};

}  // namespace terrace::runtime
