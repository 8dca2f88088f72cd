#define XXH_VECTOR 3  // XXH_AVX512
// The default of 512 for AVX-512 is no faster from the cache and slower from memory than that of the other
// variants.
#define XXH_PREFETCH_DIST 384
// gcc 12 makes the one-shot loop of this variant slower than its streaming loop: 24.6 against 29 GB/s from
// memory.
#define TERRACE_STREAM_FROM 16384
#define TERRACE_VARIANT kChecksumAvx512
#define TERRACE_VARIANT_NAME "avx512"
#include "io/checksum_variant.inc"
