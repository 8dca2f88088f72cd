// The program's side of the arena: which granules are objects, which are free, which free ones still have their frames.
//
// Nouns: a *run* is a row of granules. Free runs are kept by size and coalesce with their neighbours (boundary tags in
// Arena's `length` table and in our own). A freed run keeps its mapped huge-page frames for the next allocation
// (*recycled frames*); frames that nobody wanted for a while go back to the system (purge by age) as long as there is
// no pager, and to the pager's pool when there is one. Works before and without the pager.
//
// Placement: best fit that keeps peak memory at or below the best page heaps, prefers runs that still have frames, and
// begins objects of whole chunks on a chunk so that they can move as whole huge pages.
//
// Invariant (validate()): runs tile the opened arena; no two free runs touch; live + free granules == opened granules.
// Threads: any; one lock inside (a spin lock that sleeps on a futex), never held while waiting for anything but the
// pager (which never waits for us). No libc heap, no stdio, errno preserved. fork: lock_for_fork / unlock_after_fork.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "runtime/arena.hpp"
#include "runtime/pager_link.hpp"

namespace terrace::runtime {

enum class Fill : std::uint8_t { undefined, zero };

struct HeapStatistics {
  std::uint64_t live_bytes = 0, live_peak_bytes = 0;  // of objects, in whole granules
  std::uint64_t objects = 0;
  std::uint64_t touched_bytes = 0;    // granules ever handed out and not given back to the system: bounds what is resident
  std::uint64_t recycled_count = 0;   // allocations served wholly from runs that had frames
  std::uint64_t purged_bytes = 0;
};

struct HeapOptions {
  // Bounds the address space in use; 0: the arena's reservation.
  std::uint64_t limit_bytes = 0;
  // Frames of free runs older than this go back to the system, no pager running.
  std::uint64_t purge_age_ms = 10'000;
  // Called with the lock held before an allocation would make touched_bytes exceed `pressure_bytes` (settable later):
  // starts the pager, or raises the threshold.
  void (*on_pressure)(void* context, std::uint64_t touched_bytes) = nullptr;
  void* on_pressure_context = nullptr;
};

class Heap {
 public:
  // Errors: no_memory. `arena` is reserved by the caller; all three outlive the heap.
  Status init(Arena* arena, PagerLink* link, const HeapOptions& options);

  // `bytes` > 0; `alignment` a power of two up to 1 GiB. Null when there is no address space, or no room
  // (link->room_refused_bytes). With Fill::zero every byte reads as zero.
  void* allocate(std::size_t bytes, std::size_t alignment, Fill fill);
  // `p`: from allocate, not yet freed; anything else aborts with one line (a double free, an interior pointer).
  void free(void* p);
  std::size_t usable_bytes(const void* p) const;
  // Shrinks, or grows into a free run behind; false when that is not possible (nothing changed then).
  bool resize_in_place(void* p, std::size_t bytes);

  // Gives frames of free runs that are older than the purge age (all of them with age 0) back to the system. Does
  // nothing while a pager runs. Returns bytes.
  std::uint64_t purge(std::uint64_t age_ms);

  // Takes the lock for a caller that must see a standing heap (the start of the pager, fork).
  void lock();
  void unlock();
  // With the lock held: calls visit(context, head, granules, zeroed) for each live object, in address order.
  void for_each_object(void (*visit)(void* context, Granule head, std::uint32_t granules), void* context) const;
  // With the lock held.
  void set_pressure_bytes(std::uint64_t bytes) { pressure_bytes_ = bytes; }

  HeapStatistics statistics() const;
  void validate() const;  // takes the lock

 private:
  // filled in by the implementation
  std::uint64_t pressure_bytes_ = ~std::uint64_t{0};
};

}  // namespace terrace::runtime
