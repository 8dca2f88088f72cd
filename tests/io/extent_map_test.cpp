#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

#include "io/store.hpp"

using namespace terrace;
using namespace terrace::io;

namespace {

struct Map {
  explicit Map(std::uint32_t max_segments) : memory(ExtentMap::table_bytes(max_segments) / 16 + 1) {
    map.init(memory.data(), max_segments);
  }
  struct alignas(16) Cell {
    char bytes[16] = {};
  };
  std::vector<Cell> memory;
  ExtentMap map;
};

// The longest run of free granules within a segment, by looking at each of them.
std::uint32_t longest_free(const std::vector<bool>& used) {
  std::uint32_t longest = 0, run = 0;
  for (std::size_t i = 0; i < used.size(); i++) {
    if (i % kGranulesPerChunk == 0) run = 0;
    run = used[i] ? 0 : run + 1;
    longest = std::max(longest, run);
  }
  return longest;
}

}  // namespace

TEST_CASE("extent_map: random use agrees with a bitmap, and fails only when no run is long enough") {
  for (std::uint64_t seed = 1; seed <= 12; seed++) {
    CAPTURE(seed);
    constexpr std::uint32_t kMax = 24;
    Map m(kMax);
    std::vector<bool> used;
    std::vector<Extent> live;
    std::mt19937_64 random(seed);
    std::uint64_t used_count = 0;
    for (int step = 0; step < 6000; step++) {
      const bool filling = (step / 700) % 2 == 0;
      if (random() % 400 == 0 && m.map.segments() < kMax) {
        const auto more = std::uint32_t(1 + random() % std::min<std::uint64_t>(5, kMax - m.map.segments()));
        m.map.grow(more);
        used.resize(used.size() + more * kGranulesPerChunk, false);
      }
      if (live.empty() || random() % 100 < (filling ? 70u : 30u)) {
        const std::uint32_t sizes[] = {1, 4, 8, 16, 32, 64, 128, std::uint32_t(1 + random() % 128)};
        const std::uint32_t count = sizes[random() % 8];
        const std::uint32_t longest = longest_free(used);
        const Extent e = m.map.allocate(count);
        REQUIRE(e.valid() == (longest >= count));
        if (!e.valid()) continue;
        REQUIRE(e.count == count);
        REQUIRE(chunk_of(e.first) == chunk_of(e.first + e.count - 1));
        REQUIRE(e.first + e.count <= used.size());
        for (std::uint32_t i = 0; i < count; i++) {
          REQUIRE_FALSE(used[e.first + i]);
          used[e.first + i] = true;
        }
        used_count += count;
        live.push_back(e);
      } else {
        const std::size_t at = random() % live.size();
        const Extent e = live[at];
        live[at] = live.back();
        live.pop_back();
        m.map.release(e);
        for (std::uint32_t i = 0; i < e.count; i++) used[e.first + i] = false;
        used_count -= e.count;
      }
      REQUIRE(m.map.used_granules() == used_count);
      REQUIRE(m.map.free_granules() == used.size() - used_count);
      if (step % 16 == 0) m.map.validate();
    }
    for (const Extent& e : live) m.map.release(e);
    m.map.validate();
    CHECK(m.map.used_granules() == 0);
  }
}

TEST_CASE("extent_map: whole segments are handed out from the front, and all of them") {
  Map m(100);
  CHECK_FALSE(m.map.allocate(1).valid());
  m.map.grow(60);
  m.map.grow(40);
  for (std::uint32_t i = 0; i < 60; i++) CHECK(m.map.allocate(128).valid());
  for (std::uint32_t i = 0; i < 40; i++) CHECK(m.map.allocate(128).valid());
  CHECK_FALSE(m.map.allocate(1).valid());
  CHECK(m.map.free_granules() == 0);
}

TEST_CASE("extent_map: small runs fill begun segments before a whole one is opened") {
  Map m(1000);
  m.map.grow(1000);
  std::vector<Extent> live;
  for (int i = 0; i < 128 * 10 / 4; i++) live.push_back(m.map.allocate(4));
  std::vector<bool> touched(1000, false);
  for (const Extent& e : live) touched[chunk_of(e.first)] = true;
  CHECK(std::count(touched.begin(), touched.end(), true) == 10);
}
