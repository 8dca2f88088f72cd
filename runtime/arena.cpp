#include "runtime/arena.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <initializer_list>

#include "base/syscall.hpp"

namespace terrace::runtime {
namespace {

// First place tried; below it lie what address sanitizer keeps (up to 16 TiB + 2 GiB) and programs at fixed
// addresses.
constexpr std::uintptr_t kFirstPlace = 16 * kTiB;
constexpr std::uintptr_t kLastPlace = 84 * kTiB;  // 0x54..: position-independent programs begin at 0x55..
constexpr std::uint64_t kLeastBytes = 1 * kGiB;
// One mprotect for each step: few calls while the arena grows, and little to populate at once under mlockall.
constexpr std::uint64_t kOpenStepBytes = 64 * kMiB;

std::uintptr_t map(std::uintptr_t at, std::uint64_t bytes, int protection, int flags) {
  const long r =
      sys(SYS_mmap, at, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  return r < 0 && r > -4096 ? 0 : std::uintptr_t(r);
}

void unmap(std::uintptr_t at, std::uint64_t bytes) {
  if (bytes != 0) sys(SYS_munmap, at, bytes);
}

// What the reservation may take: half of RLIMIT_AS, since the rest of the program lives under that limit too.
std::uint64_t span_allowed() {
#if defined(__SANITIZE_THREAD__)
  return 64 * kGiB;  // its shadow covers only the top 1.5 TiB of the address space
#endif
  struct {
    std::uint64_t soft, hard;
  } limit;
  if (sys(SYS_prlimit64, 0, RLIMIT_AS, 0, &limit) != 0 || limit.soft / 2 >= Arena::kSpanBytes)
    return Arena::kSpanBytes;
  return round_down(limit.soft / 2, kChunkBytes);
}

// Address of a free place of `bytes`, reserved there; 0 when there is none.
std::uintptr_t reserve_aligned(std::uint64_t bytes) {
#if defined(__SANITIZE_THREAD__)
  const std::uint64_t alignment = kGiB;
#else
  const std::uint64_t alignment = Arena::kSpanBytes;
  for (std::uintptr_t place = kFirstPlace; place <= kLastPlace; place += alignment) {
    // Kernels before 4.17 take the flag for a mere hint, so the answer is compared.
    const std::uintptr_t got = map(place, bytes, PROT_NONE, MAP_FIXED_NOREPLACE);
    if (got == place) return got;
    if (got != 0) unmap(got, bytes);
  }
#endif
  const std::uintptr_t whole = map(0, bytes + alignment, PROT_NONE, 0);
  if (whole == 0) return 0;
  const std::uintptr_t base = round_up(whole, alignment);
  unmap(whole, base - whole);
  unmap(base + bytes, whole + alignment - base);
  return base;
}

// Bytes of one table for that much arena.
std::uint64_t table_bytes(std::uint64_t arena_bytes) {
  return round_up(arena_bytes / kGranuleBytes * sizeof(std::atomic<std::uint32_t>), kPageBytes);
}

}  // namespace

Status Arena::reserve() {
  TERRACE_CHECK(base_ == 0, "the arena is reserved already");
  const std::uint64_t allowed = span_allowed();
  if (allowed < kLeastBytes)
    return Status::failure(ErrorCode::no_memory, ENOMEM, "the limit on address space leaves no arena");
  const std::uintptr_t base = reserve_aligned(allowed);
  if (base == 0) return Status::failure(ErrorCode::no_memory, ENOMEM, "no address space for the arena");
  const std::uint64_t bytes = table_bytes(allowed);
  const std::uintptr_t tables = map(0, 2 * bytes, PROT_NONE, 0);
  if (tables == 0) {
    unmap(base, allowed);
    return Status::failure(ErrorCode::no_memory, ENOMEM, "no address space for the tables of the arena");
  }
  // Advice only; a kernel without huge pages refuses the first and works. On the whole reservation, so that
  // opening moves one boundary between two mappings and never makes a third.
  sys(SYS_madvise, base, allowed, MADV_HUGEPAGE);
  sys(SYS_madvise, tables, 2 * bytes, MADV_DONTDUMP);
  sys(SYS_madvise, tables, 2 * bytes,
      MADV_NOHUGEPAGE);  // sparse: a huge page would cost 2 MiB for a few bytes
  base_ = base;
  reserved_bytes_ = allowed;
  owner_ = reinterpret_cast<std::atomic<std::uint32_t>*>(tables);
  length_ = reinterpret_cast<std::atomic<std::uint32_t>*>(tables + bytes);
  return Status::success();
}

void Arena::release() {
  if (base_ == 0) return;
  unmap(base_, reserved_bytes_);
  unmap(reinterpret_cast<std::uintptr_t>(owner_), 2 * table_bytes(reserved_bytes_));
  base_ = 0;
  reserved_bytes_ = 0;
  opened_bytes_.store(0, std::memory_order_release);
  owner_ = length_ = nullptr;
}

Status Arena::open_up_to(std::uint64_t bytes) {
  const std::uint64_t opened = opened_bytes_.load(std::memory_order_relaxed);
  if (bytes <= opened) return Status::success();
  if (bytes > reserved_bytes_) return Status::failure(ErrorCode::no_memory, ENOMEM, "the arena is full");
  std::uint64_t target = round_up(bytes, kOpenStepBytes);
  if (target > reserved_bytes_) target = reserved_bytes_;
  long r = sys(SYS_mprotect, base_ + opened, target - opened, PROT_READ | PROT_WRITE);
  if (r < 0 && target != bytes) {  // strict overcommit may grant what is needed and not the whole step
    target = bytes;
    r = sys(SYS_mprotect, base_ + opened, target - opened, PROT_READ | PROT_WRITE);
  }
  if (r < 0) return Status::from_errno(int(-r), "the kernel refuses to open more of the arena");
  // The tables follow in step: opened whole, they would be filled whole (0.5 GiB) by a program that locks its
  // memory.
  for (const auto* table : {owner_, length_}) {
    r = sys(SYS_mprotect, table, table_bytes(target), PROT_READ | PROT_WRITE);
    if (r < 0) return Status::from_errno(int(-r), "the kernel refuses to open more of the arena's tables");
  }
  opened_bytes_.store(target, std::memory_order_release);
  return Status::success();
}

void Arena::set_owner(Granule head, std::uint32_t granules) {
  length_[head].store(granules, std::memory_order_relaxed);
  for (std::uint32_t i = 0; i + 1 < granules; i++)
    owner_[head + i].store(head + 1, std::memory_order_relaxed);
  owner_[head + granules - 1].store(head + 1, std::memory_order_seq_cst);
}

void Arena::clear_owner(Granule head) {
  const std::uint32_t granules = length_[head].load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i + 1 < granules; i++) owner_[head + i].store(0, std::memory_order_relaxed);
  owner_[head + granules - 1].store(0, std::memory_order_seq_cst);
  length_[head].store(0, std::memory_order_relaxed);
}

}  // namespace terrace::runtime
