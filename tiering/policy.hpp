// What a policy for blocks without a plan decides: who leaves DRAM next, and what is worth reading ahead.
//
// Pure: no clock, no system call, no heap of its own; it sees only what its caller tells it, so the live
// pager and the simulator drive the same object. Block ids are dense (0 .. capacity - 1). Time is whatever
// the caller passes, in ns, never going back. Threads: one user at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace::tiering {

using BlockId = std::uint32_t;
inline constexpr BlockId kNoBlock = ~BlockId{0};

// How the program was seen to touch a block.
enum class Touch : std::uint8_t {
  first,     // the block was empty: a new object is being filled
  demand,    // it was stored: the program waited for the disk
  rescued,   // it was staged: prefetched, or on its way out
  inferred,  // not seen: it was mapped ahead and a later one of the same run was touched
};

class OnlinePolicy {
 public:
  // A block begins or ends its life. `after`: the block before it in address order, or kNoBlock (for
  // read-ahead of blocks without history).
  virtual void inserted(BlockId block, BlockId after, std::uint64_t now_ns) = 0;
  virtual void removed(BlockId block) = 0;
  virtual void touched(BlockId block, Touch how, std::uint64_t now_ns) = 0;

  // Marks whether the block may be chosen as a victim (it is mapped and movable) or for reading ahead (it is
  // stored).
  enum class Place : std::uint8_t { none, mapped, stored };
  virtual void placed(BlockId block, Place place) = 0;

  // Fills `out` with mapped blocks that should leave, best victim first; returns how many. The caller tells
  // what it really took with placed().
  virtual std::size_t victims(std::uint64_t now_ns, std::span<BlockId> out) = 0;
  // Fills `out` with stored blocks worth reading after `from` was touched, in the order of their expected
  // touch.
  virtual std::size_t read_ahead(BlockId from, std::uint64_t now_ns, std::span<BlockId> out) = 0;
  // A block that was read ahead left DRAM again untouched.
  virtual void read_in_vain(BlockId block) = 0;
  // How many blocks ahead of the touched one may be mapped without waiting to be touched (0: none).
  virtual std::uint32_t map_ahead() const = 0;
  // Expected time until the next touch of a block, in ns; 0: not known. What is read ahead may replace what
  // is needed later than it, and nothing else (Cao, Felten, Karlin and Li: A study of integrated prefetching
  // and caching strategies, SIGMETRICS 1995, the rule "do no harm").
  virtual double expected_ns(BlockId block, std::uint64_t now_ns) const = 0;

  virtual const char* name() const = 0;

 protected:
  ~OnlinePolicy() = default;
};

}  // namespace terrace::tiering
