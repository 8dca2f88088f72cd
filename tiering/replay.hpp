// Replays a sequence of touches through an online policy, as the pager would, and counts what it would have
// moved.
//
// Nouns: an *access* touches a block, or ends its life. The *machine* has `budget` blocks mapped, up to
// `window` read ahead and `spare` on their way out, each in a frame of its own. A *load* is a read from the
// store: a demand fault or a read ahead; it is *wasted* when the block leaves again untouched. The policy
// hears only what the pager hears: nothing of the touches of mapped blocks. Reads and writes take no time
// here: the counts say what a policy costs, not how long it takes. Uses the heap and throws; for tests and
// the simulator only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tiering/policy.hpp"

namespace terrace::tiering {

struct Access {
  enum class Kind : std::uint8_t { read, write, free };
  BlockId block;
  Kind kind = Kind::write;
};

struct Machine {
  std::uint32_t budget = 512;         // mapped blocks, at least 1
  std::uint32_t window = 32;          // staged blocks that were read ahead
  std::uint32_t spare = 8;            // staged blocks on their way out
  std::uint32_t batch = 8;            // victims asked for at once
  std::uint64_t access_ns = 100'000;  // mean time between accesses
  double jitter = 0.1;                // share of access_ns by which single accesses and whole stretches vary
  bool map_ahead = true;              // heed OnlinePolicy::map_ahead()
};

struct Counts {
  std::uint64_t accesses = 0;
  std::uint64_t demand = 0;      // waits for the store
  std::uint64_t prefetched = 0;  // reads ahead
  std::uint64_t wasted = 0;      // of those, left untouched
  std::uint64_t rescued = 0;     // touches of blocks on their way out
  std::uint64_t faults = 0;      // seen touches of any kind
  std::uint64_t blocks_out = 0;  // written to the store (dirty victims)
  std::uint64_t dropped = 0;     // clean victims

  std::uint64_t loads() const { return demand + prefetched; }
  Counts operator-(const Counts& earlier) const;
  bool operator==(const Counts&) const = default;
};

// Replays all of `accesses`; the counts after each of `marks` (ascending numbers of accesses) and at the end.
// All blocks are inserted in id order before the first access, each after its predecessor (one array); one
// that was freed is inserted again at its next touch, after the next lower id that is alive. Throws
// std::logic_error when the policy names a victim that is not mapped, a block to read that is not stored, or
// one block twice in a call.
struct ReplayResult {
  std::vector<Counts> at_marks;                // one more than there are marks
  std::vector<std::uint32_t> mapped_at_marks;  // mapped blocks below `watch_below`
};
ReplayResult replay(OnlinePolicy& policy, std::span<const Access> accesses, const Machine& machine,
                    std::span<const std::size_t> marks = {}, BlockId watch_below = 0);

// Loads of Belady's optimum (evict what is touched farthest in the future; L. A. Belady, IBM Systems Journal
// 5(2), 1966) with `budget` frames, cumulative at each of `marks` and at the end. First touches are no loads.
std::vector<std::uint64_t> belady_loads(std::span<const Access> accesses, std::uint32_t budget,
                                        std::span<const std::size_t> marks = {});

}  // namespace terrace::tiering
