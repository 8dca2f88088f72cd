#include "tiering/successors.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace terrace::tiering {
namespace {

constexpr std::uint8_t kConfidenceMax = 3;
constexpr std::uint8_t kBackwardClass = 8;
constexpr std::uint32_t kDepthMax = 32;  // unmapped blocks that one read_ahead() looks at
constexpr double kFollow = 0.5;  // a block is read ahead while it is more likely than not to be touched
constexpr double kTrust = 0.25;  // an error below this allows a far walk
constexpr std::uint32_t kMemoryTouches = 32;  // an accuracy forgets over so many predictions

}  // namespace

// Laplace's rule of succession at first (one right, one wrong before anything was seen), then a moving
// average.
void Successors::Accuracy::count(bool right) {
  seen = std::min(seen + 1, kMemoryTouches - 2);
  error += ((right ? 0.0 : 1.0) - error) / double(seen + 2);
}

std::size_t Successors::memory_bytes(std::uint32_t capacity) { return std::size_t(capacity) * sizeof(Node); }

void Successors::init(void* memory, std::uint32_t capacity) {
  nodes_ = static_cast<Node*>(memory);
  capacity_ = capacity;
  for (Accuracy& a : classes_) a = {0.5, 0};
  pending_count_ = 0;
  last_ = before_ = lost_after_ = lost_first_ = lost_last_ = kNoBlock;
  last_way_ = Way::none;
  seen_ = walk_ = streak_ = 0;
}

void Successors::inserted(BlockId block, BlockId after) {
  TERRACE_CHECK(block < capacity_ && (after == kNoBlock || after < capacity_),
                "stream: block id beyond its capacity");
  BlockId above = kNoBlock;
  if (after != kNoBlock) {
    above = nodes_[after].above;
    nodes_[after].above = block;
    if (above != kNoBlock) nodes_[above].below = block;
  }
  nodes_[block] = {kNoBlock, kNoBlock, kNoBlock, above, after, kNoBlock, 0, 1, 0, false, 0};
}

void Successors::removed(BlockId block) {
  Node& n = nodes_[block];
  if (n.below != kNoBlock) nodes_[n.below].above = n.above;
  if (n.above != kNoBlock) nodes_[n.above].below = n.below;
  n.above = n.below = kNoBlock;
  n.state = 0;
  n.ahead_class = 0;
  if (last_ == block) last_ = kNoBlock;
  if (lost_after_ == block || lost_first_ == block || lost_last_ == block) lost_last_ = kNoBlock;
  // Nobody's fault: the death of what was foretold says nothing about the order. What a dead block foretold
  // may still come true (the backward pass frees each block once it is read), so that is kept.
  for (std::uint32_t i = pending_count_; i-- > 0;) {
    if (pending_[i].to == block) drop_pending(i);
  }
}

BlockId Successors::link(BlockId block, Way way) const {
  const Node& n = nodes_[block];
  if (way == Way::backward) {
    const BlockId previous = block == last_ ? before_ : n.previous;
    return previous != kNoBlock && alive(previous) ? previous : n.below;
  }
  if (n.next != kNoBlock && alive(n.next)) return n.next;
  if (n.next != kNoBlock && n.other != kNoBlock && alive(n.other)) return n.other;
  return n.above;
}

Successors::Ahead Successors::first_unmapped(BlockId from, Way way, std::uint32_t limit) const {
  BlockId at = from;
  for (std::uint32_t i = 1; i <= limit; ++i) {
    at = link(at, way);
    if (at == kNoBlock || at == from) break;
    if (place(at) != Place::mapped) return {at, i, true};
  }
  // A long mapped stretch: the second candidate then is what was seen behind it the last time.
  const BlockId other = nodes_[from].other;
  if (way == Way::forward && other != kNoBlock && alive(other) && place(other) != Place::mapped) {
    return {other, 1, false};
  }
  return {kNoBlock, 0, false};
}

std::uint8_t Successors::class_of(BlockId from, Way way, bool foretold) const {
  const std::uint8_t kind = way == Way::backward ? kBackwardClass : std::uint8_t(2 * nodes_[from].confidence);
  return std::uint8_t(kind + (foretold ? 1 : 0));
}

