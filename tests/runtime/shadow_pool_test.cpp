#include <doctest/doctest.h>
#include <sys/mman.h>

#include <vector>

#include "base/types.hpp"
#include "runtime/shadow_pool.hpp"
#include "tests/runtime/model_history.hpp"

using namespace terrace;
using namespace terrace::runtime;
using terrace::runtime::test::Random;

namespace {

class Pool {
 public:
  explicit Pool(std::uint32_t chunks) : chunks_(chunks), tables_(ShadowPool::table_bytes(chunks)) {
    mapping_bytes_ = (chunks + 1) * kChunkBytes;
    mapping_ = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base_ = reinterpret_cast<std::byte*>(round_up(std::uint64_t(mapping_), kChunkBytes));
    pool_.init(base_, chunks, tables_.data());
  }
  ~Pool() { munmap(mapping_, mapping_bytes_); }
  ShadowPool& operator*() { return pool_; }
  ShadowPool* operator->() { return &pool_; }
  std::byte* base() { return base_; }
  std::uint32_t granules() const { return chunks_ * kGranulesPerChunk; }

 private:
  std::uint32_t chunks_;
  std::vector<char> tables_;
  void* mapping_;
  std::uint64_t mapping_bytes_;
  std::byte* base_;
  ShadowPool pool_;
};

struct GranuleState {
  bool used = false, frame = false, zero = false;
};

}  // namespace

TEST_CASE("shadow_pool: random use agrees with a table of granules") {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    CAPTURE(seed);
    constexpr std::uint32_t kChunks = 12;
    Pool pool(kChunks);
    Random random(seed);
    std::vector<GranuleState> model(pool.granules());
    std::vector<Slot> held;
    const auto at = [&](const Slot& slot, std::uint32_t i) -> GranuleState& {
      return model[slot.chunk * kGranulesPerChunk + slot.first + i];
    };
    const auto whole_chunk = [&](bool frames) {
      for (std::uint32_t c = 0; c < kChunks; ++c) {
        bool fits = true;
        for (std::uint32_t i = 0; i < kGranulesPerChunk && fits; ++i) {
          const GranuleState& g = model[c * kGranulesPerChunk + i];
          fits = !g.used && g.frame == frames;
        }
        if (fits) return true;
      }
      return false;
    };
    for (int step = 0; step < 6000; ++step) {
      const std::uint64_t pick = random.below(10);
      if (pick < 5) {
        const bool frames = random.chance(2);
        const std::uint32_t count =
            random.chance(3) ? kGranulesPerChunk : 1 + std::uint32_t(random.below(128));
        const Slot slot = frames ? pool->take_frame(count) : pool->take_hole(count);
        if (!slot.valid()) {
          REQUIRE_FALSE(whole_chunk(frames));  // a whole free chunk serves any request
          continue;
        }
        REQUIRE(slot.count == count);
        REQUIRE(slot.first + slot.count <= kGranulesPerChunk);
        REQUIRE(slot.chunk < kChunks);
        REQUIRE(pool->address_of(slot) ==
                pool.base() + slot.chunk * kChunkBytes + slot.first * kGranuleBytes);
        bool zero = true;
        for (std::uint32_t i = 0; i < count; ++i) {
          REQUIRE_FALSE(at(slot, i).used);
          REQUIRE(at(slot, i).frame == frames);
          at(slot, i).used = true;
          zero &= at(slot, i).zero;
        }
        if (pool->known_zero(slot)) REQUIRE(zero);
        held.push_back(slot);
      } else if (pick < 8) {
        if (held.empty()) continue;
        const std::size_t k = random.below(held.size());
        const Slot slot = held[k];
        if (random.chance(3)) {
          pool->filled(slot);
          for (std::uint32_t i = 0; i < slot.count; ++i) at(slot, i).frame = true, at(slot, i).zero = false;
        } else if (random.chance(3)) {
          pool->emptied(slot);
          for (std::uint32_t i = 0; i < slot.count; ++i) at(slot, i).frame = at(slot, i).zero = false;
        }
        pool->release(slot);
        for (std::uint32_t i = 0; i < slot.count; ++i) at(slot, i).used = false;
        held[k] = held.back();
        held.pop_back();
      } else if (pick == 8) {
        const bool possible = whole_chunk(false);
        const std::uint64_t before = pool->frames();
        REQUIRE(pool->populate_chunk() == possible);
        if (!possible) continue;
        REQUIRE(pool->frames() == before + kGranulesPerChunk);
        // Which chunk it was shows in a slot that is known to be zero.
        const Slot slot = pool->take_frame(kGranulesPerChunk);
        REQUIRE(slot.valid());
        for (std::uint32_t c = 0; c < kChunks; ++c) {
          const Slot all{c, 0, std::uint16_t(kGranulesPerChunk)};
          bool hole = true;
          for (std::uint32_t i = 0; i < kGranulesPerChunk; ++i) hole &= !at(all, i).frame && !at(all, i).used;
          if (!hole || !pool->known_zero(all)) continue;
          for (std::uint32_t i = 0; i < kGranulesPerChunk; ++i) at(all, i).frame = at(all, i).zero = true;
        }
        pool->release(slot);
      } else {
        const bool any_free = pool->free_frames() != 0;
        const Slot slot = pool->take_any_frames();
        REQUIRE(slot.valid() == any_free);
        if (!slot.valid()) continue;
        for (std::uint32_t i = 0; i < slot.count; ++i) {
          REQUIRE(at(slot, i).frame);
          REQUIRE_FALSE(at(slot, i).used);
          at(slot, i).frame = at(slot, i).zero = false;
        }
        pool->emptied(slot);
        pool->release(slot);
      }
      std::uint64_t frames = 0, free_frames = 0;
      for (const GranuleState& g : model) {
        frames += g.frame;
        free_frames += g.frame && !g.used;
      }
      REQUIRE(pool->frames() == frames);
      REQUIRE(pool->free_frames() == free_frames);
      pool->validate();
    }
  }
}

TEST_CASE("shadow_pool: populated frames are zero, and forget it when something is put there") {
  Pool pool(4);
  REQUIRE(pool->populate_chunk());
  const Slot whole = pool->take_frame(kGranulesPerChunk);
  REQUIRE(whole.valid());
  CHECK(pool->known_zero(whole));
  for (std::uint64_t i = 0; i < kChunkBytes; i += 512) REQUIRE(pool->address_of(whole)[i] == std::byte{0});
  pool->filled(whole);
  CHECK_FALSE(pool->known_zero(whole));
  pool->release(whole);
  const Slot piece = pool->take_frame(3);
  REQUIRE(piece.valid());
  CHECK_FALSE(pool->known_zero(piece));
}

TEST_CASE("shadow_pool: pieces share one chunk and leave the others whole") {
  Pool pool(8);
  for (int i = 0; i < 3; ++i) REQUIRE(pool->populate_chunk());
  std::vector<Slot> pieces;
  for (int i = 0; i < 12; ++i) {
    pieces.push_back(pool->take_frame(8));
    REQUIRE(pieces.back().valid());
    CHECK(pieces.back().chunk == pieces.front().chunk);
  }
  CHECK(pool->take_frame(kGranulesPerChunk).valid());
  CHECK(pool->take_frame(kGranulesPerChunk).valid());
  CHECK_FALSE(pool->take_frame(kGranulesPerChunk).valid());
}
