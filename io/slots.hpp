// The requests that a device holds: a fixed table of slots with a list of free ones, in memory that its owner
// gives.
//
// A *tag* names one attempt: (sequence << 12) | slot. The sequence only grows and each attempt takes a new
// one, so a completion that is stale, doubled or foreign can never match the tag that its slot waits for.
// Threads: one user at a time.
#pragma once

#include <cstdint>

#include "base/check.hpp"
#include "io/transfer.hpp"

namespace terrace::io {

inline constexpr std::uint32_t kMaxDepth = 4096;

struct Slot {
  Transfer transfer;
  std::uint64_t tag = 0;   // of the attempt under way; 0: none
  std::uint32_t next = 0;  // free list: index + 1
  int error = 0;           // for devices that know the outcome before it is polled
  std::uint32_t polls_left = 0;
  bool used = false;
};

class SlotTable {
 public:
  static std::uint64_t table_bytes(std::uint32_t depth) { return depth * sizeof(Slot); }

  // `memory`: table_bytes(depth) zeroed bytes that outlive the table.
  void init(void* memory, std::uint32_t depth) {
    slots_ = static_cast<Slot*>(memory);
    depth_ = depth;
    used_ = 0;
    free_ = 0;
    for (std::uint32_t i = depth; i-- > 0;) {
      slots_[i] = {};
      slots_[i].next = free_;
      free_ = i + 1;
    }
  }
  // Null when all are in use.
  Slot* take(const Request& request) {
    if (free_ == 0) return nullptr;
    Slot& slot = slots_[free_ - 1];
    free_ = slot.next;
    slot = {};
    slot.transfer.request = request;
    slot.used = true;
    used_++;
    return &slot;
  }
  void give_back(Slot& slot) {
    TERRACE_CHECK(slot.used, "a slot is given back once");
    slot.used = false;
    slot.tag = 0;
    slot.next = free_;
    free_ = index(slot) + 1;
    used_--;
  }
  std::uint64_t new_tag(Slot& slot) { return slot.tag = (++sequence_ * kMaxDepth) | index(slot); }
  // The slot whose attempt under way has this tag; null for a completion nobody waits for.
  Slot* find(std::uint64_t tag) {
    const std::uint64_t i = tag % kMaxDepth;
    return tag != 0 && i < depth_ && slots_[i].used && slots_[i].tag == tag ? &slots_[i] : nullptr;
  }
  Slot& at(std::uint32_t i) { return slots_[i]; }
  std::uint32_t index(const Slot& slot) const { return std::uint32_t(&slot - slots_); }
  std::uint32_t depth() const { return depth_; }
  std::uint32_t used() const { return used_; }

 private:
  Slot* slots_ = nullptr;
  std::uint32_t depth_ = 0, used_ = 0, free_ = 0;
  std::uint64_t sequence_ = 0;
};

}  // namespace terrace::io
