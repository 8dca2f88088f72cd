#include "runtime/block_table.hpp"

#include <sys/mman.h>

#include <new>

#include "base/check.hpp"
#include "base/syscall.hpp"

namespace terrace::runtime {

Status BlockTable::init(std::uint64_t reserved_bytes) {
  chunks_ = Chunk(reserved_bytes / kChunkBytes);
  const std::uint64_t granules = std::uint64_t(chunks_) * kGranulesPerChunk;
  capacity_ = capacity_for(reserved_bytes);
  const std::uint64_t mask_bytes = round_up(std::uint64_t(chunks_) * 16, kPageBytes);
  const std::uint64_t of_bytes = round_up(granules * sizeof(BlockId), kPageBytes);
  mapping_bytes_ = 2 * mask_bytes + of_bytes + round_up(std::uint64_t(capacity_) * sizeof(Block), kPageBytes);
  const long mapped = sys(SYS_mmap, nullptr, mapping_bytes_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped < 0 && mapped > -4096) return Status::from_errno(int(-mapped), "mapping the pager's books");
  mapping_ = reinterpret_cast<void*>(mapped);
  (void)sys(SYS_madvise, mapping_, mapping_bytes_, MADV_DONTDUMP);
  (void)sys(SYS_madvise, mapping_, mapping_bytes_, MADV_NOHUGEPAGE);  // touched sparsely
  auto* at = static_cast<std::byte*>(mapping_);
  present_ = reinterpret_cast<std::atomic<std::uint64_t>*>(at);
  dead_ = reinterpret_cast<std::atomic<std::uint64_t>*>(at + mask_bytes);
  block_of_ = reinterpret_cast<BlockId*>(at + 2 * mask_bytes);
  blocks_ = reinterpret_cast<Block*>(at + 2 * mask_bytes + of_bytes);
  used_ = 1;  // id 0 is never used, so that a zeroed block_of_ means "none"
  return Status::success();
}

void BlockTable::release() {
  if (mapping_ != nullptr) (void)sys(SYS_munmap, mapping_, mapping_bytes_);
  mapping_ = nullptr;
}

void BlockTable::fill_block_of(const Block& block, BlockId id) {
  for (std::uint32_t i = 0; i < block.count; ++i) block_of_[block.first + i] = id;
}

BlockId BlockTable::create(Granule first, std::uint32_t count) {
  TERRACE_CHECK(count >= 1 && offset_in_chunk(first) + count <= kGranulesPerChunk,
                "a block lies within one chunk");
  BlockId id = free_;
  if (id != kNoBlock) {
    free_ = blocks_[id].next;
  } else if (used_ < capacity_) {
    id = used_++;
  } else {
    return kNoBlock;
  }
  Block& block = *new (&blocks_[id]) Block;
  block.first = first;
  block.count = std::uint8_t(count);
  fill_block_of(block, id);
  ++live_;
  return id;
}

void BlockTable::detach(BlockId id) {
  const Block& block = blocks_[id];
  for (std::uint32_t i = 0; i < block.count; ++i)
    if (block_of_[block.first + i] == id) block_of_[block.first + i] = 0;
}

void BlockTable::destroy(BlockId id) {
  TERRACE_CHECK(blocks_[id].list == ListName::none, "a block leaves its list before it ends");
  detach(id);
  blocks_[id].count = 0;
  blocks_[id].next = free_;
  free_ = id;
  --live_;
}

void BlockTable::append(BlockList& list, ListName name, BlockId id) {
  Block& block = blocks_[id];
  TERRACE_CHECK(block.list == ListName::none, "a block is on one list at a time");
  block.list = name;
  block.next = kNoBlock;
  block.previous = list.tail;
  (list.tail == kNoBlock ? list.head : blocks_[list.tail].next) = id;
  list.tail = id;
  ++list.size;
  list.granules += block.count;
}

void BlockTable::remove(BlockList& list, BlockId id) {
  Block& block = blocks_[id];
  (block.previous == kNoBlock ? list.head : blocks_[block.previous].next) = block.next;
  (block.next == kNoBlock ? list.tail : blocks_[block.next].previous) = block.previous;
  block.list = ListName::none;
  block.next = block.previous = kNoBlock;
  --list.size;
  list.granules -= block.count;
}

GranuleMask BlockTable::words(const std::atomic<std::uint64_t>* table, Chunk c) {
  return GranuleMask::from_words(table[2 * std::size_t(c)].load(std::memory_order_relaxed),
                                 table[2 * std::size_t(c) + 1].load(std::memory_order_relaxed));
}

void BlockTable::store_words(std::atomic<std::uint64_t>* table, Chunk c, GranuleMask mask) {
  table[2 * std::size_t(c)].store(mask.low_word(), std::memory_order_seq_cst);
  table[2 * std::size_t(c) + 1].store(mask.high_word(), std::memory_order_seq_cst);
}

void BlockTable::set_present(Chunk c, GranuleMask mask) {
  const GranuleMask old = present(c);
  present_granules_ += (mask & ~old).count();
  store_words(present_, c, old | mask);
  if (c >= high_chunk_) high_chunk_ = c + 1;
}

void BlockTable::clear_present(Chunk c, GranuleMask mask) {
  const GranuleMask old = present(c);
  present_granules_ -= (mask & old).count();
  clear_dead(c, mask);
  store_words(present_, c, old & ~mask);
}

void BlockTable::set_dead(Chunk c, GranuleMask mask) {
  const GranuleMask old = dead(c);
  dead_granules_ += (mask & ~old).count();
  store_words(dead_, c, old | mask);
}

void BlockTable::clear_dead(Chunk c, GranuleMask mask) {
  const GranuleMask old = dead(c);
  if ((old & mask).none()) return;
  dead_granules_ -= (mask & old).count();
  store_words(dead_, c, old & ~mask);
}

Chunk BlockTable::find_dead(Chunk from, std::uint32_t count) const {
  if (dead_granules_ == 0) return ~0u;
  Chunk any = ~0u;
  for (Chunk i = 0; i < high_chunk_; ++i) {
    const Chunk c = (from + i) % high_chunk_;
    const GranuleMask mask = dead(c);
    if (mask.none()) continue;
    if (mask.find_run(count) != kGranulesPerChunk) return c;
    if (any == ~0u) any = c;
  }
  return any;
}

void BlockTable::validate() const {
  std::uint64_t present_count = 0, dead_count = 0;
  for (Chunk c = 0; c < high_chunk_; ++c) {
    present_count += present(c).count();
    dead_count += dead(c).count();
    TERRACE_CHECK((dead(c) & ~present(c)).none(), "dead granules are present");
    for (std::uint32_t i = 0; i < kGranulesPerChunk; ++i)
      if (dead(c).test(i))
        TERRACE_CHECK(block_of_[c * kGranulesPerChunk + i] == 0, "dead granules have no block");
  }
  TERRACE_CHECK(present_count == present_granules_ && dead_count == dead_granules_, "granules are counted");
}

}  // namespace terrace::runtime
