#include "runtime/heap.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

#include "base/line.hpp"
#include "base/syscall.hpp"
#include "runtime/heap_units.hpp"

namespace terrace::runtime {
namespace {

// Under pressure all idle frames go back before a pager is started; at most this often, since a program that
// hovers at the threshold would have them zeroed again and again.
constexpr std::uint32_t kPressurePurgeMs = 1000;

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

// Bytes of the tables for that much arena.
std::uint64_t records_bytes_for(std::uint64_t arena_bytes) {
  return round_up(arena_bytes / kGranuleBytes * sizeof(RunRecord), kPageBytes);
}

}  // namespace

std::uint64_t Heap::chunks_bytes_for(std::uint64_t arena_bytes) {
  return round_up(arena_bytes / kChunkBytes * sizeof(ChunkState), kPageBytes);
}

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
  const std::uint64_t records_bytes = records_bytes_for(limit_bytes);
  const std::uint64_t all_bytes = records_bytes + chunks_bytes_for(limit_bytes);
  const long tables =
      sys(SYS_mmap, 0, all_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (tables < 0 && tables > -4096) {
    return Status::from_errno(int(-tables), "no address space for the tables of the heap");
  }
  sys(SYS_madvise, tables, all_bytes, MADV_DONTDUMP);
  sys(SYS_madvise, tables, all_bytes, MADV_NOHUGEPAGE);
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

// --- Books

// Takes the place out of the free runs. The rest of the runs that it cuts is given back only when the new
// object has its owner, for give_back looks at the owners of neighbours.
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
    regret_purge();
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

// Makes [start, start + granules), which no run holds and nobody owns, a free run, joined to neighbours of
// its kind.
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

void Heap::show_live() {
  if (options_.counters == nullptr) return;
  options_.counters->object_bytes.store(statistics_.live_bytes, std::memory_order_relaxed);
  options_.counters->object_peak_bytes.store(statistics_.live_peak_bytes, std::memory_order_relaxed);
  options_.counters->frames_recycled.store(statistics_.recycled_count, std::memory_order_relaxed);
}

void Heap::account_born(std::uint32_t granules) {
  statistics_.live_bytes += granules * kGranuleBytes;
  if (statistics_.live_bytes > statistics_.live_peak_bytes)
    statistics_.live_peak_bytes = statistics_.live_bytes;
  show_live();
}

// Waits until the pager has a place for that many live bytes; false when it has said that there is none.
bool Heap::make_room(std::uint64_t needed_bytes) {
  if (link_->room_bytes.load(std::memory_order_acquire) >= needed_bytes) return true;
  link_->room_refused_bytes.store(0, std::memory_order_seq_cst);  // of an older, larger wish
  link_->room_wanted_bytes.store(needed_bytes, std::memory_order_seq_cst);
  for (;;) {
    if (link_->room_bytes.load(std::memory_order_acquire) >= needed_bytes) return true;
    if (link_->room_refused_bytes.load(std::memory_order_acquire) >= needed_bytes) return false;
    nap(50'000);
  }
}

// Before a place makes touched_bytes exceed the threshold: asks on_pressure what to do. False when there is
// no place any more.
bool Heap::settle_pressure(Place& place, std::uint32_t granules, std::uint32_t alignment) {
  const auto touched = [&] { return statistics_.touched_bytes + place.fresh_chunks * kChunkBytes; };
  if (place.fresh_chunks == 0 || touched() <= pressure_bytes_ || options_.on_pressure == nullptr) return true;
  const std::uint32_t now = now_ms();
  const bool active = link_->active.load(std::memory_order_acquire) != 0;
  const bool may_purge = !active && now - pressure_purged_ms_ >= kPressurePurgeMs;
  const std::uint64_t idle = may_purge ? statistics_.touched_bytes - statistics_.live_bytes : 0;
  if (options_.on_pressure(options_.on_pressure_context, touched(), idle) == Pressure::go_on) return true;
  pressure_purged_ms_ = now;
  if (purge_locked(0, ~std::uint64_t{0}) != 0) place = find(granules, alignment);
  if (!place.found()) return false;
  if (place.fresh_chunks != 0 && touched() > pressure_bytes_)
    (void)options_.on_pressure(options_.on_pressure_context, touched(), 0);
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

// Zeroes what was handed out before of an object that is not dirty itself yet; the rest is zero already and
// may stay without frames.
void Heap::zero_dirty(Granule start, std::uint32_t granules) {
  std::uint64_t dirty_from = 0, dirty_granules = 0;  // one memset for a row of dirty chunks
  const auto flush = [&] {
    if (dirty_granules != 0)
      std::memset(arena_->address_of(Granule(dirty_from)), 0, dirty_granules * kGranuleBytes);
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

// The same while a pager runs: what is mapped may hold anything (frames come recycled), what is absent comes
// as zero.
void Heap::zero_present(Granule start, std::uint32_t granules) {
  for_each_chunk(start, granules, [this](Chunk chunk, GranuleMask mask) {
    if (link_->present != nullptr && link_->all_absent(chunk, mask)) return;
    std::memset(arena_->address_of(chunk * kAll + mask.first()), 0, mask.count() * kGranuleBytes);
  });
}

// --- Objects

// Makes memory and tables up to `end` usable. The tables follow the arena in step, for they would be filled
// whole by a program that locks its memory.
bool Heap::open_up_to(std::uint64_t end) {
  if (!arena_->open_up_to(round_up(end, kAll) * kGranuleBytes).ok()) return false;
  std::uint64_t bytes = arena_->opened_bytes();
  if (bytes > limit() * kGranuleBytes) bytes = limit() * kGranuleBytes;
  if (bytes == tables_opened_bytes_) return true;
  if (sys(SYS_mprotect, records_, records_bytes_for(bytes), PROT_READ | PROT_WRITE) < 0 ||
      sys(SYS_mprotect, chunks_, chunks_bytes_for(bytes), PROT_READ | PROT_WRITE) < 0) {
    return false;
  }
  tables_opened_bytes_ = bytes;
  return true;
}

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
  ok = ok && (end <= frontier_ || open_up_to(end));
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
  if (g >= tables_opened_bytes_ / kGranuleBytes || arena_->owner(g) != g || p != arena_->address_of(g)) {
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
  show_live();
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
         open_up_to(head + granules);
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

// --- Looking

void Heap::for_each_object(void (*visit)(void* context, Granule head, std::uint32_t granules),
                           void* context) const {
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
      TERRACE_CHECK(granules != 0 && std::uint64_t(at) + granules <= frontier_,
                    "an object ends before the frontier");
      for (std::uint32_t i = 0; i < granules; i++)
        TERRACE_CHECK(arena_->owner(at + i) == at, "an object owns all of it");
      TERRACE_CHECK(records_[at].requested_bytes <= granules * kGranuleBytes,
                    "an object holds what was asked for");
      live += granules;
      objects++;
      at += granules;
      before_free = false;
      continue;
    }
    const std::uint32_t granules = records_[at].length;
    const RunKind kind = records_[at].kind;
    TERRACE_CHECK(granules != 0 && std::uint64_t(at) + granules <= frontier_,
                  "a free run ends before the frontier");
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
  TERRACE_CHECK(objects == statistics_.objects && live * kGranuleBytes == statistics_.live_bytes,
                "objects are counted");
  TERRACE_CHECK((frontier_ - cold_granules) * kGranuleBytes == statistics_.touched_bytes,
                "touched bytes are counted");
  lock_.unlock();
}

}  // namespace terrace::runtime
