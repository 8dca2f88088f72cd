#include "allocator/large_heap.hpp"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "base/size_text.hpp"
#include "base/syscall.hpp"
#include "runtime/job_page.hpp"

namespace terrace::allocator {

std::size_t threshold_bytes = kDefaultThresholdBytes;
std::uint64_t arena_tag = ~std::uint64_t{0};  // of no pointer

namespace {

enum class State : std::uint32_t { none, starting, ready, passing };

constinit std::atomic<State> state{State::none};
bool held_over_fork = false;
std::uint64_t machine_bytes = runtime::Arena::kSpanBytes;  // memory and swap

struct World {
  runtime::Arena arena;
  runtime::PagerLink link;
  runtime::Heap heap;
};
alignas(World) unsigned char storage[sizeof(World)];
World& world() { return *std::launder(reinterpret_cast<World*>(storage)); }

void pass_through() {
  threshold_bytes = ~std::size_t{0};
  state.store(State::passing, std::memory_order_release);
}

// The smallest object: of the job's page, else of the environment, else the default.
std::size_t min_object_bytes() {
  if (const char* path = getenv(runtime::kJobPageVariable); path != nullptr) {
    const long fd = sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd >= 0) {
      const long at = sys(SYS_mmap, 0, runtime::kJobPageBytes, PROT_READ, MAP_SHARED, fd, 0);
      sys(SYS_close, fd);
      if (at > 0 || at < -4095) {
        const auto& page = *reinterpret_cast<const runtime::JobPage*>(at);
        const bool known = page.magic == runtime::kJobPageMagic && page.version == runtime::kJobPageVersion;
        const std::uint64_t bytes = known ? page.settings.min_object_bytes : 0;
        sys(SYS_munmap, at, runtime::kJobPageBytes);
        if (bytes != 0) return bytes;
      }
    }
  }
  if (const char* text = getenv("TERRACE_MIN_OBJECT"); text != nullptr) {
    if (const auto bytes = parse_size(text); bytes.ok() && bytes.value() != 0) return bytes.value();
  }
  return kDefaultThresholdBytes;
}

// libc learns from freed mmaps how much of its own heap to keep (up to 64 MiB). It sees none any more, so it would give
// back and fault in the top of its heap at each swing of 128 KiB. Told only where large objects exist.
void teach_libc() {
  constexpr int kTrimBytes = 64 << 20, kMostMmapThreshold = 32 << 20;
  mallopt(M_TRIM_THRESHOLD, kTrimBytes);
  if (threshold_bytes > kDefaultThresholdBytes) {  // what lies between is libc's: not an mmap each time
    mallopt(M_MMAP_THRESHOLD, threshold_bytes < kMostMmapThreshold ? int(threshold_bytes) : kMostMmapThreshold);
  }
}

bool start() {
  World& w = *new (storage) World;
  if (!w.arena.reserve().ok()) return false;
  if (!w.heap.init(&w.arena, &w.link, {}).ok()) return false;
  struct sysinfo info;
  if (sys(SYS_sysinfo, &info) == 0) machine_bytes = (info.totalram + info.totalswap) * info.mem_unit;
  arena_tag = w.arena.base() >> kTagShift;
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
  return large_heap();
}

void before_fork() {
  while (state.load(std::memory_order_acquire) == State::starting) sys(SYS_sched_yield);
  held_over_fork = false;
  if (state.load(std::memory_order_acquire) == State::ready) {
    world().heap.lock_for_fork();
    held_over_fork = true;
  }
}

void after_fork_in_parent() {
  if (held_over_fork) world().heap.unlock_after_fork();
}

void after_fork_in_child() {
  if (!held_over_fork) return;
  world().heap.unlock_after_fork();
  if (world().link.active.load(std::memory_order_acquire) != 0) pass_through();  // the pager is the parent's
}

[[gnu::constructor]] void on_load() {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  if (state.load(std::memory_order_acquire) == State::none) threshold_bytes = min_object_bytes();
}

}  // namespace

runtime::Heap* large_heap() {
  const State now = state.load(std::memory_order_acquire);
  if (now == State::ready) return &world().heap;
  if (now == State::passing) return nullptr;
  return start_or_wait();
}

bool in_arena(const void* p) {
  return std::uintptr_t(p) >> kTagShift == arena_tag && world().arena.contains(p);
}

runtime::Heap& heap_of_arena() { return world().heap; }

bool may_free() { return state.load(std::memory_order_acquire) != State::passing; }

std::uint64_t most_bytes() { return machine_bytes; }

bool null_is_final() { return world().link.active.load(std::memory_order_acquire) != 0; }

}  // namespace terrace::allocator
