// Free runs of granules in order of size, then of address: exact best fit in logarithmic time.
//
// A *run* is a row of free granules of one kind. Its record lies in a table beside the arena, one entry a
// granule, never in the free memory itself, whose pages may be away. The order is a treap (a search tree
// whose shape comes from a hash of the address), so that no pattern of sizes makes it deep and no pass over a
// long list is ever needed.
//
// Invariant: the records of a run at its first and last granule hold its length; links are valid at the first
// only. Threads: none of its own; the heap's lock covers it.
#pragma once

#include <cstdint>

#include "runtime/arena.hpp"

namespace terrace::runtime {

// Frames follow chunks (one huge page each), so both kinds are told apart by chunk.
enum class RunKind : std::uint32_t {
  warm,  // in chunks that were handed out, wholly or in part, and have their frames
  cold,  // whole chunks that were never handed out, or whose frames went back to the system: zero, and free
         // of charge
};

// What the heap keeps for a granule: of a free run at its ends, of an object at its head.
struct RunRecord {
  std::uint32_t length;  // granules; free runs only
  RunKind kind;          // first granule of a free run only
  union {
    struct {
      Granule left, right;  // first granule of a free run only
    };
    std::uint64_t requested_bytes;  // head of an object only
  };
};
static_assert(sizeof(RunRecord) == 16);

class FreeRuns {
 public:
  void init(RunRecord* records) { records_ = records; }

  // records[head].length is set by the caller.
  void insert(Granule head) {
    Granule* link = &root_;
    while (*link != kNoGranule && priority(*link) >= priority(head)) link = step(*link, head);
    Granule rest = *link;
    *link = head;
    Granule* smaller = &records_[head].left;
    Granule* larger = &records_[head].right;
    while (rest != kNoGranule) {
      if (before(rest, head)) {
        *smaller = rest;
        smaller = &records_[rest].right;
        rest = *smaller;
      } else {
        *larger = rest;
        larger = &records_[rest].left;
        rest = *larger;
      }
    }
    *smaller = *larger = kNoGranule;
    count_++;
  }

  void remove(Granule head) {
    Granule* link = &root_;
    while (*link != head) {
      TERRACE_CHECK(*link != kNoGranule, "a free run is missing from its order");
      link = step(*link, head);
    }
    Granule left = records_[head].left, right = records_[head].right;
    while (left != kNoGranule && right != kNoGranule) {
      if (priority(left) >= priority(right)) {
        *link = left;
        link = &records_[left].right;
        left = *link;
      } else {
        *link = right;
        link = &records_[right].left;
        right = *link;
      }
    }
    *link = left != kNoGranule ? left : right;
    count_--;
  }

  // The smallest run of at least `length` granules; of equal ones the lowest at or above `from`. kNoGranule:
  // none.
  Granule best_fit(std::uint32_t length, Granule from = 0) const {
    Granule best = kNoGranule;
    for (Granule at = root_; at != kNoGranule;) {
      const RunRecord& r = records_[at];
      if (r.length > length || (r.length == length && at >= from)) {
        best = at;
        at = r.left;
      } else {
        at = r.right;
      }
    }
    return best;
  }
  // The next run in the order.
  Granule after(Granule head) const { return best_fit(records_[head].length, head + 1); }
  std::uint64_t count() const { return count_; }

 private:
  static std::uint32_t priority(Granule g) {
    g = (g ^ (g >> 16)) * 0x7feb352du;
    g = (g ^ (g >> 15)) * 0x846ca68bu;
    return g ^ (g >> 16);
  }
  bool before(Granule a, Granule b) const {
    return records_[a].length < records_[b].length || (records_[a].length == records_[b].length && a < b);
  }
  Granule* step(Granule at, Granule wanted) const {
    return before(wanted, at) ? &records_[at].left : &records_[at].right;
  }

  RunRecord* records_ = nullptr;
  Granule root_ = kNoGranule;
  std::uint64_t count_ = 0;
};

}  // namespace terrace::runtime
