#include "tiering/replay.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <queue>
#include <stdexcept>

namespace terrace::tiering {
namespace {

enum class State : std::uint8_t { unborn, empty, mapped, leaving, ahead, stored };

struct Block {
  State state = State::unborn;
  bool dirty = false;
  bool unreached = false;     // mapped ahead, and not touched since
  std::uint64_t order = 0;    // number of its read ahead
  std::uint64_t read_at = 0;  // seen touches when it was read ahead
};

// xorshift64*: the same sequence everywhere.
struct Random {
  std::uint64_t state = 0x9E3779B97F4A7C15;
  double unit() {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return double((state * 0x2545F4914F6CDD1D) >> 11) / double(std::uint64_t{1} << 53);
  }
};

class Pager {
 public:
  Pager(OnlinePolicy& policy, const Machine& machine, std::size_t blocks)
      : policy_(policy), machine_(machine), blocks_(blocks) {}

  void born(BlockId b, BlockId after) {
    policy_.inserted(b, after, now_);
    blocks_[b] = {State::empty};
  }
  bool alive(BlockId b) const { return blocks_[b].state != State::unborn; }
  bool mapped(BlockId b) const { return blocks_[b].state == State::mapped; }
  const Counts& counts() const { return counts_; }

  void access(const Access& a) {
    ++counts_.accesses;
    if (counts_.accesses % 64 == 1) stretch_ = 1 + machine_.jitter * (2 * random_.unit() - 1);
    now_ += std::uint64_t(double(machine_.access_ns) * stretch_ *
                          (1 + machine_.jitter * (2 * random_.unit() - 1)));
    Block& block = blocks_[a.block];
    if (block.state == State::mapped) {
      block.unreached = false;
    } else {
      fault(a.block);
    }
    block.dirty |= a.kind == Access::Kind::write;
  }

  void end(BlockId b) {
    Block& block = blocks_[b];
    if (block.state == State::mapped) --mapped_;
    std::erase(leaving_, b);
    std::erase(ahead_, b);
    std::erase(run_, b);
    if (block.state == State::ahead || block.unreached) ++counts_.wasted;
    policy_.removed(b);
    block = {};
  }

 private:
  void fault(BlockId b) {
    Block& block = blocks_[b];
    ++counts_.faults;
    Touch how = Touch::demand;
    if (block.state == State::empty) {
      how = Touch::first;
      block.dirty = true;
    } else if (block.state == State::stored) {
      ++counts_.demand;
      block.dirty = false;
    } else if (block.state == State::leaving) {
      ++counts_.rescued;
      how = Touch::rescued;
      std::erase(leaving_, b);
    } else {
      how = Touch::rescued;
      std::erase(ahead_, b);
      infer(block.order);
    }
    if (block.state != State::mapped) make_room(b);
    policy_.touched(b, how, now_);
    map(b);
    read_ahead(b);
    map_ahead();
  }

  // Blocks mapped ahead of one that is touched now, and read before it, count as touched.
  void infer(std::uint64_t order) {
    while (!run_.empty() && blocks_[run_.front()].order < order) {
      policy_.touched(run_.front(), Touch::inferred, now_);
      run_.pop_front();
    }
  }

  void map(BlockId b) {
    blocks_[b].state = State::mapped;
    ++mapped_;
    policy_.placed(b, OnlinePolicy::Place::mapped);
  }

  void make_room(BlockId coming) {
    if (mapped_ < machine_.budget) return;
    std::vector<BlockId> out(machine_.batch, kNoBlock);
    const std::size_t n = policy_.victims(now_, out);
    if (n == 0) throw std::logic_error("no victim though blocks are mapped");
    out.resize(n);
    for (const BlockId v : out) {
      if (v >= blocks_.size() || blocks_[v].state != State::mapped || v == coming) {
        throw std::logic_error("a victim that is not mapped, or twice");
      }
      --mapped_;
      blocks_[v].state = State::leaving;
      std::erase(run_, v);
      policy_.placed(v, OnlinePolicy::Place::none);
      leaving_.push_back(v);
    }
    while (leaving_.size() > machine_.spare) {
      const BlockId v = leaving_.front();
      leaving_.pop_front();
      Block& block = blocks_[v];
      ++(block.dirty ? counts_.blocks_out : counts_.dropped);
      block.dirty = false;
      store(v, block.unreached);
    }
  }

  void store(BlockId b, bool in_vain) {
    Block& block = blocks_[b];
    block.state = State::stored;
    block.unreached = false;
    policy_.placed(b, OnlinePolicy::Place::stored);
    if (in_vain) {
      ++counts_.wasted;
      policy_.read_in_vain(b);
    }
  }

