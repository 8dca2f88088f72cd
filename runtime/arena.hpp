// The address range in which objects live, and the tables that say which object owns which granule.
//
// One reservation (PROT_NONE, opened by mprotect as it grows, transparent huge pages asked for), aligned to
// its full span so that "is this pointer ours" is one shift and one compare. The tables lie outside of it,
// because its pages move: `owner` names for each granule the first granule ("head") of its object, `length`
// gives the granules of the object (at its head).
//
// Invariant: for a live object at head h: owner(g) == h for all g in [h, h + length(h)); every other granule
// of the opened part has no owner. Threads: written by the heap under its lock; read by anyone (the pager
// reads owner() after a move to see whether a dead granule came to life meanwhile: seq_cst on both sides).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.hpp"
#include "base/types.hpp"

namespace terrace::runtime {

inline constexpr Granule kNoGranule = ~Granule{0};

class Arena {
 public:
  static constexpr std::uint64_t kSpanBytes = 1 * kTiB;  // also its alignment

  // Reserves address space: kSpanBytes of it, or as much of that as RLIMIT_AS allows (at least 1 GiB).
  // Errors: no_memory. Context: any, inside malloc too (raw system calls only).
  Status reserve();
  void release();  // tests only: unmaps all

  // Makes the first `bytes` (a multiple of kChunkBytes) usable; never shrinks. no_memory when the kernel
  // refuses.
  Status open_up_to(std::uint64_t bytes);

  std::uintptr_t base() const { return base_; }
  std::uint64_t reserved_bytes() const { return reserved_bytes_; }
  std::uint64_t opened_bytes() const { return opened_bytes_.load(std::memory_order_acquire); }
  bool contains(const void* p) const { return std::uintptr_t(p) - base_ < reserved_bytes_ && base_ != 0; }
  Granule granule_at(const void* p) const { return Granule((std::uintptr_t(p) - base_) / kGranuleBytes); }
  std::byte* address_of(Granule g) const {
    return reinterpret_cast<std::byte*>(base_ + std::uint64_t(g) * kGranuleBytes);
  }

  // Head of the object that owns g, or kNoGranule. g lies in the opened part (the tables are open as far as
  // it is).
  Granule owner(Granule g) const { return owner_[g].load(std::memory_order_seq_cst) - 1; }
  std::uint32_t length(Granule head) const { return length_[head].load(std::memory_order_relaxed); }
  // Heap only. set_owner publishes with seq_cst on the last store.
  void set_owner(Granule head, std::uint32_t granules);
  void clear_owner(Granule head);

 private:
  std::uintptr_t base_ = 0;
  std::uint64_t reserved_bytes_ = 0;
  std::atomic<std::uint64_t> opened_bytes_{0};
  std::atomic<std::uint32_t>* owner_ = nullptr;   // head + 1; 0: free
  std::atomic<std::uint32_t>* length_ = nullptr;  // granules, at heads
};

}  // namespace terrace::runtime
