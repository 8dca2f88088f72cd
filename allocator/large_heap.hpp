// The one heap of large objects that this process has, and whether it has one.
//
// It lies in static storage and stands from the first large request on, without guards and without the
// loader: malloc is called before any constructor. A process *passes through* (libc serves everything) when
// it may not manage objects, when there is no address space, and in the child of a fork whose parent had a
// pager.
//
// Invariant: while objects exist, every pointer into the arena has the tag; no other pointer of this process
// has it unless the arena is smaller than its span (a limited address space), which is why the slow paths ask
// again. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/heap.hpp"

namespace terrace::allocator {

// What the fast paths compare with, and all that they read. `bytes >= threshold` is an object; a pointer
// whose bits above 40 are the tag lies in the arena's terabyte. Hidden, or each would cost the fast paths a
// look into the offset table.
extern std::size_t threshold_bytes __attribute__((visibility("hidden")));
extern std::uint64_t arena_tag __attribute__((visibility("hidden")));
inline constexpr int kTagShift = 40;
static_assert(runtime::Arena::kSpanBytes == std::uint64_t{1} << kTagShift);

inline constexpr std::size_t kDefaultThresholdBytes = 128 * kKiB;

// The heap that is to serve a request of `bytes`; null: libc serves it. The heap is made once large requests
// sum up to kLazyBytes, for a small program (python's start-up asks for 1 MiB in all) should not pay for a
// huge page and tables. Context: inside malloc.
runtime::Heap* large_heap(std::size_t bytes);
inline constexpr std::uint64_t kLazyBytes = 8 * kMiB;

// True when p lies in the arena of this process, or in that of its parent.
bool in_arena(const void* p);
// The heap that owns the arena's pointers; precondition: in_arena. In a child that passes through it is the
// parent's, which answers usable_bytes and nothing else.
runtime::Heap& heap_of_arena();
// False in a child that passes through: then objects of the parent may be read and are never freed.
bool may_free();
// The largest request that the heap takes. Without a pager it is what the machine has, memory and swap:
// beyond that the kernel's own answer (its overcommit rule) stands, as it would without us.
std::uint64_t most_bytes();
// True when a null from the heap is the answer (there is no room); else libc is asked next.
bool null_is_final();

}  // namespace terrace::allocator
