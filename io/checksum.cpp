#include "io/checksum.hpp"

#include <atomic>
#include <bit>

#include "io/checksum_variants.hpp"

namespace terrace::io {

std::size_t usable_checksum_variants(const ChecksumVariant* out[3]) {
  // No ifunc and no constructor: the preload library may be called before either has run.
  __builtin_cpu_init();
  std::size_t n = 0;
  out[n++] = &kChecksumSse2;
  if (__builtin_cpu_supports("avx2")) out[n++] = &kChecksumAvx2;
  if (__builtin_cpu_supports("avx512f")) out[n++] = &kChecksumAvx512;
  return n;
}

namespace {

constinit std::atomic<const ChecksumVariant*> chosen{nullptr};

const ChecksumVariant& variant() {
  const ChecksumVariant* v = chosen.load(std::memory_order_relaxed);
  if (v == nullptr) [[unlikely]] {
    const ChecksumVariant* usable[3];
    v = usable[usable_checksum_variants(usable) - 1];
    chosen.store(v, std::memory_order_relaxed);  // racing threads store the same
  }
  return *v;
}

// The finalizer of MurmurHash3: a bijection in which every input bit reaches every output bit.
constexpr std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

// One round: for a given word a bijection of the state, for a given state injective in the word, so two
// identities that differ in one field never collide on equal contents.
constexpr void absorb(Hash128& state, std::uint64_t word) {
  state.low = scramble(state.low ^ (word * 0x9e3779b97f4a7c15u));
  state.high = scramble(state.high + std::rotl(state.low, 29));
  state.low += std::rotl(state.high, 41);
}

}  // namespace

void ContentHasher::reset() { variant().reset(state_); }
void ContentHasher::update(const void* bytes, std::size_t count) { variant().update(state_, bytes, count); }
Hash128 ContentHasher::digest() const { return variant().digest(state_); }

Hash128 content_hash(const void* bytes, std::size_t count) { return variant().hash(bytes, count); }

Hash128 block_checksum(Hash128 content, const BlockIdentity& identity) {
  absorb(content, identity.store_id);
  absorb(content, identity.offset);
  absorb(content, identity.generation);
  absorb(content, identity.length);
  return content;
}

const char* checksum_variant() { return variant().name; }

}  // namespace terrace::io
