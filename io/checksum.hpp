// 128-bit checksums of blocks (XXH3 128), over what the bytes are and over whose they are.
//
// A block's *content hash* covers its bytes alone, so that a frozen block can be compared with its stored
// version; its *checksum* mixes in the identity of one stored version (store, place, generation, length), so
// that a misdirected or stale read cannot pass for it even when a hash is compared across versions. Any
// context, no heap. AVX2 and AVX-512 variants are chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::io {

struct Hash128 {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
};

// One stored version of a block.
struct BlockIdentity {
  std::uint64_t store_id = 0;
  std::uint64_t offset = 0;  // bytes from the start of the store file
  std::uint64_t generation = 0;
  std::uint64_t length = 0;  // bytes
};

inline constexpr std::size_t kHasherStateBytes = 640;

// Hash of bytes given piece by piece, in order. The pieces' sizes do not matter for the result.
class ContentHasher {
 public:
  ContentHasher() { reset(); }
  void reset();
  void update(const void* bytes, std::size_t count);
  Hash128 digest() const;

 private:
  alignas(64) unsigned char state_[kHasherStateBytes];  // an XXH3_state_t, checked in the sources
};

Hash128 content_hash(const void* bytes, std::size_t count);
Hash128 block_checksum(Hash128 content, const BlockIdentity& identity);
// The variant in use: `avx512`, `avx2` or `sse2`.
const char* checksum_variant();

}  // namespace terrace::io
