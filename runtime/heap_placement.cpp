// Where an object is put: see the head of heap.hpp. All with the lock held; nothing here changes the heap.
#include "runtime/heap.hpp"
#include "runtime/heap_units.hpp"

namespace terrace::runtime {

Heap::Place Heap::find(std::uint32_t granules, std::uint32_t alignment) const {
  // An object that begins on a chunk moves as whole huge pages once there is a pager; pieces reach the disk
  // at half of its speed. One of whole chunks loses nothing by it at any time. Others of a chunk and more do
  // so only while a pager runs, when free memory holds no frames: before, it would raise the peak of resnet
  // by 3.5 %.
  const bool whole = granules % kAll == 0 || link_->active.load(std::memory_order_relaxed) != 0;
  if (granules >= kAll && alignment < kAll && whole) {
    Place aligned = find_warm(granules, kAll);
    if (!aligned.found()) aligned = find_fresh(granules, kAll);
    if (aligned.found()) return aligned;
  }
  Place place = find_warm(granules, alignment);
  if (!place.found()) place = find_fresh(granules, alignment);
  if (!place.found()) place = find_anywhere(granules, alignment);
  return place;
}

// Among the runs that are long enough, from the shortest on, the first in which an aligned start fits.
Heap::Place Heap::find_aligned(std::uint32_t granules, std::uint32_t alignment) const {
  constexpr int kTries = 16;  // they may all lie askew
  Granule run = warm_.best_fit(granules);
  for (int i = 0; i < kTries && run != kNoGranule; i++, run = warm_.after(run)) {
    const std::uint64_t start = round_up(run, alignment);
    if (start + granules <= std::uint64_t(run) + records_[run].length) return {run, Granule(start), 0};
  }
  return {};
}

Heap::Place Heap::find_warm(std::uint32_t granules, std::uint32_t alignment) const {
  const Place place = find_aligned(granules, alignment);
  if (place.found() || alignment == 1) return place;
  const Granule run = warm_.best_fit(granules + alignment - 1);  // fits in any case
  return run == kNoGranule ? Place{} : Place{run, align_up(run, alignment), 0};
}

// The place with the fewest new chunks among the cold runs (few at most times; the shortest 64 are looked at)
// and the memory behind the frontier.
Heap::Place Heap::find_fresh(std::uint32_t granules, std::uint32_t alignment) const {
  constexpr int kTries = 64;
  Place best;
  Granule run = cold_.best_fit(1);
  for (int i = 0; i < kTries && run != kNoGranule; i++, run = cold_.after(run)) {
    const Place place = extend(run, records_[run].length, granules, alignment);
    if (place.found() && (!best.found() || place.fresh_chunks < best.fresh_chunks)) best = place;
  }
  const Place place = extend(frontier_, limit() - frontier_, granules, alignment);
  if (place.found() && (!best.found() || place.fresh_chunks < best.fresh_chunks)) best = place;
  return best;
}

// A place in the cold run, or one that begins in the warm run before it where that saves a chunk. An object
// of whole chunks otherwise begins on a chunk, so that it can move as whole huge pages.
Heap::Place Heap::extend(Granule run, std::uint32_t run_granules, std::uint32_t granules,
                         std::uint32_t alignment) const {
  if (alignment == 1 && run != 0 && is_free(run - 1)) {
    const std::uint32_t before = records_[run - 1].length;
    if (before < granules) {
      const std::uint32_t fresh = chunks_for(granules - before);
      std::uint32_t used = granules > fresh * kAll ? granules - fresh * kAll : 0;
      if (granules < kAll) used = before;  // a small one leaves one long rest rather than two short ones
      if (used > 0 && granules - used <= run_granules) return {run - before, run - used, fresh};
    }
  }
  const std::uint64_t start = round_up(run, alignment);
  if (start + granules > std::uint64_t(run) + run_granules) return {};
  return {run, Granule(start), chunks_for(offset_in_chunk(Granule(start)) + granules)};
}

// When nothing else fits: any free memory, over the borders of runs.
Heap::Place Heap::find_anywhere(std::uint32_t granules, std::uint32_t alignment) const {
  std::uint64_t start = 0;  // of the candidate, aligned
  Granule first_run = 0;    // the free run that holds it
  bool in_free = false;
  for (Granule at = 0; at < limit();) {
    const bool behind = at == frontier_;
    if (!behind && !is_free(at)) {
      in_free = false;
      at += arena_->length(at);
      continue;
    }
    const std::uint64_t end = behind ? limit() : std::uint64_t(at) + records_[at].length;
    if (!in_free || start >= at) {
      start = round_up(at, alignment);
      first_run = at;
      in_free = true;
    }
    if (start + granules <= end)
      return {first_run, Granule(start), count_fresh(first_run, Granule(start), granules)};
    at = Granule(end);
  }
  return {};
}

std::uint32_t Heap::count_fresh(Granule first_run, Granule start, std::uint32_t granules) const {
  std::uint32_t fresh = 0;
  const Granule end = start + granules;
  for (Granule at = first_run; at < end;) {
    const bool behind = at == frontier_;
    const Granule run_end = behind ? limit() : at + records_[at].length;
    if (behind || records_[at].kind == RunKind::cold) {
      const Granule from = at > start ? at : start, to = run_end < end ? run_end : end;
      if (from < to) fresh += chunk_of(to - 1) - chunk_of(from) + 1;
    }
    at = run_end;
  }
  return fresh;
}

}  // namespace terrace::runtime
