// Least recently used: the yardstick, and the policy that is never badly wrong on random touches.
//
// Nouns: the *list* holds the mapped blocks, newest seen touch first; the *window* is how many stored blocks
// a sequential run reads ahead, doubled and halved as Linux does for files (mm/readahead.c). Invariant: a
// block is in the list exactly while it is placed `mapped`. Threads: one user at a time. No heap: everything
// lives in the memory that init() is given.
#pragma once

#include "tiering/policy.hpp"

namespace terrace::tiering {

class LruPolicy final : public OnlinePolicy {
 public:
  LruPolicy() = default;

  // Bytes that init() needs for block ids below `capacity`. They may be lazily populated memory: a page is
  // first written when a block that lies on it is inserted.
  static std::size_t memory_bytes(std::uint32_t capacity);
  // Takes `memory` (aligned to 8 bytes, memory_bytes(capacity) long, any content) for the life of the policy.
  void init(void* memory, std::size_t bytes, std::uint32_t capacity);

  void inserted(BlockId block, BlockId after, std::uint64_t now_ns) override;
  void removed(BlockId block) override;
  void touched(BlockId block, Touch how, std::uint64_t now_ns) override;
  void placed(BlockId block, Place place) override;
  std::size_t victims(std::uint64_t now_ns, std::span<BlockId> out) override;
  std::size_t read_ahead(BlockId from, std::uint64_t now_ns, std::span<BlockId> out) override;
  void read_in_vain(BlockId block) override;
  std::uint32_t map_ahead() const override { return 0; }
  double expected_ns(BlockId, std::uint64_t) const override { return 0; }
  const char* name() const override { return "lru"; }

 private:
  struct Entry {
    BlockId newer, older;  // neighbours in the list; kNoBlock at its ends
    BlockId above, below;  // neighbours in address order
    Place place;
    bool ahead;  // handed out by read_ahead() and not touched since
  };

  void push_newest(BlockId block);
  void unlink(BlockId block);

  Entry* entries_ = nullptr;
  std::uint32_t capacity_ = 0;
  BlockId newest_ = kNoBlock;
  BlockId oldest_ = kNoBlock;
  BlockId last_seen_ = kNoBlock;
  std::uint32_t window_ = 0;  // blocks; 0 while the touches are not sequential
};

}  // namespace terrace::tiering
