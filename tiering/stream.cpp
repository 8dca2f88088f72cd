#include "tiering/stream.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace terrace::tiering {
namespace {

constexpr double kTypicalShare = 1.0 / 16;   // of a new interval in the moving average of all
constexpr double kGrowthMax = 1.5;           // of an interval, by one measurement
constexpr float kIrregularShare = 1.0F / 4;  // of a new deviation in a block's own
constexpr double kDoubtAfter = 1.25;         // intervals without a sign of life
constexpr double kVerdictAfter = 0.75;       // intervals that a doubtful block has to come back
constexpr double kDeadShare = 1.0 / 8;       // of a new verdict in the moving share of the dead,
constexpr double kBackShare = 1.0 / 4;       // heavier for one that came back: it has cost a load
// Share of the victims that are doubtful blocks on trial: a tenth of their share of the mapped ones. Where
// the order shows nearly all touches that is next to nothing; when a phase ends it grows to what gives a
// verdict soon.
constexpr double kTrialShare = 0.1;
constexpr double kDrained = 0.05;  // share of doubtful blocks below which an ended phase is over
constexpr double kTrialShareMin = 1.0 / 128;

constexpr std::size_t align8(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

bool contains(std::span<const BlockId> blocks, BlockId block) {
  return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}

}  // namespace

std::size_t StreamPolicy::memory_bytes(std::uint32_t capacity) {
  return align8(Successors::memory_bytes(capacity)) +
         std::size_t(capacity) * (sizeof(Heat) + sizeof(BlockId));
}

void StreamPolicy::init(void* memory, std::size_t bytes, std::uint32_t capacity) {
  TERRACE_CHECK(bytes >= memory_bytes(capacity), "stream: memory too small for its capacity");
  auto* at = static_cast<std::byte*>(memory);
  heats_ = reinterpret_cast<Heat*>(at);
  at += std::size_t(capacity) * sizeof(Heat);
  order_.init(at, capacity);
  at += align8(Successors::memory_bytes(capacity));
  mapped_ = reinterpret_cast<BlockId*>(at);
  capacity_ = capacity;
  mapped_count_ = touches_ = shortlist_count_ = scan_ = until_scan_ = cursor_ = doubtful_count_ =
      trial_count_ = breaks_count_ = passed_ = 0;
  recent_next_ = 0;
  std::fill(std::begin(recent_), std::end(recent_), kNoBlock);
  now_ns_ = 0;
  last_seen_ = kNoBlock;
  typical_ns_ = 0;
  typical_irregular_ = 0;
  doubt_ = dead_ = doubt_credit_ = 0;
}

void StreamPolicy::inserted(BlockId block, BlockId after, std::uint64_t now_ns) {
  order_.inserted(block, after);
  now_ns_ = std::max(now_ns_, now_ns);
  heats_[block] = {now_ns_, 0, 0, 0, 0, touches_ - kSpareAhead, kNoBlock, 0, 0, false};
}

void StreamPolicy::removed(BlockId block) {
  placed(block, Place::none);
  order_.removed(block);
  if (last_seen_ == block) last_seen_ = kNoBlock;
}

void StreamPolicy::placed(BlockId block, Place place) {
  Heat& heat = heats_[block];
  if (place == Place::mapped) {
    if (heat.index == kNoBlock) {
      heat.index = mapped_count_;
      mapped_[mapped_count_++] = block;
      if (!heat.reached) heat.touch = touches_;  // mapped ahead: spared for a while
    }
  } else if (heat.index != kNoBlock) {
    const BlockId moved = mapped_[--mapped_count_];
    mapped_[heat.index] = moved;
    heats_[moved].index = heat.index;
    heat.index = kNoBlock;
    heat.left_ns = now_ns_;
    heat.reached = false;
  }
  order_.placed(block, place);
}

// What a touch tells about the interval of its block. `gap`, since the last known touch, is an upper bound
// that is exact if the block was not mapped for most of it; `absent`, since it left, is a lower bound.
void StreamPolicy::learn_interval(Heat& heat, std::uint64_t now_ns, bool seen) {
  if (heat.left_ns <= heat.last_ns) return;  // it has not been away since
  const double gap = double(now_ns - heat.last_ns);
  const double absent = double(now_ns - heat.left_ns);
  if (gap <= 0) return;
  const bool exact = absent >= 0.75 * gap;
  double& interval = heat.interval_ns;
  if (interval == 0) {
    // Unseen while it was mapped: take its neighbour's, or twice the wait (it was taken at a random moment).
    const double near = last_seen_ != kNoBlock ? heats_[last_seen_].interval_ns : 0;
    interval = exact ? gap : std::clamp(near > 0 ? near : 2 * absent, absent, gap);
    heat.irregular = typical_irregular_;
  } else {
    const double periods = double(std::uint64_t(gap / interval + 0.5));
    double measured = exact || periods < 2 ? gap : std::clamp(gap / periods, absent, gap);
    if (!exact && absent < interval / 16 && gap > 4 * interval)
      measured = interval / 2;  // it has become hotter
    if (exact) {
      const float off = float((measured > interval ? measured - interval : interval - measured) /
                              std::max(measured, interval));
      heat.irregular += (off - heat.irregular) * kIrregularShare;
      typical_irregular_ += (off - typical_irregular_) * float(kTypicalShare);
    }
    // Two alike in a row are believed; one out of all proportion (a pause, a phase) must not spoil what was
    // known.
    const double before = heat.measured_ns;
    const bool alike = exact && before > 0.8 * measured && before < 1.25 * measured;
    heat.measured_ns = exact ? float(measured) : 0;
    interval = alike ? measured : std::min((interval + measured) / 2, kGrowthMax * interval);
  }
  if (seen) typical_ns_ += (interval - typical_ns_) * (typical_ns_ == 0 ? 1.0 : kTypicalShare);
}

void StreamPolicy::touched(BlockId block, Touch how, std::uint64_t now_ns) {
  now_ns_ = std::max(now_ns_, now_ns);
  const bool seen = how != Touch::inferred;
  Heat& heat = heats_[block];
  if (how != Touch::first) learn_interval(heat, now_ns_, seen);
  ++touches_;
  heat.slot = std::uint8_t(recent_next_++ % kRecent);
  recent_[heat.slot] = block;
  heat.last_ns = now_ns_;
  heat.touch = touches_;
  heat.reached = true;
  passed_ = 0;
  order_.touched(
      block, how,
      [](void* self, BlockId passed) {
        auto& policy = *static_cast<StreamPolicy*>(self);
        policy.heats_[passed].last_ns = policy.now_ns_;
        if (++policy.passed_ % kStretch == 0 && policy.breaks_count_ < kBreaks)
          policy.breaks_[policy.breaks_count_++] = passed;
      },
      this);
  if (seen) last_seen_ = block;
}

double StreamPolicy::score_ns(BlockId block, std::uint64_t now_ns) const {
  const Heat& heat = heats_[block];
  const double age = now_ns > heat.last_ns ? double(now_ns - heat.last_ns) : 0;
  const double interval = heat.interval_ns;
  if (interval == 0) {
    // Touched once: as long as nothing is known of others, the longer ago the longer to wait; else it will be
    // like the others, but never before a block that was just used.
    if (typical_ns_ == 0) return age;
    return age <= typical_ns_ ? age / 2 : typical_ns_ - typical_ns_ / 2 * (typical_ns_ / age);
  }
  // Touched unseen once an interval, as the phase says; the longer ago the last sign, the less is known of
  // the phase.
  const double periods = double(std::uint64_t(age / interval));
  const double phase = age - periods * interval;
  const double sure = 1 / (1 + periods);
  const double regular = sure * (interval - phase) + (1 - sure) * interval / 2;
  return regular +
         double(heat.irregular) * (interval - regular);  // without memory the wait is always an interval
}

bool StreamPolicy::spared(BlockId block) const {
  const Heat& heat = heats_[block];
  const std::uint32_t few = mapped_count_ / 4;
  return touches_ - heat.touch < std::min(heat.reached ? kSpareTouched : kSpareAhead, few);
}

bool StreamPolicy::usable(BlockId block) const {
  return order_.alive(block) && heats_[block].index != kNoBlock && !spared(block);
}

bool StreamPolicy::doubtful(const Heat& heat, std::uint64_t now_ns) const {
  const double period = period_ns(heat);
  return period > 0 && now_ns > heat.last_ns && double(now_ns - heat.last_ns) > kDoubtAfter * period;
}

// Looks at all mapped blocks, or the next kWindow of many, and keeps the best and the most doubtful.
void StreamPolicy::scan(std::uint64_t now_ns, std::uint32_t wanted) {
  Candidate best[kShortlist];
  Candidate old[kDoubtful];
  std::uint32_t bests = 0, olds = 0, doubts = 0;
  const auto keep = [](Candidate* heap, std::uint32_t& n, std::uint32_t limit, Candidate c) {
    const auto larger = [](const Candidate& a, const Candidate& b) {
      return a.score != b.score ? a.score > b.score : a.block < b.block;
    };
    if (n == limit) {
      if (!larger(c, heap[0])) return;
      std::pop_heap(heap, heap + n, larger);
      --n;
    }
    heap[n++] = c;
    std::push_heap(heap, heap + n, larger);
  };
  const std::uint32_t count = mapped_count_ <= kScanMax ? mapped_count_ : kWindow;
  ++scan_;
  if (mapped_count_ > kScanMax) {  // what was good before still is
    for (std::uint32_t i = 0; i < shortlist_count_; ++i) {
      const BlockId b = shortlist_[i];
      heats_[b].scan = scan_;
      if (usable(b)) keep(best, bests, kShortlist, {score_ns(b, now_ns), b});
    }
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    if (cursor_ >= mapped_count_) cursor_ = 0;
    const BlockId b = mapped_[cursor_++];
    if (spared(b)) continue;
    if (heats_[b].scan != scan_) keep(best, bests, kShortlist, {score_ns(b, now_ns), b});
    if (doubtful(heats_[b], now_ns)) {
      ++doubts;
      keep(old, olds, kDoubtful, {double(now_ns - heats_[b].last_ns), b});
    }
  }
  for (std::uint32_t i = 0; i < bests; ++i) shortlist_[i] = best[i].block;
  shortlist_count_ = bests;
  std::sort(old, old + olds, [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.block < b.block;
  });
  for (std::uint32_t i = 0; i < olds; ++i) doubtful_[i] = old[i].block;
  doubtful_count_ = olds;
  doubt_ = double(doubts) / std::max(count, 1u);
  if (doubt_ < kDrained) dead_ = std::min(dead_, 0.5);  // those left over are on trial again
  until_scan_ = std::max(wanted, std::clamp(mapped_count_ / 16, 8u, kShortlist));
}

void StreamPolicy::judge_trials(std::uint64_t now_ns) {
  for (std::uint32_t i = trial_count_; i-- > 0;) {
    const Trial& t = trials_[i];
    const bool back = order_.alive(t.block) && heats_[t.block].last_ns > t.taken_ns;
    if (!back && now_ns < t.verdict_ns) continue;
    dead_ += back ? -dead_ * kBackShare : (1 - dead_) * kDeadShare;
    trials_[i] = trials_[--trial_count_];
  }
}

// Doubtful blocks that are due: a few on trial, and up to all when those turn out to be dead.
std::size_t StreamPolicy::take_doubtful(std::uint64_t now_ns, std::span<BlockId> out) {
  judge_trials(now_ns);
  const double share = std::max({kTrialShare * doubt_, kTrialShareMin, 2 * (dead_ - 0.5)});
  doubt_credit_ = std::min(doubt_credit_ + share * double(out.size()), double(out.size()));
  std::size_t n = 0;
  while (doubt_credit_ >= 1 && n < out.size() && doubtful_count_ > 0) {
    const BlockId b = doubtful_[--doubtful_count_];
    const Heat& heat = heats_[b];
    if (!usable(b) || !doubtful(heat, now_ns)) continue;
    if (trial_count_ < kTrials) {
      trials_[trial_count_++] = {b, now_ns, now_ns + std::uint64_t(kVerdictAfter * period_ns(heat))};
    } else if (dead_ <= 0.5) {
      break;
    }
    doubt_credit_ -= 1;
    out[n++] = b;
  }
  return n;
}

// Candidates: the blocks touched lately and the shortlist, each block once, with their present scores.
std::size_t StreamPolicy::gather(std::uint64_t now_ns, Candidate* out) const {
  std::size_t n = 0;
  for (std::uint32_t i = 0; i < kRecent; ++i) {
    const BlockId b = recent_[i];
    if (b != kNoBlock && usable(b) && heats_[b].slot == i) out[n++] = {score_ns(b, now_ns), b};
  }
  for (std::uint32_t i = 0; i < shortlist_count_; ++i) {
    const BlockId b = shortlist_[i];
    if (usable(b) && recent_[heats_[b].slot] != b) out[n++] = {score_ns(b, now_ns), b};
  }
  return n;
}

// Blocks in the midst of long mapped stretches: they were just passed, so they are as good victims as the one
// touched last, and where they are missed again the next pass is seen and its reads are spread over all of
// its time.
std::size_t StreamPolicy::take_breaks(std::uint64_t now_ns, std::span<BlockId> out) {
  std::size_t n = 0;
  while (breaks_count_ > 0 && n < out.size()) {
    const BlockId b = breaks_[--breaks_count_];
    const bool fresh = 2 * double(now_ns - heats_[b].last_ns) < period_ns(heats_[b]);
    if (usable(b) && fresh && !contains(out.first(n), b)) out[n++] = b;
  }
  return n;
}

// For want of others: any of the spared ones, but not the block touched last if there are two.
std::size_t StreamPolicy::take_any(std::span<BlockId> out) const {
  std::size_t n = 0;
  const std::uint32_t count = std::min(mapped_count_, kScanMax);
  for (std::uint32_t i = 0; i < count && n < out.size(); ++i) {
    const BlockId b = mapped_[i];
    if (b == last_seen_ && mapped_count_ > 1) continue;
    out[n++] = b;
  }
  return n;
}

std::size_t StreamPolicy::victims(std::uint64_t now_ns, std::span<BlockId> out) {
  now_ns_ = std::max(now_ns_, now_ns);
  now_ns = now_ns_;
  if (mapped_count_ == 0 || out.empty()) return 0;
  const auto wanted = std::uint32_t(std::min<std::size_t>(out.size(), kShortlist));
  if (until_scan_ < wanted) scan(now_ns, wanted);
  until_scan_ -= wanted;

  std::size_t n = take_breaks(now_ns, out);
  for (std::size_t i = n, end = n + take_doubtful(now_ns, out.subspan(n)); i < end; ++i)
    if (!contains(out.first(n), out[i])) out[n++] = out[i];
  Candidate candidates[kRecent + kShortlist];
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.block < b.block;
  };
  for (int round = 0; round < 2 && n < out.size(); ++round) {
    const std::size_t count = gather(now_ns, candidates);
    const std::size_t sorted = std::min(count, out.size());  // up to n of them were taken before
    std::partial_sort(candidates, candidates + sorted, candidates + count, before);
    for (std::size_t i = 0; i < sorted && n < out.size(); ++i) {
      const BlockId b = candidates[i].block;
      if (!contains(out.first(n), b)) out[n++] = b;
    }
    if (n == out.size() || round == 1) break;
    scan(now_ns, wanted);
  }
  return n > 0 ? n : take_any(out);
}

std::size_t StreamPolicy::read_ahead(BlockId from, std::uint64_t, std::span<BlockId> out) {
  return order_.read_ahead(from, out);
}

void StreamPolicy::read_in_vain(BlockId block) { order_.read_in_vain(block); }

std::uint32_t StreamPolicy::map_ahead() const {
  const std::uint32_t streak = order_.streak();
  // Each holds a frame before its time, and the blocks behind it are known to be used only when it is passed.
  return std::min(streak < 64 ? 0u : streak < 256 ? 4u : 8u, mapped_count_ / 128);
}

}  // namespace terrace::tiering
