#include "allocator/large_heap.hpp"

#include <malloc.h>
#include <pthread.h>
#include <sys/sysinfo.h>

#include <atomic>

#include "base/syscall.hpp"
#include "runtime/runtime.hpp"

namespace terrace::allocator {

std::size_t threshold_bytes = kDefaultThresholdBytes;
std::uint64_t arena_tag = ~std::uint64_t{0};  // of no pointer

namespace {

enum class State : std::uint32_t { none, starting, ready, passing };

constinit std::atomic<State> state{State::none};
constinit std::atomic<std::uint64_t> asked_bytes{0};  // by large requests before the heap stood
bool held_over_fork = false;
std::uint64_t most_object_bytes = runtime::Arena::kSpanBytes;

void pass_through() {
  threshold_bytes = ~std::size_t{0};
  state.store(State::passing, std::memory_order_release);
}

// libc learns from freed mmaps how much of its own heap to keep (up to 64 MiB). It sees none any more, so it
// would give back and fault in the top of its heap at each swing of 128 KiB. Told only where large objects
// exist.
void teach_libc() {
  constexpr int kTrimBytes = 64 << 20, kMostMmapThreshold = 32 << 20;
  mallopt(M_TRIM_THRESHOLD, kTrimBytes);
  if (threshold_bytes > kDefaultThresholdBytes) {  // what lies between is libc's: not an mmap each time
    mallopt(M_MMAP_THRESHOLD,
            threshold_bytes < kMostMmapThreshold ? int(threshold_bytes) : kMostMmapThreshold);
  }
}

bool start() {
  const runtime::Attachment attachment = runtime::runtime().attach();
  if (attachment == runtime::Attachment::pass_through) return false;
  struct sysinfo info;
  // Alone, the heap takes what the machine has, memory and swap; with a pager the store decides.
  if (attachment == runtime::Attachment::alone && sys(SYS_sysinfo, &info) == 0)
    most_object_bytes = (info.totalram + info.totalswap) * info.mem_unit;
  arena_tag = runtime::runtime().arena().base() >> kTagShift;
  return true;
}

[[gnu::noinline, gnu::cold]] runtime::Heap* start_or_wait() {
  State expected = State::none;
  if (state.compare_exchange_strong(expected, State::starting, std::memory_order_acquire)) {
    if (start()) {
      state.store(State::ready, std::memory_order_release);
      teach_libc();
    } else {
      pass_through();
    }
  }
  while (state.load(std::memory_order_acquire) == State::starting) sys(SYS_sched_yield);
  return state.load(std::memory_order_acquire) == State::ready ? &runtime::runtime().heap() : nullptr;
}

void before_fork() {
  while (state.load(std::memory_order_acquire) == State::starting) sys(SYS_sched_yield);
  held_over_fork = false;
  if (state.load(std::memory_order_acquire) == State::ready) {
    runtime::runtime().heap().lock_for_fork();
    held_over_fork = true;
  }
}

void after_fork_in_parent() {
  if (held_over_fork) runtime::runtime().heap().unlock_after_fork();
}

void after_fork_in_child() {
  if (!held_over_fork) return;
  runtime::runtime().heap().unlock_after_fork();
  if (!runtime::runtime().child_after_fork()) pass_through();
}

[[gnu::constructor]] void on_load() {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  runtime::runtime().load();
  if (state.load(std::memory_order_acquire) == State::none)
    threshold_bytes = runtime::runtime().min_object_bytes();
}

}  // namespace

runtime::Heap* large_heap(std::size_t bytes) {
  const State now = state.load(std::memory_order_acquire);
  if (now == State::ready) return &runtime::runtime().heap();
  if (now == State::passing) return nullptr;
  if (bytes < kLazyBytes && asked_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes < kLazyBytes)
    return nullptr;
  return start_or_wait();
}

bool in_arena(const void* p) {
  return std::uintptr_t(p) >> kTagShift == arena_tag && runtime::runtime().arena().contains(p);
}

runtime::Heap& heap_of_arena() { return runtime::runtime().heap(); }

bool may_free() { return state.load(std::memory_order_acquire) != State::passing; }

std::uint64_t most_bytes() { return most_object_bytes; }

bool null_is_final() { return runtime::runtime().pager_active(); }

}  // namespace terrace::allocator
