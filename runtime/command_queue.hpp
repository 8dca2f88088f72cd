// From the heap to the pager: which objects came and went, in order.
//
// A ring with one producer at a time (the heap pushes under its lock) and one consumer (the pager). The pager
// drains it before it answers any fault, so a fault on an object is always handled after the object's birth
// is known. A full ring makes the producer wait: the pager never waits for the program, so that wait ends.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/types.hpp"

namespace terrace::runtime {

struct Command {
  enum class Kind : std::uint32_t { born, died };
  Kind kind;
  Granule head;
  std::uint32_t granules;
  std::uint32_t zeroed;  // born only: 1 when blocks that are empty must read as zero (calloc)
};

class CommandQueue {
 public:
  static constexpr std::uint32_t kCapacity = 1u << 15;

  // False when full.
  bool push(const Command& command) {
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) == kCapacity) return false;
    ring_[tail % kCapacity] = command;
    tail_.store(tail + 1, std::memory_order_seq_cst);
    return true;
  }
  // Consumer: whether any command that is still to be popped fulfils the predicate. Sees every command that
  // was pushed before a store (seq_cst) or a write to the program's memory that the consumer has seen.
  template <typename Predicate>
  bool any(Predicate predicate) const {
    const std::uint32_t tail = tail_.load(std::memory_order_seq_cst);
    for (std::uint32_t at = head_.load(std::memory_order_relaxed); at != tail; ++at)
      if (predicate(ring_[at % kCapacity])) return true;
    return false;
  }
  // False when empty.
  bool pop(Command& command) {
    const std::uint32_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_seq_cst)) return false;
    command = ring_[head % kCapacity];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

 private:
  std::atomic<std::uint32_t> head_{0}, tail_{0};
  Command ring_[kCapacity];
};

}  // namespace terrace::runtime
