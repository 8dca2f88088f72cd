// The malloc family: large requests become objects of our heap, everything else is libc's, by its own entry
// points (no lookup, so it works before the loader is done). Edge cases are glibc's to the letter: its man
// pages, and where those are silent malloc/malloc.c of 2.36.
//
// The fast paths stand first in each function, touch neither errno nor thread-local data, and end in a jump:
// malloc and free of a small block together cost at most 8 instructions more than libc's own
// (bench/alloc_bench.cpp counts them).
#include <dlfcn.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "allocator/large_heap.hpp"

#define TERRACE_EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
void* __libc_malloc(std::size_t);
void __libc_free(void*);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* __libc_valloc(std::size_t);
void* __libc_pvalloc(std::size_t);
}

namespace terrace::allocator {
namespace {

using runtime::Fill;
using runtime::Heap;

// Beyond it libc refuses, and sets errno.
constexpr std::size_t kMostBytes = PTRDIFF_MAX;
constexpr std::size_t kLeastAlignment = 16;

inline bool has_arena_tag(const void* p) { return std::uintptr_t(p) >> kTagShift == arena_tag; }

// An object of the large heap, or what libc gives where there is none for us to manage.
template <typename Libc>
void* object_or(std::size_t bytes, std::size_t alignment, Fill fill, std::size_t capacity_bytes, Libc libc) {
  if (Heap* heap = large_heap(bytes); heap != nullptr && bytes <= most_bytes() && alignment <= kGiB) {
    if (void* p = heap->allocate(bytes, alignment, fill, capacity_bytes)) return p;
    if (null_is_final()) {
      errno = ENOMEM;
      return nullptr;
    }
  }
  return libc();
}

[[gnu::noinline]] void* large_malloc(std::size_t bytes) {
  return object_or(bytes, kLeastAlignment, Fill::undefined, 0, [=] { return __libc_malloc(bytes); });
}

[[gnu::noinline]] void large_free(void* p) {
  if (!in_arena(p)) return __libc_free(p);
  if (may_free()) heap_of_arena().free(p);
}

[[gnu::noinline]] void* large_calloc(std::size_t count, std::size_t size, std::size_t bytes) {
  return object_or(bytes, kLeastAlignment, Fill::zero, 0, [=] { return __libc_calloc(count, size); });
}

[[gnu::noinline]] void* large_memalign(std::size_t alignment, std::size_t bytes) {
  const auto libc = [=] { return __libc_memalign(alignment, bytes); };
  if (alignment > kGiB) return libc();
  // As glibc: one that is no power of two is rounded up to the next.
  const std::size_t rounded = alignment < kLeastAlignment ? kLeastAlignment : std::bit_ceil(alignment);
  return object_or(bytes, rounded, Fill::undefined, 0, libc);
}

std::size_t libc_usable_size(void* p) {
  using Function = std::size_t (*)(void*);
  static Function function;  // set to the same value by whoever comes first
  Function f = __atomic_load_n(&function, __ATOMIC_RELAXED);
  if (f == nullptr) {
    f = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "malloc_usable_size"));
    TERRACE_CHECK(f != nullptr, "libc has no malloc_usable_size");
    __atomic_store_n(&function, f, __ATOMIC_RELAXED);
  }
  return f(p);
}

// A libc block that becomes an object.
void* realloc_of_small(void* p, std::size_t bytes) {
  const std::size_t had = libc_usable_size(p);
  Heap* heap = had < bytes && bytes <= kMostBytes ? large_heap(bytes) : nullptr;
  if (heap == nullptr || bytes > most_bytes()) return __libc_realloc(p, bytes);
  void* q = heap->allocate(bytes, kLeastAlignment, Fill::undefined, had + had / 4);
  if (q == nullptr) {
    if (!null_is_final()) return __libc_realloc(p, bytes);
    errno = ENOMEM;
    return nullptr;
  }
  std::memcpy(q, p, had);
  __libc_free(p);
  return q;
}

