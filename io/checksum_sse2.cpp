#define XXH_VECTOR 1  // XXH_SSE2
#define TERRACE_STREAM_FROM ~0ul
#define TERRACE_VARIANT kChecksumSse2
#define TERRACE_VARIANT_NAME "sse2"
#include "io/checksum_variant.inc"