void Successors::drop_pending(std::uint32_t index) { pending_[index] = pending_[--pending_count_]; }

// Whether `block` is what comes behind the end of a prediction that was mapped ahead, so that its touch was
// not seen; prolongs it to there.
bool Successors::extends(Pending& p, BlockId block) const {
  if (place(p.to) != Place::mapped) return false;
  const std::uint32_t limit = classes_[p.cls].error < kTrust ? kWalkFar : kWalkMax;
  BlockId at = p.to;
  for (std::uint32_t i = 1; i <= limit; ++i) {
    at = link(at, p.way);
    if (at == block) {
      p.to = block;
      p.steps += i;
      return true;
    }
    if (at == kNoBlock || at == p.to || place(at) != Place::mapped) return false;
  }
  return false;
}

// Blames the link that a prediction began with. Where its whole class fails, the order has changed: relearn
// at once.
void Successors::missed(const Pending& p) {
  Accuracy& accuracy = classes_[p.cls];
  accuracy.count(false);
  if (p.way != Way::forward || !p.by_link || !alive(p.from)) return;
  Node& n = nodes_[p.from];
  if (n.confidence > 0) n.confidence = accuracy.error > 0.5 ? 0 : std::uint8_t(n.confidence - 1);
  if (n.confidence == 0 && n.other != kNoBlock) {
    n.next = n.other;
    n.other = kNoBlock;
    n.confidence = 1;
  }
}

void Successors::foretell(BlockId from, Way way, bool foretold) {
  const std::uint8_t cls = class_of(from, way, foretold);
  const bool trusted = foretold && classes_[cls].error < kTrust;
  const Ahead ahead = first_unmapped(from, way, trusted ? kWalkFar : kWalkMax);
  if (ahead.block == kNoBlock || pending_count_ == kPendingMax) return;
  for (std::uint32_t i = 0; i < pending_count_; ++i) {
    if (pending_[i].to == ahead.block && pending_[i].from == from) return;
  }
  pending_[pending_count_++] = {from, ahead.block, seen_, ahead.steps, cls, way, ahead.by_link};
}

void Successors::learn_unforetold(BlockId block) {
  if (last_ == kNoBlock || last_ == block) return;
  Node& n = nodes_[last_];
  nodes_[block].previous = last_;
  const bool lost = last_ == lost_last_;
  lost_last_ = block;
  if (!lost) {
    lost_first_ = block;
    lost_after_ = last_;
  }
  if (lost || (n.next == kNoBlock && n.above == kNoBlock)) {
    n.next = block;
    n.confidence = 1;
  } else if (n.other == block && n.confidence <= 1) {  // the second time in a row
    n.next = block;
    n.other = kNoBlock;
    n.confidence = 2;
  } else if (n.next != block) {
    n.other = block;
  }
}

// The prediction of the block before the lost ones came true behind them: they belong between the two. One
// that was inserted elsewhere before has no place in the order (it is touched often, or at random): take it
// out instead.
void Successors::insert_lost() {
  Node& before = nodes_[lost_after_];
  Node& first = nodes_[lost_first_];
  Node& last = nodes_[lost_last_];
  if (first.inserted) {
    const BlockId old = first.home;
    if (old != kNoBlock && alive(old) && nodes_[old].next == lost_first_ && first.next != old) {
      nodes_[old].next = first.next;
    }
    first.home = kNoBlock;
    return;
  }
  first.inserted = true;
  first.home = lost_after_;
  last.next = link(lost_after_, Way::forward);
  last.other = kNoBlock;
  last.confidence = before.confidence;
  if (last.next != kNoBlock) nodes_[last.next].previous = lost_last_;
  before.next = lost_first_;
  before.other = kNoBlock;
  before.confidence = 2;
}

