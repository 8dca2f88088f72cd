// The pager's books: every block of every live object, and which granules of the arena are mapped.
//
// Nouns: a *block* is what one object owns of one chunk (1 to 128 granules). *Present* granules are mapped in
// the program's memory; *dead* ones are present but belong to no object: their frames can be taken at once.
// Invariant (validate()): block_at() of each granule of a block names it; dead is a subset of present; no
// granule of a block is dead. Threads: the pager only, except `present`, which the heap reads (PagerLink). No
// heap: tables are NORESERVE mappings.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/granule_mask.hpp"
#include "base/status.hpp"
#include "io/checksum.hpp"
#include "io/store.hpp"
#include "runtime/residency.hpp"
#include "runtime/shadow_pool.hpp"
#include "tiering/policy.hpp"

namespace terrace::runtime {

using tiering::BlockId;
using tiering::kNoBlock;

// The lists that a block can be on, one at a time.
enum class ListName : std::uint8_t { none, clean, outgoing, waiting, settling, unmovable };

struct Block {
  Granule first = 0;
  BlockId next = kNoBlock, previous = kNoBlock;  // in its list; `next` links free records
  io::Extent extent;                             // of the stored copy, or being written
  Slot slot;                                     // while staged
  std::uint32_t generation = 0;                  // of the stored copy
  std::uint32_t transfer = ~0u;                  // index of its transfer while hashed, read or written
  io::Hash128 checksum;                          // of the stored copy, over bytes and identity
  std::uint64_t fault_ns = 0;                    // when a fault on it was read, while wanted
  std::uint64_t answered_ns = 0;                 // when a fault on it was last answered
  std::uint64_t held_since_ns = 0;               // since when it is on the list of unmovable blocks
  std::uint32_t answer = 0;                      // the pager's count of answers at `answered_ns`
  std::uint8_t count = 0;                        // granules, 1..128
  Residency state = Residency::empty;
  ListName list = ListName::none;
  std::uint8_t refaults = 0;      // in a row, each soon after it was answered
  bool has_copy : 1 = false;      // `checksum` and `extent` describe a whole stored version
  bool zero : 1 = false;          // absent granules must read as zero (calloc)
  bool wanted : 1 = false;        // a thread of the program waits for it
  bool ahead : 1 = false;         // read ahead and not touched since
  bool mapped_ahead : 1 = false;  // mapped without having been touched
  bool dying : 1 = false;         // its object is freed; it goes when its I/O ends
};

struct BlockList {
  BlockId head = kNoBlock, tail = kNoBlock;
  std::uint32_t size = 0;
  std::uint64_t granules = 0;
};

class BlockTable {
 public:
  // Blocks that an arena of `reserved_bytes` may need: a block is at least 4 granules long but for tails, and
  // address space is used sparsely, so a quarter of its granules is ample.
  static std::uint32_t capacity_for(std::uint64_t reserved_bytes) {
    return std::uint32_t(reserved_bytes / kGranuleBytes / 4 + 1024);
  }
  // For an arena of `reserved_bytes`. Errors: no_memory.
  Status init(std::uint64_t reserved_bytes);
  void release();

  // A new block over the granules, which have none. kNoBlock when the table is full.
  BlockId create(Granule first, std::uint32_t count);
  void destroy(BlockId id);  // also takes its granules out of block_at()
  void detach(
      BlockId id);  // takes its granules out of block_at() only: the object is gone, I/O is still in flight
  // The block that owns a granule, or kNoBlock.
  BlockId block_at(Granule g) const { return block_of_[g] == 0 ? kNoBlock : block_of_[g]; }
  Block& operator[](BlockId id) { return blocks_[id]; }
  const Block& operator[](BlockId id) const { return blocks_[id]; }
  std::uint32_t capacity() const { return capacity_; }
  std::uint32_t live() const { return live_; }
  BlockId end() const { return used_; }  // ids are below this

  void append(BlockList& list, ListName name, BlockId id);
  void remove(BlockList& list, BlockId id);

  GranuleMask present(Chunk c) const { return words(present_, c); }
  GranuleMask dead(Chunk c) const { return words(dead_, c); }
  // The part of the block's chunk that is the block.
  static GranuleMask mask_of(const Block& block) {
    return GranuleMask::range(offset_in_chunk(block.first), block.count);
  }
  void set_present(Chunk c, GranuleMask mask);
  void clear_present(Chunk c, GranuleMask mask);  // clears dead too
  void set_dead(Chunk c, GranuleMask mask);
  void clear_dead(Chunk c, GranuleMask mask);
  std::uint64_t present_granules() const { return present_granules_; }
  std::uint64_t dead_granules() const { return dead_granules_; }
  // A chunk with at least `count` dead granules in a row, else any with a dead granule, at or after `from`
  // (wrapping once); ~0u when nothing is dead.
  Chunk find_dead(Chunk from, std::uint32_t count) const;

  std::atomic<std::uint64_t>* present_words() { return present_; }
  void validate() const;

 private:
  static GranuleMask words(const std::atomic<std::uint64_t>* table, Chunk c);
  void store_words(std::atomic<std::uint64_t>* table, Chunk c, GranuleMask mask);
  void fill_block_of(const Block& block, BlockId id);

  Block* blocks_ = nullptr;
  BlockId* block_of_ = nullptr;
  std::atomic<std::uint64_t>* present_ = nullptr;
  std::atomic<std::uint64_t>* dead_ = nullptr;
  std::uint32_t capacity_ = 0, used_ = 0, live_ = 0;
  BlockId free_ = kNoBlock;
  Chunk chunks_ = 0, high_chunk_ = 0;  // no chunk at or above high_chunk_ was ever present
  std::uint64_t present_granules_ = 0, dead_granules_ = 0;
  std::uint64_t mapping_bytes_ = 0;
  void* mapping_ = nullptr;
};

}  // namespace terrace::runtime
