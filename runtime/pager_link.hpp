// What the heap (in the program's threads) and the pager (a process of its own on the same memory) share.
//
// The heap tells births and deaths through the queue once `active` is set; the pager tells which granules of
// a chunk are mapped and how many live bytes it has room for (DRAM plus reserved store space). Threads: each
// atomic names its writer.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/granule_mask.hpp"
#include "runtime/command_queue.hpp"

namespace terrace::runtime {

struct PagerLink {
  // Written once by the pager, before its first fault: from then on the heap pushes births and deaths. Set
  // while the heap's lock is held by the thread that starts the pager, so no birth falls between the first
  // books and the queue.
  std::atomic<std::uint32_t> active{0};
  CommandQueue queue;

  // Live object bytes that have a place in the store (all of them: a block can always be written). Written by
  // the pager; the heap never lets live bytes grow beyond it: it raises `room_wanted_bytes` and waits until
  // room or `room_refused` comes.
  std::atomic<std::uint64_t> room_bytes{~std::uint64_t{0}};
  std::atomic<std::uint64_t> room_wanted_bytes{0};  // written by the heap
  std::atomic<std::uint64_t> room_refused_bytes{
      0};  // this much was asked for and is not to be had; cleared by the heap before it asks

  // Two words a chunk (GranuleMask low, high): granules that are mapped. Written by the pager: set before
  // pages appear, cleared after they are gone. Null while there is no pager.
  std::atomic<std::uint64_t>* present = nullptr;

  bool all_absent(Chunk chunk, GranuleMask mask) const {
    return (present[2 * std::size_t(chunk)].load(std::memory_order_seq_cst) & mask.low_word()) == 0 &&
           (present[2 * std::size_t(chunk) + 1].load(std::memory_order_seq_cst) & mask.high_word()) == 0;
  }
};

}  // namespace terrace::runtime
