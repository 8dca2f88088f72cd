// The variants of the content hash, one a source file: private to checksum.cpp, its tests and its benchmark.
// All give the same values; a state begun by one variant may be continued by another.
#pragma once

#include <cstddef>

#include "io/checksum.hpp"

namespace terrace::io {

struct ChecksumVariant {
  const char* name;
  Hash128 (*hash)(const void* bytes, std::size_t count);
  void (*reset)(void* state);
  void (*update)(void* state, const void* bytes, std::size_t count);
  Hash128 (*digest)(const void* state);
};

extern const ChecksumVariant kChecksumSse2, kChecksumAvx2, kChecksumAvx512;

// Variants that this processor runs, slowest first: fills up to 3, returns how many.
std::size_t usable_checksum_variants(const ChecksumVariant* out[3]);

}  // namespace terrace::io
