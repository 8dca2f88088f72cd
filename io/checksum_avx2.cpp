#define XXH_VECTOR 2  // XXH_AVX2
#define TERRACE_STREAM_FROM ~0ul
#define TERRACE_VARIANT kChecksumAvx2
#define TERRACE_VARIANT_NAME "avx2"
#include "io/checksum_variant.inc"
