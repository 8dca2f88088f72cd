// Frames of idle chunks go back to the system, by age, and more slowly where that proved wrong.
#include <sys/mman.h>

#include <ctime>

#include "base/syscall.hpp"
#include "runtime/heap.hpp"
#include "runtime/heap_units.hpp"

namespace terrace::runtime {
namespace {

// Purging: how often it is thought of, and how much goes at once (an allocation waits for it: 128 MiB of huge
// pages take the kernel about 2 ms).
constexpr std::uint32_t kPurgeCheckMs = 100;
constexpr std::uint64_t kPurgeStepBytes = 128 * kMiB;
// A program whose step is longer than the purge age would have its frames taken and zeroed anew in every
// step: when memory is wanted back this soon after a purge, the age doubles, up to the longest.
constexpr std::uint64_t kRegretAges = 8;
constexpr std::uint64_t kLongestAgeMs = 10 * 60 * 1000;

}  // namespace

// The purge clock: coarse (4 ms) because it is read at each free; it wraps after 49 days, which differences
// survive.
std::uint32_t Heap::now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return std::uint32_t(std::uint64_t(t.tv_sec) * 1000 + std::uint64_t(t.tv_nsec) / 1'000'000);
}

void Heap::purge_sometimes(std::uint32_t now) {
  if (now - purge_checked_ms_ < kPurgeCheckMs) return;
  purge_checked_ms_ = now;
  if (purge_locked(purge_age_ms_, kPurgeStepBytes) != 0) {
    purged_ms_ = now;
    purge_regret_armed_ = true;
  }
}

std::uint64_t Heap::purge(std::uint64_t age_ms) {
  lock();
  const std::uint64_t bytes = purge_locked(age_ms, ~std::uint64_t{0});
  unlock();
  return bytes;
}

std::uint64_t Heap::purge_locked(std::uint64_t age_ms, std::uint64_t most_bytes) {
  if (link_->active.load(std::memory_order_acquire) != 0) return 0;
  const std::uint32_t now = now_ms();
  std::uint64_t purged = 0;
  for (Granule run = warm_.best_fit(kAll); run != kNoGranule && purged < most_bytes;) {
    const std::uint32_t length = records_[run].length;
    purged += purge_run(run, age_ms, now, most_bytes - purged);
    run = warm_.best_fit(length, run + 1);  // what purging left of the run is shorter and lies before that
  }
  statistics_.purged_bytes += purged;
  return purged;
}

// Gives back the frames of the whole chunks of one warm run that are old enough.
std::uint64_t Heap::purge_run(Granule run, std::uint64_t age_ms, std::uint32_t now,
                              std::uint64_t most_bytes) {
  const Granule end = run + records_[run].length;
  std::uint64_t purged = 0;
  Granule rest = run;  // start of the warm run that holds what is left
  for (Granule at = align_up(run, kAll); std::uint64_t(at) + kAll <= end && purged < most_bytes;) {
    Granule stop = at;
    while (std::uint64_t(stop) + kAll <= end && purged + (stop - at) * kGranuleBytes < most_bytes &&
           now - chunks_[chunk_of(stop)].freed_at_ms >= age_ms) {
      stop += kAll;
    }
    if (stop == at) {
      at += kAll;
      continue;
    }
    const std::uint64_t bytes = (stop - at) * kGranuleBytes;
    if (sys(SYS_madvise, arena_->address_of(at), bytes, MADV_DONTNEED) != 0) return purged;  // locked memory
    for (Chunk c = chunk_of(at); c < chunk_of(stop); c++) {
      chunks_[c].dirty[0].store(0, std::memory_order_relaxed);
      chunks_[c].dirty[1].store(0, std::memory_order_relaxed);
    }
    warm_.remove(rest);
    // The pieces are put back from the last to the first, each against neighbours that stand: first the two
    // warm ones.
    if (stop < end) {
      write_tags(stop, end - stop, RunKind::warm);
      warm_.insert(stop);
    }
    if (rest < at) {
      write_tags(rest, at - rest, RunKind::warm);
      warm_.insert(rest);
    }
    insert_free(at, stop - at, RunKind::cold);
    statistics_.touched_bytes -= bytes;
    purged += bytes;
    rest = at = stop;
  }
  return purged;
}

// Fresh chunks are about to be taken. Soon after a purge that means that the purge was a mistake.
void Heap::regret_purge() {
  if (!purge_regret_armed_ || now_ms() - purged_ms_ >= kRegretAges * purge_age_ms_) return;
  purge_age_ms_ = purge_age_ms_ * 2 < kLongestAgeMs ? purge_age_ms_ * 2 : kLongestAgeMs;
  purge_regret_armed_ = false;
}

}  // namespace terrace::runtime
