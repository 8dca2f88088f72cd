#define XXH_VECTOR 3  // XXH_AVX512
#define TERRACE_VARIANT kChecksumAvx512
#define TERRACE_VARIANT_NAME "avx512"
#include "io/checksum_variant.inc"
