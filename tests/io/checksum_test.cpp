// libxxhash itself is the known answer: it is linked, not inlined, so it shares no code with the variants.
#include "io/checksum.hpp"

#include <doctest/doctest.h>
#include <xxhash.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "base/types.hpp"
#include "io/checksum_variants.hpp"

using namespace terrace;
using namespace terrace::io;

namespace {

std::vector<char> random_bytes(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<char> bytes(n);
  for (char& c : bytes) c = char(random());
  return bytes;
}

const std::size_t kSizes[] = {0,   1,    3,    16,   17,   128,   129,   240,     241,
                              256, 1023, 1024, 1025, 4096, 65536, 65537, 2 * kMiB};

}  // namespace

TEST_CASE("checksum: every variant gives what libxxhash gives, at every length") {
  const ChecksumVariant* variants[3];
  const std::size_t n = usable_checksum_variants(variants);
  const auto bytes = random_bytes(2 * kMiB + 1, 3);
  for (std::size_t v = 0; v < n; v++)
    for (const std::size_t size : kSizes)
      for (const std::size_t shift : {0, 1}) {  // aligned and not
        CAPTURE(variants[v]->name);
        CAPTURE(size);
        const XXH128_hash_t want = XXH3_128bits(bytes.data() + shift, size);
        const Hash128 got = variants[v]->hash(bytes.data() + shift, size);
        CHECK(got.low == want.low64);
        CHECK(got.high == want.high64);
      }
  MESSAGE(n << " of 3 variants run on this processor");
}

TEST_CASE("checksum: a hash by pieces is the hash of the whole, also when variants take turns") {
  const ChecksumVariant* variants[3];
  const std::size_t n = usable_checksum_variants(variants);
  const auto bytes = random_bytes(2 * kMiB, 4);
  const Hash128 want = content_hash(bytes.data(), bytes.size());
  std::mt19937_64 random(5);
  for (int round = 0; round < 40; round++) {
    ContentHasher hasher;
    alignas(64) unsigned char state[kHasherStateBytes];
    variants[0]->reset(state);
    for (std::size_t at = 0; at < bytes.size();) {
      std::size_t piece = round == 0 ? 256 * kKiB : 1 + random() % (round % 2 ? 700 : 300'000);
      piece = std::min(piece, bytes.size() - at);
      hasher.update(bytes.data() + at, piece);
      variants[random() % n]->update(state, bytes.data() + at, piece);
      at += piece;
    }
    REQUIRE(hasher.digest() == want);
    REQUIRE(variants[random() % n]->digest(state) == want);
  }
}

TEST_CASE("checksum: one changed bit anywhere changes the hash") {
  auto bytes = random_bytes(64 * kKiB, 6);
  const Hash128 want = content_hash(bytes.data(), bytes.size());
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; i++) {
    const std::size_t bit = random() % (bytes.size() * 8);
    bytes[bit / 8] ^= char(1u << (bit % 8));
    REQUIRE(content_hash(bytes.data(), bytes.size()) != want);
    bytes[bit / 8] ^= char(1u << (bit % 8));
  }
  CHECK(content_hash(bytes.data(), bytes.size()) == want);
}

TEST_CASE("checksum: identities that differ in one field give different checksums for equal contents") {
  const Hash128 content = content_hash("terrace", 7);
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  std::size_t made = 0;
  auto add = [&](const BlockIdentity& id) {
    const Hash128 h = block_checksum(content, id);
    seen.insert({h.low, h.high});
    made++;
  };
  add({});
  for (std::uint64_t v = 1; v <= 20'000; v++) {
    add({.store_id = v});
    add({.offset = v});  // the same numbers in another field must not coincide
    add({.generation = v});
    add({.length = v});
  }
  for (std::uint64_t a = 1; a < 60; a++)
    for (std::uint64_t b = 1; b < 60; b++) add({.offset = a * kGranuleBytes, .generation = b << 32});
  CHECK(seen.size() == made);
}

TEST_CASE("checksum: each bit of the identity and of the content moves about half of the checksum's bits") {
  const Hash128 content = content_hash("terrace", 7);
  const BlockIdentity id{.store_id = 1, .offset = 2, .generation = 3, .length = 4};
  const Hash128 base = block_checksum(content, id);
  auto distance = [&](Hash128 h) {
    return __builtin_popcountll(h.low ^ base.low) + __builtin_popcountll(h.high ^ base.high);
  };
  for (int bit = 0; bit < 64; bit++)
    for (int field = 0; field < 6; field++) {
      BlockIdentity i = id;
      Hash128 c = content;
      std::uint64_t* const words[] = {&i.store_id, &i.offset, &i.generation, &i.length, &c.low, &c.high};
      *words[field] ^= std::uint64_t{1} << bit;
      CAPTURE(bit);
      CAPTURE(field);
      CHECK(distance(block_checksum(c, i)) >= 30);
      CHECK(distance(block_checksum(c, i)) <= 98);
    }
}
