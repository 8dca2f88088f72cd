// What every policy promises for any sequence of events, checked against a plain model.
#include <doctest/doctest.h>

#include <set>

#include "tests/tiering/patterns.hpp"

using namespace terrace::tiering;
using namespace terrace::tiering::test;

namespace {

using Place = OnlinePolicy::Place;

// Random births, deaths, touches and moves; every answer must fit the places that the policy was told.
template <class Policy>
void random_events(std::uint32_t seed, std::uint32_t capacity, int events) {
  std::mt19937 random(seed);
  Owned<Policy> owned(capacity);
  Policy& policy = owned.policy;
  std::vector<int> places(capacity, -1);  // -1: not alive, else Place
  std::uint64_t now = 1;
  const auto any = [&] { return BlockId(random() % capacity); };
  std::size_t victims = 0, reads = 0;
  for (int i = 0; i < events; ++i) {
    now += random() % 3 == 0 ? 0 : random() % 1'000'000;
    const BlockId b = any();
    const std::uint32_t what = random() % 16;
    if (places[b] < 0) {
      BlockId after = b == 0 ? kNoBlock : b - 1;
      if (after != kNoBlock && places[after] < 0) after = kNoBlock;
      policy.inserted(b, after, now);
      places[b] = int(Place::none);
    } else if (what == 0) {
      policy.removed(b);
      places[b] = -1;
    } else if (what < 9) {
      const bool in_order = random() % 2 == 0;  // streams, so that something is read ahead
      BlockId at = b;
      for (std::uint32_t k = 0; k < (in_order ? 12u : 1u) && at < capacity && places[at] >= 0; ++k, ++at) {
        if (places[at] == int(Place::mapped)) continue;
        const Touch how = places[at] == int(Place::stored) ? Touch::demand
                          : random() % 4 == 0              ? Touch::inferred
                          : random() % 2 == 0              ? Touch::rescued
                                                           : Touch::first;
        const bool placed_first = random() % 2 == 0;
        if (placed_first) policy.placed(at, Place::mapped);
        policy.touched(at, how, now);
        if (!placed_first) policy.placed(at, Place::mapped);
        places[at] = int(Place::mapped);
        BlockId out[32];
        const std::size_t n = policy.read_ahead(at, now, std::span(out).first(random() % 33));
        const std::set<BlockId> unique(out, out + n);
        REQUIRE(unique.size() == n);
        for (const BlockId r : unique) {
          REQUIRE(r < capacity);
          REQUIRE(places[r] == int(Place::stored));
          if (random() % 2 == 0) continue;
          policy.placed(r, Place::none);
          places[r] = int(Place::none);
        }
        reads += n;
      }
    } else if (what < 13) {
      BlockId out[32];
      const std::size_t wanted = random() % 33;
      const std::size_t n = policy.victims(now, std::span(out).first(wanted));
      const auto mapped = std::count(places.begin(), places.end(), int(Place::mapped));
      REQUIRE(n <= wanted);
      if (wanted > 0 && mapped > 1) REQUIRE(n > 0);
      const std::set<BlockId> unique(out, out + n);
      REQUIRE(unique.size() == n);
      for (const BlockId v : unique) {
        REQUIRE(v < capacity);
        REQUIRE(places[v] == int(Place::mapped));
        if (random() % 8 == 0) continue;  // not taken
        const Place place = random() % 2 == 0 ? Place::none : Place::stored;
        policy.placed(v, place);
        places[v] = int(place);
      }
      victims += n;
    } else if (places[b] != int(Place::mapped)) {
      if (random() % 4 == 0) policy.read_in_vain(b);
      const Place place = random() % 4 == 0 ? Place::mapped : Place::stored;
      policy.placed(b, place);
      places[b] = int(place);
    }
    REQUIRE(policy.map_ahead() <= 8);
  }
  CHECK(victims > 0);
  CHECK(reads > 0);
}

}  // namespace