  void read_ahead(BlockId from) {
    // What was read long ago and not touched makes room for what is read now.
    while (!ahead_.empty() && ahead_.size() >= machine_.window &&
           counts_.faults - blocks_[ahead_.front()].read_at > 4 * machine_.window) {
      const BlockId b = ahead_.front();
      ahead_.pop_front();
      store(b, true);
    }
    std::array<BlockId, 32> out;
    const std::size_t room = machine_.window - std::min<std::size_t>(machine_.window, ahead_.size());
    const std::size_t n = policy_.read_ahead(from, now_, std::span(out).first(std::min(room, out.size())));
    for (std::size_t i = 0; i < n; ++i) {
      if (out[i] >= blocks_.size() || blocks_[out[i]].state != State::stored) {
        throw std::logic_error("a block to read ahead that is not stored, or twice");
      }
      ++counts_.prefetched;
      Block& block = blocks_[out[i]];
      block.state = State::ahead;
      block.order = ++orders_;
      block.read_at = counts_.faults;
      policy_.placed(out[i], OnlinePolicy::Place::none);
      ahead_.push_back(out[i]);
    }
  }

  void map_ahead() {
    if (!machine_.map_ahead) return;
    for (std::size_t more = policy_.map_ahead(); more > run_.size() && !ahead_.empty();) {
      const BlockId b = ahead_.front();
      make_room(b);
      ahead_.pop_front();
      map(b);
      blocks_[b].unreached = true;
      run_.push_back(b);
    }
    // A run that is never followed up is forgotten.
    while (run_.size() > 64) run_.pop_front();
  }

  OnlinePolicy& policy_;
  const Machine& machine_;
  std::vector<Block> blocks_;
  std::deque<BlockId> leaving_, ahead_, run_;
  std::uint32_t mapped_ = 0;
  std::uint64_t orders_ = 0;
  std::uint64_t now_ = 1'000'000'000;
  double stretch_ = 1;
  Random random_;
  Counts counts_;
};

std::size_t blocks_of(std::span<const Access> accesses) {
  std::size_t n = 0;
  for (const Access& a : accesses) n = std::max(n, std::size_t(a.block) + 1);
  return n;
}

}  // namespace

Counts Counts::operator-(const Counts& e) const {
  return {accesses - e.accesses, demand - e.demand, prefetched - e.prefetched, wasted - e.wasted,
          rescued - e.rescued,   faults - e.faults, blocks_out - e.blocks_out, dropped - e.dropped};
}

ReplayResult replay(OnlinePolicy& policy, std::span<const Access> accesses, const Machine& machine,
                    std::span<const std::size_t> marks, BlockId watch_below) {
  const std::size_t blocks = blocks_of(accesses);
  Pager pager(policy, machine, blocks);
  for (BlockId b = 0; b < blocks; ++b) pager.born(b, b == 0 ? kNoBlock : b - 1);
  ReplayResult result;
  std::size_t next_mark = 0;
  const auto note = [&] {
    result.at_marks.push_back(pager.counts());
    std::uint32_t mapped = 0;
    for (BlockId b = 0; b < watch_below; ++b) mapped += pager.mapped(b);
    result.mapped_at_marks.push_back(mapped);
  };
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    while (next_mark < marks.size() && marks[next_mark] <= i) note(), ++next_mark;
    const Access& a = accesses[i];
    if (a.kind == Access::Kind::free) {
      if (pager.alive(a.block)) pager.end(a.block);
      continue;
    }
    if (!pager.alive(a.block)) {
      // Born again: after the next lower block that is alive (look at a few, as one does at its neighbours).
      BlockId after = kNoBlock;
      for (BlockId b = a.block; b > 0 && a.block - b < 4096;) {
        if (pager.alive(--b)) {
          after = b;
          break;
        }
      }
      pager.born(a.block, after);
    }
    pager.access(a);
  }
  while (next_mark++ <= marks.size()) note();
  return result;
}

std::vector<std::uint64_t> belady_loads(std::span<const Access> accesses, std::uint32_t budget,
                                        std::span<const std::size_t> marks) {
  constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  const std::size_t blocks = blocks_of(accesses);
  std::vector<std::size_t> next(accesses.size(), kNever), upcoming(blocks, kNever);
  for (std::size_t i = accesses.size(); i-- > 0;) {
    const Access& a = accesses[i];
    next[i] = upcoming[a.block];
    upcoming[a.block] = a.kind == Access::Kind::free ? kNever : i;
  }
  std::vector<std::size_t> due(blocks, 0);  // next touch of a block in the cache
  std::vector<char> cached(blocks, 0), born(blocks, 0);
  std::priority_queue<std::pair<std::size_t, BlockId>> farthest;
  std::uint32_t count = 0;
  std::uint64_t loads = 0;
  std::vector<std::uint64_t> result;
  std::size_t next_mark = 0;
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    while (next_mark < marks.size() && marks[next_mark] <= i) result.push_back(loads), ++next_mark;
    const Access& a = accesses[i];
    if (a.kind == Access::Kind::free) {
      count -= std::uint32_t(cached[a.block]);
      cached[a.block] = born[a.block] = 0;
      continue;
    }
    if (!cached[a.block]) {
      loads += std::uint64_t(born[a.block]);
      while (count >= budget) {
        const auto [when, victim] = farthest.top();
        farthest.pop();
        if (!cached[victim] || due[victim] != when) continue;  // an entry that has been overtaken
        cached[victim] = 0;
        --count;
      }
      cached[a.block] = born[a.block] = 1;
      ++count;
    }
    due[a.block] = next[i];
    farthest.push({next[i], a.block});
  }
  while (next_mark++ <= marks.size()) result.push_back(loads);
  return result;
}

}  // namespace terrace::tiering
