// The default policy until plans come: keeps what is needed soon, by intervals between touches and a learned
// order.
//
// The touch of a mapped block is not seen. What is seen: first fills, waits for the disk, rescues, and
// touches that the order implies (blocks that lie between two seen ones on a path that came true). Nouns: a
// block's *interval* is the time between two of its touches as far as they could be seen; its *score* is the
// expected time until its next touch, and the largest score leaves first. On a cyclic scan of N blocks with
// room for B that is the block just used, so each pass loads about N - B blocks, as Belady's optimum does. A
// *doubtful* block has been mapped for more than an interval without a sign of life; a few victims are such
// blocks, the more there are of them, and if those do not come back (a phase has ended) the doubtful ones go
// first. Invariant: `mapped_` holds exactly the blocks that are placed `mapped`; victims come from it alone,
// and never from the last few touched or those mapped ahead and not yet reached, unless there are no others.
// Threads: one user at a time. No heap. O(1) per event; victims() scans up to kScanMax blocks once in at
// least 8 to 64 victims.
#pragma once

#include "tiering/policy.hpp"
#include "tiering/successors.hpp"

namespace terrace::tiering {

class StreamPolicy final : public OnlinePolicy {
 public:
  StreamPolicy() = default;

  // Bytes that init() needs for block ids below `capacity`. They may be lazily populated memory: a page is
  // first written when a block that lies on it is inserted or mapped.
  static std::size_t memory_bytes(std::uint32_t capacity);
  // Takes `memory` (aligned to 8 bytes, memory_bytes(capacity) long, any content) for the life of the policy.
  void init(void* memory, std::size_t bytes, std::uint32_t capacity);

  // `after`, where given, must be alive.
  void inserted(BlockId block, BlockId after, std::uint64_t now_ns) override;
  void removed(BlockId block) override;
  void touched(BlockId block, Touch how, std::uint64_t now_ns) override;
  void placed(BlockId block, Place place) override;
  std::size_t victims(std::uint64_t now_ns, std::span<BlockId> out) override;
  std::size_t read_ahead(BlockId from, std::uint64_t now_ns, std::span<BlockId> out) override;
  void read_in_vain(BlockId block) override;
  std::uint32_t map_ahead() const override;
  const char* name() const override { return "stream"; }

  double expected_ns(BlockId block, std::uint64_t now_ns) const override { return score_ns(block, now_ns); }

  // Expected time until the next touch, in ns, as victims() ranks it. For tests and reports.
  double score_ns(BlockId block, std::uint64_t now_ns) const;
  // Whether victims() spares the block as long as others are to be had.
  bool spared(BlockId block) const;

 private:
  static constexpr std::uint32_t kScanMax =
      4096;  // mapped blocks looked at by one scan; above, a rotating window
  static constexpr std::uint32_t kWindow = 1024;   // of this size
  static constexpr std::uint32_t kShortlist = 64;  // best blocks of the last scan
  static constexpr std::uint32_t kRecent = 128;    // seen touches that are always candidates
  // A stretch of mapped blocks longer than this is broken: while the program passes through it nothing is
  // seen and nothing is read.
  static constexpr std::uint32_t kStretch = 16;
  static constexpr std::uint32_t kBreaks = 64;
  static constexpr std::uint32_t kDoubtful = 16;     // of the last scan, the longest unseen
  static constexpr std::uint32_t kTrials = 32;       // doubtful blocks whose return is awaited
  static constexpr std::uint32_t kSpareTouched = 8;  // touches
  static constexpr std::uint32_t kSpareAhead = 64;   // touches

  struct Heat {
    std::uint64_t last_ns;  // last touch, seen or implied
    std::uint64_t left_ns;  // when it was last taken from `mapped`; 0: never
    double interval_ns;     // 0: not known
    float measured_ns;      // the last interval that was seen exactly; 0: the last was not
    float irregular;        // 0: the interval is exact, 1: it says nothing
    std::uint32_t touch;    // touches_ at its last one, or when it was mapped ahead
    std::uint32_t index;    // in mapped_, kNoBlock: not there
    std::uint32_t scan;     // the last scan that took it over from the shortlist
    std::uint8_t slot;      // in recent_, if that slot still names it
    bool reached;           // touched since it was last outside `mapped`
  };
  struct Candidate {
    double score;
    BlockId block;
  };
  struct Trial {
    BlockId block;
    std::uint64_t taken_ns;
    std::uint64_t verdict_ns;
  };

  void learn_interval(Heat& heat, std::uint64_t now_ns, bool seen);
  double period_ns(const Heat& heat) const { return heat.interval_ns > 0 ? heat.interval_ns : typical_ns_; }
  bool doubtful(const Heat& heat, std::uint64_t now_ns) const;
  void scan(std::uint64_t now_ns, std::uint32_t wanted);
  std::size_t take_doubtful(std::uint64_t now_ns, std::span<BlockId> out);
  void judge_trials(std::uint64_t now_ns);
  bool usable(BlockId block) const;
  std::size_t gather(std::uint64_t now_ns, Candidate* out) const;
  std::size_t take_any(std::span<BlockId> out) const;
  std::size_t take_breaks(std::uint64_t now_ns, std::span<BlockId> out);

  Successors order_;
  Heat* heats_ = nullptr;
  BlockId* mapped_ = nullptr;
  std::uint32_t capacity_ = 0;
  std::uint32_t mapped_count_ = 0;
  std::uint64_t now_ns_ = 0;   // latest time heard of
  std::uint32_t touches_ = 0;  // seen and inferred ones
  BlockId last_seen_ = kNoBlock;
  double typical_ns_ = 0;  // moving average of the intervals seen lately; 0: none yet
  float typical_irregular_ = 0;

  BlockId recent_[kRecent];
  std::uint32_t recent_next_ = 0;
  BlockId shortlist_[kShortlist];
  std::uint32_t shortlist_count_ = 0;
  std::uint32_t scan_ = 0;        // scans made
  std::uint32_t until_scan_ = 0;  // victims that may still be served from the shortlist
  std::uint32_t cursor_ = 0;      // of the rotating window
  BlockId breaks_[kBreaks];       // where to break stretches, just touched unseen
  std::uint32_t breaks_count_ = 0;
  std::uint32_t passed_ = 0;     // blocks of the stretch that a touch just ended
  BlockId doubtful_[kDoubtful];  // longest unseen last
  std::uint32_t doubtful_count_ = 0;
  Trial trials_[kTrials];
  std::uint32_t trial_count_ = 0;
  double doubt_ = 0;         // share of doubtful blocks at the last scan
  double dead_ = 0;          // moving share of the trials that did not come back
  double doubt_credit_ = 0;  // doubtful victims that are due
};

}  // namespace terrace::tiering
