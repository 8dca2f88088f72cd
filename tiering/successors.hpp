// The order in which blocks follow each other: learns it from the touches that are seen, and foretells the
// next ones.
//
// Nouns: a *link* leads from a block to the one touched after it. Each block has a learned link with a
// confidence of two bits, a second candidate, the block that came before it, and its neighbours in address
// order for as long as nothing was learned. A *prediction* is the first block along the links that is not
// mapped, for touches of mapped blocks are not seen. Every seen touch makes one forward and one backward; it
// is right when it comes true within kHorizon seen touches, so two threads that interleave do not spoil each
// other's streams. Predictions are judged by *class* (direction, confidence of the link, whether the touch
// that made it was itself foretold). What is read ahead follows from that alone: a path is followed while the
// product of the measured accuracies of its steps is above a half, so nothing is read where the order is
// random and no probing is needed. Threads: one user at a time. No heap. O(1) per call, with walks of at most
// kWalkMax links (kWalkFar, about once a pass, on a path that came true before).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiering/policy.hpp"

namespace terrace::tiering {

class Successors {
 public:
  using Place = OnlinePolicy::Place;
  // Links followed over mapped blocks to find one that is not: at about 10 ns each, far below one disk read.
  // Where predictions come true a stretch is crossed about once a pass, so a long one may be followed to its
  // end: then all of it is known to be in use.
  static constexpr std::uint32_t kWalkMax = 256;
  static constexpr std::uint32_t kWalkFar = 32768;

  static std::size_t memory_bytes(std::uint32_t capacity);
  // `memory`: aligned to 4 bytes, any content; a block's record is first written when it is inserted.
  void init(void* memory, std::uint32_t capacity);

  void inserted(BlockId block, BlockId after);
  void removed(BlockId block);
  void placed(BlockId block, Place place) { nodes_[block].state = std::uint8_t(1 + std::uint8_t(place)); }
  Place place(BlockId block) const { return Place(nodes_[block].state - 1); }
  bool alive(BlockId block) const { return nodes_[block].state != 0; }

  // Learns from a touch. `inferred` ones move the stream along but prove nothing. Calls `passed(context,
  // block)` for mapped blocks that the touch shows to have been touched unseen: they lie on a path that came
  // true.
  void touched(BlockId block, Touch how, void (*passed)(void*, BlockId), void* context);

  // As OnlinePolicy: stored blocks in the order of their expected touch.
  std::size_t read_ahead(BlockId from, std::span<BlockId> out);
  void read_in_vain(BlockId block);
  // Seen touches in a row that were foretold.
  std::uint32_t streak() const { return streak_; }

 private:
  static constexpr std::uint32_t kHorizon = 8;      // seen touches
  static constexpr std::uint32_t kPendingMax = 24;  // two a touch for the horizon, and inferred ones
  static constexpr std::uint32_t kClasses = 10;

  enum class Way : std::uint8_t { none, forward, backward };

  struct Node {
    BlockId next, other, previous;  // learned; kNoBlock: nothing yet
    BlockId above, below;           // in address order
    BlockId home;                   // after which insert_lost() put it
    std::uint32_t walk;             // the last walk that handed it out
    std::uint8_t state;             // 0: not alive, else 1 + Place
    std::uint8_t confidence;        // of `next`, 0 to 3
    bool inserted;                  // by insert_lost(), once in its life
    std::uint8_t ahead_class;       // 1 + class by which it was read ahead; 0: it was not
  };
  struct Pending {
    BlockId from, to;
    std::uint32_t born;   // seen touches at its birth
    std::uint32_t steps;  // links from `from` to `to`
    std::uint8_t cls;
    Way way;
    bool by_link;  // over `from`'s first choice (not its second candidate)
  };
  struct Accuracy {
    double error;
    std::uint32_t seen;
    void count(bool right);
  };
  struct Ahead {
    BlockId block;
    std::uint32_t steps;
    bool by_link;
  };

  BlockId link(BlockId block, Way way) const;
  Ahead first_unmapped(BlockId from, Way way, std::uint32_t limit) const;
  std::uint8_t class_of(BlockId from, Way way, bool foretold) const;
  void foretell(BlockId from, Way way, bool foretold);
  bool extends(Pending& p, BlockId block) const;
  void drop_pending(std::uint32_t index);
  void missed(const Pending& p);
  void learn_unforetold(BlockId block);
  void insert_lost();

  Node* nodes_ = nullptr;
  std::uint32_t capacity_ = 0;
  Accuracy classes_[kClasses];
  Pending pending_[kPendingMax];
  std::uint32_t pending_count_ = 0;
  BlockId last_ = kNoBlock;    // touched last
  BlockId before_ = kNoBlock;  // what `last_`'s previous was before this touch
  Way last_way_ = Way::none;   // how `last_` was foretold
  // Blocks that were touched unforetold one after the other, though an earlier prediction may still come
  // true: they stood aside of the learned order, for they were mapped when it was learned.
  BlockId lost_after_ = kNoBlock;
  BlockId lost_first_ = kNoBlock;
  BlockId lost_last_ = kNoBlock;
  std::uint32_t seen_ = 0;
  std::uint32_t walk_ = 0;
  std::uint32_t streak_ = 0;
};

}  // namespace terrace::tiering