TEST_CASE("lru: any sequence of events gives only mapped victims and stored blocks to read, each once") {
  for (std::uint32_t seed = 1; seed <= 6; ++seed)
    random_events<LruPolicy>(seed, seed % 2 == 0 ? 40 : 700, 20'000);
}

TEST_CASE("stream: any sequence of events gives only mapped victims and stored blocks to read, each once") {
  for (std::uint32_t seed = 1; seed <= 6; ++seed)
    random_events<StreamPolicy>(seed, seed % 2 == 0 ? 40 : 700, 20'000);
  random_events<StreamPolicy>(9, 12'000, 120'000);  // beyond one full scan
}

TEST_CASE("lru: victims leave in the order of their last seen touch") {
  Owned<LruPolicy> owned(8);
  for (BlockId b = 0; b < 4; ++b) {
    owned.policy.inserted(b, kNoBlock, b);
    owned.policy.touched(b, Touch::first, b);
    owned.policy.placed(b, Place::mapped);
  }
  owned.policy.touched(0, Touch::inferred, 9);
  BlockId out[8];
  REQUIRE(owned.policy.victims(10, out) == 4);
  CHECK(out[0] == 1);
  CHECK(out[1] == 2);
  CHECK(out[2] == 3);
  CHECK(out[3] == 0);
}

TEST_CASE(
    "stream: neither the blocks touched last nor those mapped ahead are victims while there are others") {
  constexpr std::uint32_t kBlocks = 256;
  Owned<StreamPolicy> owned(kBlocks);
  StreamPolicy& policy = owned.policy;
  std::uint64_t now = 0;
  for (BlockId b = 0; b < kBlocks; ++b) policy.inserted(b, b == 0 ? kNoBlock : b - 1, now);
  for (int p = 0; p < 2; ++p) {
    for (BlockId b = 0; b < 200; ++b) {
      policy.placed(b, Place::none);
      policy.touched(b, p == 0 ? Touch::first : Touch::rescued, now += 1000);
      policy.placed(b, Place::mapped);
    }
  }
  for (BlockId b = 200; b < 204; ++b) policy.placed(b, Place::mapped);  // mapped ahead, not touched
  for (int calls = 0; calls < 5; ++calls) {
    BlockId out[32];
    const std::size_t n = policy.victims(now + 10, out);
    REQUIRE(n == 32);
    for (const BlockId v : out) {
      CHECK(v < 192);
      policy.placed(v, Place::none);
    }
  }
  // Once an interval is known, the block just used (and no longer spared) waits longest.
  CHECK(policy.score_ns(191, now) > policy.score_ns(1, now));
  CHECK(policy.spared(199));
  CHECK(policy.spared(203));
  CHECK_FALSE(policy.spared(100));
}

TEST_CASE("stream: a dead block is not read ahead and its death moves nobody else") {
  Owned<StreamPolicy> owned(64);
  StreamPolicy& policy = owned.policy;
  std::uint64_t now = 0;
  for (BlockId b = 0; b < 64; ++b) policy.inserted(b, b == 0 ? kNoBlock : b - 1, now);
  for (int p = 0; p < 6; ++p) {
    for (BlockId b = 0; b < 64; ++b) {
      policy.touched(b, p == 0 ? Touch::first : Touch::demand, now += 1000);
      policy.placed(b, Place::mapped);
      policy.placed(b, Place::stored);
    }
  }
  BlockId out[4];
  policy.touched(9, Touch::demand, now += 1000);
  policy.touched(10, Touch::demand, now += 1000);
  REQUIRE(policy.read_ahead(10, now, out) >= 3);
  CHECK(out[0] == 11);
  CHECK(out[1] == 12);
  policy.removed(12);
  const std::size_t n = policy.read_ahead(10, now, out);
  REQUIRE(n >= 1);
  CHECK(out[0] == 11);
  for (std::size_t i = 0; i < n; ++i) CHECK(out[i] != 12);
}

TEST_CASE("replay: a policy that names a block that is not mapped is refused") {
  struct Wrong final : OnlinePolicy {
    void inserted(BlockId, BlockId, std::uint64_t) override {}
    void removed(BlockId) override {}
    void touched(BlockId, Touch, std::uint64_t) override {}
    void placed(BlockId, Place) override {}
    std::size_t victims(std::uint64_t, std::span<BlockId> out) override { return out[0] = 63, 1; }
    std::size_t read_ahead(BlockId, std::uint64_t, std::span<BlockId>) override { return 0; }
    void read_in_vain(BlockId) override {}
    std::uint32_t map_ahead() const override { return 0; }
    const char* name() const override { return "wrong"; }
    double expected_ns(BlockId, std::uint64_t) const override { return 0; }
  } wrong;
  Machine m;
  m.budget = 8;
  CHECK_THROWS(replay(wrong, cyclic(64, 1), m));
}
