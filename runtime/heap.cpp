#include "runtime/heap.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

#include "base/line.hpp"
#include "base/syscall.hpp"

namespace terrace::runtime {
namespace {

constexpr std::uint32_t kAll = kGranulesPerChunk;
// Purging: how often it is thought of, and how much goes at once (an allocation waits for it: 128 MiB of huge pages
// take the kernel about 2 ms).
constexpr std::uint32_t kPurgeCheckMs = 100;
constexpr std::uint64_t kPurgeStepBytes = 128 * kMiB;
// A program whose step is longer than the purge age would have its frames taken and zeroed anew in every step: when
// memory is wanted back this soon after a purge, the age doubles, up to the longest.
constexpr std::uint64_t kRegretAges = 8;
constexpr std::uint64_t kLongestAgeMs = 10 * 60 * 1000;
// Under pressure all idle frames go back before a pager is started; at most this often, since a program that hovers
// at the threshold would have them zeroed again and again.
constexpr std::uint32_t kPressurePurgeMs = 1000;

constexpr Granule align_up(Granule g, std::uint32_t unit) { return Granule(round_up(g, unit)); }
constexpr Granule align_down(Granule g, std::uint32_t unit) { return Granule(round_down(g, unit)); }
constexpr std::uint32_t chunks_for(std::uint32_t granules) { return (granules + kAll - 1) / kAll; }

// Calls body(chunk, mask) for the part of [start, start + granules) in each chunk.
template <typename Body>
void for_each_chunk(Granule start, std::uint32_t granules, Body body) {
  const std::uint64_t end = std::uint64_t(start) + granules;
  for (std::uint64_t at = start; at < end;) {
    const std::uint32_t first = offset_in_chunk(Granule(at));
    const std::uint32_t count = std::uint32_t(end - at < kAll - first ? end - at : kAll - first);
    body(chunk_of(Granule(at)), GranuleMask::range(first, count));
    at += count;
  }
}

void nap(long ns) {
  const timespec t{0, ns};
  sys(SYS_nanosleep, &t, 0);
}

[[noreturn]] void die(const char* call, const void* p, const char* what) {
  Line line;
  line.text("terrace: ").text(call).text(" of ").hex(std::uintptr_t(p)).text(": ").text(what);
  line.write_to(2);
  abort();
}

}  // namespace

struct Heap::Leftovers {
  struct Piece {
    Granule start;
    std::uint32_t granules;
    RunKind kind;
  };
  Piece pieces[4];
  int count = 0;
  void add(Granule start, Granule end, RunKind kind) {
    if (start < end) pieces[count++] = {start, end - start, kind};
  }
};

Status Heap::init(Arena* arena, PagerLink* link, const HeapOptions& options) {
  std::uint64_t limit_bytes = round_down(options.limit_bytes, kChunkBytes);
  if (limit_bytes == 0 || limit_bytes > arena->reserved_bytes()) limit_bytes = arena->reserved_bytes();
  const std::uint64_t records_bytes = limit_bytes / kGranuleBytes * sizeof(RunRecord);
  const std::uint64_t chunks_bytes = limit_bytes / kChunkBytes * sizeof(ChunkState);
  const long tables = sys(SYS_mmap, 0, records_bytes + chunks_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (tables < 0 && tables > -4096) return Status::from_errno(int(-tables), "no address space for the tables of the heap");
  sys(SYS_madvise, tables, records_bytes + chunks_bytes, MADV_DONTDUMP);
  sys(SYS_madvise, tables, records_bytes + chunks_bytes, MADV_NOHUGEPAGE);
  arena_ = arena;
  link_ = link;
  options_ = options;
  purge_age_ms_ = options.purge_age_ms;
  limit_granules_ = Granule(limit_bytes / kGranuleBytes);
  records_ = reinterpret_cast<RunRecord*>(tables);
  chunks_ = reinterpret_cast<ChunkState*>(tables + long(records_bytes));
  warm_.init(records_);
  cold_.init(records_);
  purge_checked_ms_ = pressure_purged_ms_ = now_ms();
  return Status::success();
}

// The purge clock: coarse (4 ms) because it is read at each free; it wraps after 49 days, which differences survive.
std::uint32_t Heap::now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return std::uint32_t(std::uint64_t(t.tv_sec) * 1000 + std::uint64_t(t.tv_nsec) / 1'000'000);
}

// --- Placement

Heap::Place Heap::find(std::uint32_t granules, std::uint32_t alignment) const {
  // While a pager runs, free memory holds no frames and costs nothing, and whole chunks move as whole huge pages: then
  // objects of a chunk and more begin on one. Without a pager that would raise the peak of resnet by 3.5 %.
  if (granules >= kAll && alignment < kAll && link_->active.load(std::memory_order_relaxed) != 0) {
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

// The place with the fewest new chunks among the cold runs (few at most times; the shortest 64 are looked at) and the
// memory behind the frontier.
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

// A place in the cold run, or one that begins in the warm run before it where that saves a chunk. An object of whole
// chunks otherwise begins on a chunk, so that it can move as whole huge pages.
Heap::Place Heap::extend(Granule run, std::uint32_t run_granules, std::uint32_t granules, std::uint32_t alignment) const {
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
  std::uint64_t start = 0;      // of the candidate, aligned
  Granule first_run = 0;        // the free run that holds it
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
    if (start + granules <= end) return {first_run, Granule(start), count_fresh(first_run, Granule(start), granules)};
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

// --- Books

// Takes the place out of the free runs. The rest of the runs that it cuts is given back only when the new object has
// its owner, for give_back looks at the owners of neighbours.
Heap::Leftovers Heap::take(const Place& place, std::uint32_t granules) {
  Leftovers rest;
  const Granule start = place.start, end = start + granules;
  for (Granule at = place.first_run; at < end;) {
    if (at == frontier_) {
      const Granule warm_end = align_up(end, kAll);
      rest.add(at, align_down(start > at ? start : at, kAll), RunKind::cold);
      rest.add(align_down(start > at ? start : at, kAll), start, RunKind::warm);
      rest.add(end, warm_end, RunKind::warm);
      frontier_ = warm_end;
      break;
    }
    const Granule run_end = at + records_[at].length;
    const RunKind kind = records_[at].kind;
    order(kind).remove(at);
    const bool cold = kind == RunKind::cold;
    if (at < start) {
      const Granule touched = cold ? align_down(start, kAll) : at;
      rest.add(at, touched, RunKind::cold);
      rest.add(touched, start, RunKind::warm);
    }
    if (end < run_end) {
      const Granule touched = cold ? align_up(end, kAll) : run_end;
      rest.add(end, touched, RunKind::warm);
      rest.add(touched, run_end, RunKind::cold);
    }
    at = run_end;
  }
  if (place.fresh_chunks != 0) {
    if (purge_regret_armed_ && now_ms() - purged_ms_ < kRegretAges * purge_age_ms_) {
      purge_age_ms_ = purge_age_ms_ * 2 < kLongestAgeMs ? purge_age_ms_ * 2 : kLongestAgeMs;
      purge_regret_armed_ = false;
    }
    statistics_.touched_bytes += place.fresh_chunks * kChunkBytes;
  }
  return rest;
}

void Heap::give_back(const Leftovers& leftovers) {
  // First all tags: pieces may touch (a cold and a warm one), and insert_free reads its neighbours' tags.
  for (int i = 0; i < leftovers.count; i++) {
    const auto& piece = leftovers.pieces[i];
    write_tags(piece.start, piece.granules, piece.kind);
  }
  for (int i = 0; i < leftovers.count; i++) {
    const auto& piece = leftovers.pieces[i];
    insert_free(piece.start, piece.granules, piece.kind);
  }
}

// Makes [start, start + granules), which no run holds and nobody owns, a free run, joined to neighbours of its kind.
void Heap::insert_free(Granule start, std::uint32_t granules, RunKind kind) {
  if (start != 0 && is_free(start - 1)) {
    const Granule before = start - records_[start - 1].length;
    if (records_[before].kind == kind) {
      order(kind).remove(before);
      granules += start - before;
      start = before;
    }
  }
  const Granule end = start + granules;
  if (end == frontier_ && kind == RunKind::cold) {
    frontier_ = start;
    return;
  }
  if (end < frontier_ && is_free(end) && records_[end].kind == kind) {
    order(kind).remove(end);
    granules += records_[end].length;
  }
  write_tags(start, granules, kind);
  order(kind).insert(start);
}

void Heap::write_tags(Granule start, std::uint32_t granules, RunKind kind) {
  records_[start].kind = kind;
  records_[start].length = records_[start + granules - 1].length = granules;
}

void Heap::push(Command::Kind kind, Granule head, std::uint32_t granules, bool zeroed) {
  const Command command{kind, head, granules, zeroed ? 1u : 0u};
  while (!link_->queue.push(command)) nap(20'000);  // the pager drains it and never waits for us
}

void Heap::account_born(std::uint32_t granules) {
  statistics_.live_bytes += granules * kGranuleBytes;
  if (statistics_.live_bytes > statistics_.live_peak_bytes) statistics_.live_peak_bytes = statistics_.live_bytes;
}

// Waits until the pager has a place for that many live bytes; false when it has said that there is none.
bool Heap::make_room(std::uint64_t needed_bytes) {
  if (link_->room_bytes.load(std::memory_order_acquire) >= needed_bytes) return true;
  if (link_->room_wanted_bytes.load(std::memory_order_relaxed) < needed_bytes) {
    link_->room_wanted_bytes.store(needed_bytes, std::memory_order_seq_cst);
  }
  for (;;) {
    if (link_->room_bytes.load(std::memory_order_acquire) >= needed_bytes) return true;
    if (link_->room_refused_bytes.load(std::memory_order_acquire) >= needed_bytes) return false;
    nap(50'000);
  }
}

// Before a place makes touched_bytes exceed the threshold: gives idle frames back, then calls on_pressure. False when
// there is no place any more.
bool Heap::settle_pressure(Place& place, std::uint32_t granules, std::uint32_t alignment) {
  const auto exceeds = [&] { return statistics_.touched_bytes + place.fresh_chunks * kChunkBytes > pressure_bytes_; };
  if (place.fresh_chunks == 0 || !exceeds()) return true;
  const std::uint32_t now = now_ms();
  if (link_->active.load(std::memory_order_acquire) == 0 && now - pressure_purged_ms_ >= kPressurePurgeMs) {
    pressure_purged_ms_ = now;
    if (purge_locked(0, ~std::uint64_t{0}) != 0) place = find(granules, alignment);
    if (!place.found()) return false;
  }
  if (exceeds() && options_.on_pressure != nullptr) {
    options_.on_pressure(options_.on_pressure_context, statistics_.touched_bytes + place.fresh_chunks * kChunkBytes);
  }
  return true;
}

// --- Contents

void Heap::mark_dirty(Granule start, std::uint32_t granules) {
  for_each_chunk(start, granules, [this](Chunk chunk, GranuleMask mask) {
    auto& dirty = chunks_[chunk].dirty;
    if (mask.low_word() != 0) dirty[0].fetch_or(mask.low_word(), std::memory_order_relaxed);
    if (mask.high_word() != 0) dirty[1].fetch_or(mask.high_word(), std::memory_order_relaxed);
  });
}

// Zeroes what was handed out before of an object that is not dirty itself yet; the rest is zero already and may stay
// without frames.
void Heap::zero_dirty(Granule start, std::uint32_t granules) {
  std::uint64_t dirty_from = 0, dirty_granules = 0;  // one memset for a row of dirty chunks
  const auto flush = [&] {
    if (dirty_granules != 0) std::memset(arena_->address_of(Granule(dirty_from)), 0, dirty_granules * kGranuleBytes);
    dirty_granules = 0;
  };
  for_each_chunk(start, granules, [&](Chunk chunk, GranuleMask mask) {
    const auto& dirty = chunks_[chunk].dirty;
    const auto word = [&](int i) { return dirty[i].load(std::memory_order_relaxed); };
    const std::uint64_t low = word(0) & mask.low_word(), high = word(1) & mask.high_word();
    if ((low | high) == 0) return flush();
    for (std::uint32_t i = mask.first(), end = i + mask.count(); i < end; i++) {
      if ((((i < 64 ? low : high) >> (i % 64)) & 1) == 0) {
        flush();
        continue;
      }
      if (dirty_granules == 0) dirty_from = std::uint64_t(chunk) * kAll + i;
      dirty_granules++;
    }
  });
  flush();
}

// The same while a pager runs: what is mapped may hold anything (frames come recycled), what is absent comes as zero.
void Heap::zero_present(Granule start, std::uint32_t granules) {
  for_each_chunk(start, granules, [this](Chunk chunk, GranuleMask mask) {
    if (link_->present != nullptr && link_->all_absent(chunk, mask)) return;
    std::memset(arena_->address_of(chunk * kAll + mask.first()), 0, mask.count() * kGranuleBytes);
  });
}

// --- Objects

void* Heap::allocate(std::size_t bytes, std::size_t alignment, Fill fill, std::size_t capacity_bytes) {
  const std::uint64_t wanted = granules_for(capacity_bytes > bytes ? capacity_bytes : bytes);
  if (bytes > kTiB || capacity_bytes > kTiB || wanted > limit() || alignment > kGiB) return nullptr;
  const auto granules = std::uint32_t(wanted);
  const std::uint32_t step = alignment <= kGranuleBytes ? 1 : std::uint32_t(alignment / kGranuleBytes);
  lock();
  Place place = find(granules, step);
  bool ok = place.found() && settle_pressure(place, granules, step);
  const bool active = link_->active.load(std::memory_order_acquire) != 0;
  ok = ok && (!active || make_room(statistics_.live_bytes + granules * kGranuleBytes));
  const std::uint64_t end = std::uint64_t(place.start) + granules;
  ok = ok && (end <= frontier_ || arena_->open_up_to(round_up(end, kAll) * kGranuleBytes).ok());
  if (!ok) {
    unlock();
    return nullptr;
  }
  const Leftovers rest = take(place, granules);
  if (active) push(Command::Kind::born, place.start, granules, fill == Fill::zero);
  arena_->set_owner(place.start, granules);
  records_[place.start].requested_bytes = bytes;
  give_back(rest);
  account_born(granules);
  statistics_.objects++;
  if (place.fresh_chunks == 0) statistics_.recycled_count++;
  unlock();

  if (fill == Fill::zero) {
    if (active) {
      zero_present(place.start, granules);
    } else {
      zero_dirty(place.start, granules);
    }
  }
  mark_dirty(place.start, granules);
  return arena_->address_of(place.start);
}

Granule Heap::checked_head(const void* p, const char* call) const {
  const Granule g = arena_->granule_at(p);
  if (g >= limit() || arena_->owner(g) != g || p != arena_->address_of(g)) {
    die(call, p, "not the start of a live object (freed twice, or a pointer into one)");
  }
  return g;
}

void Heap::free(void* p) {
  const Granule head = checked_head(p, "free");
  lock();
  checked_head(p, "free");  // again: two threads may free it at once
  const std::uint32_t granules = arena_->length(head);
  const bool active = link_->active.load(std::memory_order_acquire) != 0;
  if (active) push(Command::Kind::died, head, granules, false);
  arena_->clear_owner(head);
  const std::uint32_t now = now_ms();
  for (Chunk c = chunk_of(head); c <= chunk_of(head + granules - 1); c++) chunks_[c].freed_at_ms = now;
  insert_free(head, granules, RunKind::warm);
  statistics_.live_bytes -= granules * kGranuleBytes;
  statistics_.objects--;
  if (!active) purge_sometimes(now);
  unlock();
}

std::size_t Heap::usable_bytes(const void* p) const {
  return records_[checked_head(p, "malloc_usable_size")].requested_bytes;
}

bool Heap::resize_in_place(void* p, std::size_t bytes) {
  if (bytes == 0 || bytes > kTiB) return false;
  const auto granules = std::uint32_t(granules_for(bytes));
  const Granule head = checked_head(p, "realloc");
  lock();
  const std::uint32_t had = arena_->length(head);
  const bool active = link_->active.load(std::memory_order_acquire) != 0;
  bool ok = true;
  if (granules > had) {
    // [head + had, head + granules), if it is free: from the run that begins there, or from the frontier.
    const Granule from = head + had;
    const std::uint32_t more = granules - had;
    std::uint64_t end = from;
    while (!active && end < frontier_ && end < std::uint64_t(head) + granules && is_free(Granule(end))) {
      end += records_[end].length;
    }
    if (end == frontier_) end = limit();
    ok = !active && end >= std::uint64_t(head) + granules;
    Place place{from, from, ok ? count_fresh(from, from, more) : 0};
    ok = ok && statistics_.touched_bytes + place.fresh_chunks * kChunkBytes <= pressure_bytes_ &&
         arena_->open_up_to(round_up(head + granules, kAll) * kGranuleBytes).ok();
    if (ok) {
      const Leftovers rest = take(place, more);
      arena_->clear_owner(head);
      arena_->set_owner(head, granules);
      give_back(rest);
      account_born(more);
      mark_dirty(from, more);
    }
  } else if (!active && granules < had - had / 4) {  // a quarter is kept: realloc grows by that much at once
    const std::uint32_t less = had - granules;
    const Granule from = head + granules;
    arena_->clear_owner(head);
    arena_->set_owner(head, granules);
    const std::uint32_t now = now_ms();
    for (Chunk c = chunk_of(from); c <= chunk_of(from + less - 1); c++) chunks_[c].freed_at_ms = now;
    insert_free(from, less, RunKind::warm);
    statistics_.live_bytes -= less * kGranuleBytes;
  }
  if (ok) records_[head].requested_bytes = bytes;
  unlock();
  return ok;
}

// --- Purge by age

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
std::uint64_t Heap::purge_run(Granule run, std::uint64_t age_ms, std::uint32_t now, std::uint64_t most_bytes) {
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
    // The pieces are put back from the last to the first, each against neighbours that stand: first the two warm ones.
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

// --- Looking

void Heap::for_each_object(void (*visit)(void* context, Granule head, std::uint32_t granules), void* context) const {
  for (Granule at = 0; at < frontier_;) {
    if (is_free(at)) {
      at += records_[at].length;
      continue;
    }
    const std::uint32_t granules = arena_->length(at);
    visit(context, at, granules);
    at += granules;
  }
}

HeapStatistics Heap::statistics() const {
  lock_.lock();
  const HeapStatistics copy = statistics_;
  lock_.unlock();
  return copy;
}

void Heap::validate() const {
  lock_.lock();
  std::uint64_t live = 0, objects = 0, warm = 0, cold = 0, cold_granules = 0;
  bool before_free = false;
  RunKind before_kind = RunKind::warm;
  Granule at = 0;
  while (at < frontier_) {
    if (!is_free(at)) {
      const std::uint32_t granules = arena_->length(at);
      TERRACE_CHECK(granules != 0 && std::uint64_t(at) + granules <= frontier_, "an object ends before the frontier");
      for (std::uint32_t i = 0; i < granules; i++) TERRACE_CHECK(arena_->owner(at + i) == at, "an object owns all of it");
      TERRACE_CHECK(records_[at].requested_bytes <= granules * kGranuleBytes, "an object holds what was asked for");
      live += granules;
      objects++;
      at += granules;
      before_free = false;
      continue;
    }
    const std::uint32_t granules = records_[at].length;
    const RunKind kind = records_[at].kind;
    TERRACE_CHECK(granules != 0 && std::uint64_t(at) + granules <= frontier_, "a free run ends before the frontier");
    TERRACE_CHECK(records_[at + granules - 1].length == granules, "both tags of a free run agree");
    for (std::uint32_t i = 0; i < granules; i++) TERRACE_CHECK(is_free(at + i), "a free run has no owner");
    TERRACE_CHECK(!before_free || before_kind != kind, "free runs of one kind are joined");
    const FreeRuns& runs = kind == RunKind::warm ? warm_ : cold_;
    TERRACE_CHECK(runs.best_fit(granules, at) == at, "a free run stands in its order");
    if (kind == RunKind::cold) {
      TERRACE_CHECK(at % kAll == 0 && granules % kAll == 0, "a cold run is whole chunks");
      TERRACE_CHECK(at + granules != frontier_, "no cold run ends at the frontier");
      for (Chunk c = chunk_of(at); c < chunk_of(at + granules); c++) {
        TERRACE_CHECK(chunks_[c].dirty[0] == 0 && chunks_[c].dirty[1] == 0, "a cold run is zero");
      }
      cold_granules += granules;
    }
    (kind == RunKind::warm ? warm : cold)++;
    before_free = true;
    before_kind = kind;
    at += granules;
  }
  TERRACE_CHECK(at == frontier_, "runs tile the arena up to the frontier");
  TERRACE_CHECK(warm == warm_.count() && cold == cold_.count(), "no free run is listed twice");
  TERRACE_CHECK(objects == statistics_.objects && live * kGranuleBytes == statistics_.live_bytes, "objects are counted");
  TERRACE_CHECK((frontier_ - cold_granules) * kGranuleBytes == statistics_.touched_bytes, "touched bytes are counted");
  lock_.unlock();
}

}  // namespace terrace::runtime