void Successors::touched(BlockId block, Touch how, void (*passed)(void*, BlockId), void* context) {
  const bool seen = how != Touch::inferred;
  if (seen) ++seen_;
  before_ = nodes_[block].previous;
  nodes_[block].ahead_class = 0;

  // The newest prediction that came true names the block that this one follows; the longest spans all that
  // was touched unseen since (what was mapped ahead lies on it too).
  Pending hit{kNoBlock, kNoBlock, 0, 0, 0, Way::none, false};
  Pending longest = hit;
  for (std::uint32_t i = pending_count_; i-- > 0;) {
    const Pending p = pending_[i];
    if (p.to != block) continue;
    drop_pending(i);
    if (seen) classes_[p.cls].count(true);
    if (p.by_link && p.steps > longest.steps) longest = p;
    if (hit.way == Way::none || (p.born != hit.born && p.born - hit.born < kHorizon)) hit = p;
  }
  for (std::uint32_t i = pending_count_; i-- > 0 && seen && hit.way == Way::none;) {
    if (!extends(pending_[i], block)) continue;
    hit = longest = pending_[i];
    drop_pending(i);
    classes_[hit.cls].count(true);
  }
  for (std::uint32_t i = pending_count_; i-- > 0;) {
    const Pending p = pending_[i];
    if (hit.way != Way::none &&
        p.from == hit.from) {  // the other way round: wrong, but its link is not to blame
      drop_pending(i);
      if (seen) classes_[p.cls].count(false);
    } else if (seen_ - p.born >= kHorizon) {
      drop_pending(i);
      missed(p);
    }
  }

  if (hit.way == Way::forward && alive(hit.from)) {
    Node& from = nodes_[hit.from];
    if (seen && hit.by_link) {
      if (from.next == kNoBlock) from.next = link(hit.from, Way::forward);
      from.confidence = std::min<std::uint8_t>(kConfidenceMax, std::uint8_t(from.confidence + 1));
    }
    if (hit.steps == 1) nodes_[block].previous = hit.from;
    if (seen && hit.by_link && last_ == lost_last_ && hit.from == lost_after_ && last_ != kNoBlock)
      insert_lost();
  } else if (hit.way == Way::none && seen) {
    learn_unforetold(block);
  }
  if (longest.by_link) {
    BlockId at = longest.from;
    for (std::uint32_t i = 1; i < longest.steps && (at = link(at, longest.way)) != kNoBlock; ++i) {
      if (place(at) == Place::mapped && at != block) passed(context, at);
    }
  }
  if (seen) streak_ = hit.way == Way::none ? 0 : streak_ + 1;

  last_ = block;
  if (seen || hit.way != Way::none) last_way_ = hit.way;  // an inferred one lies on the way that led to it
  foretell(block, Way::forward, last_way_ == Way::forward);
  foretell(block, Way::backward, last_way_ == Way::backward);
}

std::size_t Successors::read_ahead(BlockId from, std::span<BlockId> out) {
  const Way came = from == last_ ? last_way_ : Way::none;
  const std::uint8_t forward = class_of(from, Way::forward, came == Way::forward);
  const std::uint8_t backward = class_of(from, Way::backward, came == Way::backward);
  const Way way = classes_[backward].error < classes_[forward].error ? Way::backward : Way::forward;

  std::size_t n = 0;
  std::uint32_t links = 0;
  double likely = 1;
  bool foretold = came == way;
  ++walk_;
  nodes_[from].walk = walk_;
  for (std::uint32_t depth = 0; depth < kDepthMax && n < out.size() && links < kWalkMax; ++depth) {
    const std::uint8_t cls = class_of(from, way, foretold);
    likely *= 1 - classes_[cls].error;
    if (likely < kFollow) break;
    const Ahead ahead = first_unmapped(from, way, kWalkMax);
    if (ahead.block == kNoBlock || nodes_[ahead.block].walk == walk_) break;
    Node& node = nodes_[ahead.block];
    node.walk = walk_;
    if (place(ahead.block) == Place::stored) {
      node.ahead_class = std::uint8_t(1 + cls);
      out[n++] = ahead.block;
    }
    links += ahead.steps;
    from = ahead.block;
    foretold = true;
  }
  return n;
}

void Successors::read_in_vain(BlockId block) {
  Node& n = nodes_[block];
  if (n.ahead_class == 0) return;
  classes_[n.ahead_class - 1].count(false);
  n.ahead_class = 0;
}

}  // namespace terrace::tiering
