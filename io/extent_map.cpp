#include <bit>

#include "base/check.hpp"
#include "io/store.hpp"

namespace terrace::io {

// Each segment stands in the list of the length class of its longest free run: class 0 has none, class c >= 1
// has a run of 2^(c-1) to 2^c - 1 granules, class 8 is the whole segment. A request for `count` takes the
// first segment of the smallest class whose runs are all long enough (its class rounded up), so it is found
// without a search; only when there is none are the members of the class below, whose runs may or may not
// fit, looked at.
struct ExtentMap::Segment {
  GranuleMask free;
  std::uint32_t next, previous;  // index + 1; 0: none
  std::uint32_t length_class;
  std::uint32_t longest;  // free run, granules
};

namespace {

// Members of the uncertain class that one allocation looks at: bounds its time; beyond it a fresh segment is
// opened.
constexpr std::uint32_t kMaxProbes = 16;

std::uint32_t class_of(std::uint32_t longest) { return std::uint32_t(std::bit_width(longest)); }

std::uint32_t longest_run(GranuleMask free) {
  std::uint32_t longest = 0;
  while (free.any()) {
    const std::uint32_t first = free.first(), run = free.run_at(first);
    if (run > longest) longest = run;
    free &= ~GranuleMask::range(first, run);
  }
  return longest;
}

}  // namespace

std::uint64_t ExtentMap::table_bytes(std::uint32_t segments) {
  return std::uint64_t(segments) * sizeof(Segment);
}

void ExtentMap::init(void* memory, std::uint32_t max_segments) {
  *this = {};
  table_ = static_cast<Segment*>(memory);
  max_segments_ = max_segments;
}

void ExtentMap::grow(std::uint32_t segments) {
  TERRACE_CHECK(segments <= max_segments_ - segments_, "the table has room for what was reserved");
  // From the back, so that the lists hand out low offsets first.
  for (std::uint32_t i = segments_ + segments; i-- > segments_;) {
    table_[i] = {GranuleMask::all(), 0, 0, 0, kGranulesPerChunk};
    link(i);
  }
  segments_ += segments;
  free_granules_ += std::uint64_t(segments) * kGranulesPerChunk;
}

void ExtentMap::link(std::uint32_t index) {
  Segment& s = table_[index];
  s.length_class = class_of(s.longest);
  s.previous = 0;
  s.next = heads_[s.length_class];
  if (s.next != 0) table_[s.next - 1].previous = index + 1;
  heads_[s.length_class] = index + 1;
}

void ExtentMap::unlink(std::uint32_t index) {
  Segment& s = table_[index];
  if (s.previous != 0)
    table_[s.previous - 1].next = s.next;
  else
    heads_[s.length_class] = s.next;
  if (s.next != 0) table_[s.next - 1].previous = s.previous;
}

Extent ExtentMap::allocate(std::uint32_t count) {
  TERRACE_CHECK(count >= 1 && count <= kGranulesPerChunk, "an extent is 1 to 128 granules");
  const std::uint32_t certain = class_of(count - 1) + 1;  // every run of this class holds `count`
  std::uint32_t index = 0;                                // + 1
  std::uint32_t probes = 0;
  // The uncertain class first (it keeps longer runs whole), within the bound.
  if (certain != class_of(count))
    for (std::uint32_t i = heads_[class_of(count)]; i != 0 && probes < kMaxProbes;
         i = table_[i - 1].next, probes++)
      if (table_[i - 1].longest >= count) {
        index = i;
        break;
      }
  for (std::uint32_t c = certain; index == 0 && c < kClasses; c++) index = heads_[c];
  // Nothing certain is left: the rest of the uncertain class, however long, before the store is called full.
  if (index == 0 && probes == kMaxProbes)
    for (std::uint32_t i = heads_[class_of(count)]; i != 0; i = table_[i - 1].next)
      if (table_[i - 1].longest >= count) {
        index = i;
        break;
      }
  if (index == 0) return {};
  Segment& s = table_[index - 1];
  const std::uint32_t first = s.free.find_run(count);
  TERRACE_CHECK(first < kGranulesPerChunk, "a segment's longest run is true");
  unlink(index - 1);
  s.free &= ~GranuleMask::range(first, count);
  s.longest = longest_run(s.free);
  link(index - 1);
  free_granules_ -= count;
  used_granules_ += count;
  return {(index - 1) * kGranulesPerChunk + first, count};
}

void ExtentMap::release(Extent extent) {
  const std::uint32_t index = extent.first / kGranulesPerChunk, first = offset_in_chunk(extent.first);
  TERRACE_CHECK(extent.valid() && index < segments_ && first + extent.count <= kGranulesPerChunk,
                "an extent lies within one segment of this map");
  Segment& s = table_[index];
  const GranuleMask mask = GranuleMask::range(first, extent.count);
  TERRACE_CHECK((s.free & mask).none(), "an extent is released once");
  unlink(index);
  s.free = s.free | mask;
  s.longest = longest_run(s.free);
  link(index);
  free_granules_ += extent.count;
  used_granules_ -= extent.count;
}

void ExtentMap::validate() const {
  std::uint64_t free = 0, listed = 0;
  for (std::uint32_t i = 0; i < segments_; i++) {
    const Segment& s = table_[i];
    TERRACE_CHECK(s.longest == longest_run(s.free), "a segment's longest run is true");
    TERRACE_CHECK(s.length_class == class_of(s.longest), "a segment's class is true");
    free += s.free.count();
  }
  for (std::uint32_t c = 0; c < kClasses; c++) {
    std::uint32_t previous = 0;
    for (std::uint32_t i = heads_[c]; i != 0; i = table_[i - 1].next) {
      TERRACE_CHECK(i <= segments_ && listed < segments_, "lists hold each segment once");
      TERRACE_CHECK(table_[i - 1].length_class == c && table_[i - 1].previous == previous, "lists are whole");
      previous = i;
      listed++;
    }
  }
  TERRACE_CHECK(listed == segments_, "each segment is listed");
  TERRACE_CHECK(free == free_granules_, "free granules add up");
  TERRACE_CHECK(free_granules_ + used_granules_ == std::uint64_t(segments_) * kGranulesPerChunk,
                "free + used == reserved");
}

}  // namespace terrace::io