void* realloc_of_object(void* p, std::size_t bytes) {
  if (bytes == 0) {
    large_free(p);
    return nullptr;
  }
  if (bytes > kMostBytes) {
    errno = ENOMEM;
    return nullptr;
  }
  Heap& heap = heap_of_arena();
  const std::size_t had = heap.usable_bytes(p);
  // What has become small goes to libc; between the threshold and half of it the object stays, so that a size
  // that swings about the threshold is not copied each time.
  const bool goes_small = bytes < threshold_bytes / 2 || !may_free();
  if (!goes_small && heap.resize_in_place(p, bytes)) return p;
  // Growing by at least a quarter keeps a row of small steps linear in time.
  void* q = goes_small ? __libc_malloc(bytes)
                       : object_or(bytes, kLeastAlignment, Fill::undefined, bytes > had ? had + had / 4 : 0,
                                   [=] { return __libc_malloc(bytes); });
  if (q == nullptr) return nullptr;
  std::memcpy(q, p, had < bytes ? had : bytes);
  large_free(p);
  return q;
}

[[gnu::noinline]] void* large_realloc(void* p, std::size_t bytes) {
  if (p == nullptr) return large_malloc(bytes);
  if (has_arena_tag(p) && in_arena(p)) return realloc_of_object(p, bytes);
  return bytes >= threshold_bytes ? realloc_of_small(p, bytes) : __libc_realloc(p, bytes);
}

}  // namespace
}  // namespace terrace::allocator

using namespace terrace::allocator;

TERRACE_EXPORT void* malloc(std::size_t bytes) {
  if (bytes < threshold_bytes) [[likely]]
    return __libc_malloc(bytes);
  return large_malloc(bytes);
}

TERRACE_EXPORT void free(void* p) {
  if (!has_arena_tag(p)) [[likely]]
    return __libc_free(p);
  large_free(p);
}

TERRACE_EXPORT void cfree(void* p) { free(p); }  // for programs older than glibc 2.26

TERRACE_EXPORT void* calloc(std::size_t count, std::size_t size) {
  std::size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes < threshold_bytes) [[likely]] {
    return __libc_calloc(count, size);  // which refuses the overflow
  }
  return large_calloc(count, size, bytes);
}

TERRACE_EXPORT void* realloc(void* p, std::size_t bytes) {
  if (!has_arena_tag(p) && bytes < threshold_bytes) [[likely]]
    return __libc_realloc(p, bytes);
  return large_realloc(p, bytes);
}

TERRACE_EXPORT void* reallocarray(void* p, std::size_t count, std::size_t size) {
  std::size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return realloc(p, bytes);
}

TERRACE_EXPORT void* memalign(std::size_t alignment, std::size_t bytes) {
  if (bytes < threshold_bytes) [[likely]]
    return __libc_memalign(alignment, bytes);
  return large_memalign(alignment, bytes);
}

TERRACE_EXPORT void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return memalign(alignment, bytes);
}

TERRACE_EXPORT int posix_memalign(void** result, std::size_t alignment, std::size_t bytes) {
  if (alignment % sizeof(void*) != 0 || !std::has_single_bit(alignment)) return EINVAL;
  const int saved = errno;
  void* p = memalign(alignment, bytes);
  errno = saved;
  if (p == nullptr) return ENOMEM;
  *result = p;
  return 0;
}

TERRACE_EXPORT void* valloc(std::size_t bytes) {
  if (bytes < threshold_bytes) return __libc_valloc(bytes);
  return large_memalign(terrace::kPageBytes, bytes);
}

TERRACE_EXPORT void* pvalloc(std::size_t bytes) {
  std::size_t whole;
  if (__builtin_add_overflow(bytes, terrace::kPageBytes - 1, &whole)) return __libc_pvalloc(bytes);
  whole = terrace::round_down(whole, terrace::kPageBytes);
  if (whole < threshold_bytes) return __libc_pvalloc(bytes);
  return large_memalign(terrace::kPageBytes, whole);
}

TERRACE_EXPORT std::size_t malloc_usable_size(void* p) {
  if (p == nullptr) return 0;
  if (has_arena_tag(p) && in_arena(p)) return heap_of_arena().usable_bytes(p);
  return libc_usable_size(p);
}
