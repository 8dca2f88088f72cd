#include <doctest/doctest.h>

#include <list>
#include <map>
#include <vector>

#include "base/types.hpp"
#include "runtime/block_table.hpp"
#include "tests/runtime/model_history.hpp"

using namespace terrace;
using namespace terrace::runtime;
using terrace::runtime::test::Random;

namespace {

constexpr std::uint32_t kChunks = 24;
constexpr std::uint32_t kGranules = kChunks * kGranulesPerChunk;

struct Books {
  BlockTable table;
  Books() { REQUIRE(table.init(kChunks * kChunkBytes).ok()); }
  ~Books() { table.release(); }
};

}  // namespace

TEST_CASE("block_table: blocks, presence and death agree with a table of granules") {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    CAPTURE(seed);
    Books books;
    BlockTable& table = books.table;
    Random random(seed);
    std::vector<BlockId> owner(kGranules, kNoBlock);
    std::vector<bool> present(kGranules), dead(kGranules);
    std::vector<BlockId> live, detached;
    for (int step = 0; step < 8000; ++step) {
      switch (random.below(7)) {
        case 0:
        case 1: {  // a block over free granules, none of them dead
          const std::uint32_t count = 1 + std::uint32_t(random.below(random.chance(3) ? 128 : 12));
          const Granule first = Granule(random.below(kGranules));
          if (offset_in_chunk(first) + count > kGranulesPerChunk) break;
          bool free = true;
          for (std::uint32_t i = 0; i < count; ++i) free &= owner[first + i] == kNoBlock;
          if (!free) break;
          const BlockId id = table.create(first, count);
          REQUIRE(id != kNoBlock);
          REQUIRE(id < table.end());
          REQUIRE(table[id].first == first);
          REQUIRE(table[id].count == count);
          REQUIRE(table[id].state == Residency::empty);
          REQUIRE(bool(table[id].has_copy) == false);
          table.clear_dead(chunk_of(first), BlockTable::mask_of(table[id]));
          for (std::uint32_t i = 0; i < count; ++i) owner[first + i] = id, dead[first + i] = false;
          live.push_back(id);
          break;
        }
        case 2: {
          if (live.empty()) break;
          const std::size_t k = random.below(live.size());
          const BlockId id = live[k];
          for (BlockId& o : owner)
            if (o == id) o = kNoBlock;
          live[k] = live.back();
          live.pop_back();
          if (random.chance(3)) {
            table.detach(id);
            detached.push_back(id);
          } else {
            table.destroy(id);
          }
          break;
        }
        case 3:
          if (!detached.empty()) {
            table.destroy(detached.back());  // others may own its granules by now
            detached.pop_back();
          }
          break;
        default: {
          const Chunk chunk = Chunk(random.below(kChunks));
          const std::uint32_t first = std::uint32_t(random.below(kGranulesPerChunk));
          const std::uint32_t count = 1 + std::uint32_t(random.below(kGranulesPerChunk - first));
          const GranuleMask mask = GranuleMask::range(first, count);
          const Granule start = chunk * kGranulesPerChunk + first;
          if (random.chance(3)) {
            table.clear_present(chunk, mask);
            for (std::uint32_t i = 0; i < count; ++i) present[start + i] = dead[start + i] = false;
          } else if (random.chance(2)) {
            table.set_present(chunk, mask);
            for (std::uint32_t i = 0; i < count; ++i) present[start + i] = true;
          } else {
            GranuleMask dying;
            for (std::uint32_t i = 0; i < count; ++i) {
              if (!present[start + i] || owner[start + i] != kNoBlock) continue;
              dying |= GranuleMask::range(first + i, 1);
              dead[start + i] = true;
            }
            table.set_dead(chunk, dying);
          }
          break;
        }
      }
      if (step % 50 != 0) continue;
      std::uint64_t present_count = 0, dead_count = 0;
      for (Granule g = 0; g < kGranules; ++g) {
        REQUIRE(table.block_at(g) == owner[g]);
        REQUIRE(table.present(chunk_of(g)).test(offset_in_chunk(g)) == present[g]);
        REQUIRE(table.dead(chunk_of(g)).test(offset_in_chunk(g)) == dead[g]);
        present_count += present[g];
        dead_count += dead[g];
      }
      REQUIRE(table.present_granules() == present_count);
      REQUIRE(table.dead_granules() == dead_count);
      REQUIRE(table.live() == live.size() + detached.size());
      table.validate();
      // What find_dead gives has dead memory, and a long enough row of it if any chunk has one.
      const std::uint32_t wanted = 1 + std::uint32_t(random.below(kGranulesPerChunk));
      const Chunk found = table.find_dead(Chunk(random.below(kChunks)), wanted);
      REQUIRE((found == ~0u) == (dead_count == 0));
      if (found == ~0u) continue;
      REQUIRE(table.dead(found).any());
      bool somewhere = false;
      for (Chunk c = 0; c < kChunks; ++c) somewhere |= table.dead(c).find_run(wanted) != kGranulesPerChunk;
      REQUIRE((table.dead(found).find_run(wanted) != kGranulesPerChunk) == somewhere);
    }
  }
}

TEST_CASE("block_table: lists keep their order and their sums") {
  Books books;
  BlockTable& table = books.table;
  Random random(9);
  std::vector<BlockId> ids;
  for (Granule g = 0; g + 8 <= 4 * kGranulesPerChunk; g += 8) ids.push_back(table.create(g, 1 + g / 8 % 8));
  BlockList lists[2];
  std::list<BlockId> model[2];
  constexpr ListName kNames[] = {ListName::clean, ListName::outgoing};
  for (int step = 0; step < 5000; ++step) {
    const BlockId id = ids[random.below(ids.size())];
    if (table[id].list == ListName::none) {
      const std::size_t which = random.below(2);
      table.append(lists[which], kNames[which], id);
      model[which].push_back(id);
    } else {
      const std::size_t which = table[id].list == ListName::clean ? 0 : 1;
      table.remove(lists[which], id);
      model[which].remove(id);
    }
    for (std::size_t w = 0; w < 2; ++w) {
      std::uint64_t granules = 0;
      BlockId at = lists[w].head, before = kNoBlock;
      for (const BlockId expected : model[w]) {
        REQUIRE(at == expected);
        REQUIRE(table[at].previous == before);
        granules += table[at].count;
        before = at;
        at = table[at].next;
      }
      REQUIRE(at == kNoBlock);
      REQUIRE(lists[w].tail == before);
      REQUIRE(lists[w].size == model[w].size());
      REQUIRE(lists[w].granules == granules);
    }
  }
}

TEST_CASE("block_table: a full table says so, and takes blocks again when one has gone") {
  Books books;
  BlockTable& table = books.table;
  std::vector<BlockId> ids;
  for (Granule g = 0; g < kGranules; ++g) {
    const BlockId id = table.create(g, 1);
    if (id == kNoBlock) break;
    ids.push_back(id);
  }
  REQUIRE(ids.size() < kGranules);
  CHECK(ids.size() + 1 == table.capacity());  // id 0 is none
  CHECK(table.block_at(Granule(ids.size())) == kNoBlock);
  table.destroy(ids[100]);
  CHECK(table.block_at(100) == kNoBlock);
  CHECK(table.create(100, 1) == ids[100]);
  table.validate();
}
