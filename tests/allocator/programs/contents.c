/* Contents under the malloc family: alignments, realloc over the border between libc and objects, zeros of
 * calloc. */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(x)                                       \
  do {                                                \
    if (!(x)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #x); \
      return 1;                                       \
    }                                                 \
  } while (0)

static void put(unsigned char* p, size_t n) {
  for (size_t i = 0; i < n; i += 509) p[i] = (unsigned char)(i * 31 + 1);
  p[n - 1] = 0xee;
}
static int has(const unsigned char* p, size_t n, size_t whole) {
  for (size_t i = 0; i < n; i += 509)
    if (i != whole - 1 && p[i] != (unsigned char)(i * 31 + 1)) return 0;
  return 1;
}

int main(void) {
  for (size_t a = 8; a <= (size_t)1 << 30; a *= 2) {
    size_t sizes[] = {1, a - 1, a, a + 1, 3 * a};
    for (int s = 0; s < 5; s++) {
      unsigned char* p = NULL;
      NEED(posix_memalign((void**)&p, a, sizes[s]) == 0);
      NEED((uintptr_t)p % a == 0);
      size_t n = sizes[s] < 100000 ? sizes[s] : 100000;
      put(p, n);
      p[sizes[s] - 1] = 1;
      NEED(malloc_usable_size(p) >= sizes[s]);
      if (sizes[s] <= 64 << 20) {
        p = realloc(p, sizes[s] + 5000);
        NEED(p != NULL && has(p, n, sizes[s] < n ? sizes[s] : n));
      }
      free(p);
    }
  }
  /* Every step over and under the threshold keeps the bytes. */
  size_t steps[] = {100,     131071, 131072, 131073,   50,     200000,  70000,
                    5 << 20, 65535,  1,      64 << 20, 130000, 3 << 20, 140000};
  size_t had = 10;
  unsigned char* p = malloc(had);
  put(p, had);
  for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
    p = realloc(p, steps[i]);
    NEED(p != NULL);
    NEED(has(p, had < steps[i] ? had : steps[i], had));
    NEED(malloc_usable_size(p) >= steps[i]);
    put(p, had = steps[i]);
  }
  free(p);
  /* A block that grows by 64 KiB at a time takes linear time. */
  p = malloc(1);
  for (size_t n = 65536; n <= 256 << 20; n += 65536) {
    p = realloc(p, n);
    NEED(p != NULL);
    p[n - 1] = (unsigned char)(n >> 16);
  }
  for (size_t n = 65536; n <= 256 << 20; n += 65536) NEED(p[n - 1] == (unsigned char)(n >> 16));
  free(p);
  /* calloc is zero after dirty blocks of other sizes. */
  for (int round = 0; round < 40; round++) {
    size_t n = 140000 + (size_t)round * 123457;
    unsigned char* d = malloc(n);
    memset(d, 0xa5, n);
    free(d);
    size_t m = n / 2 + 7;
    unsigned char* z = calloc(m, 1);
    for (size_t i = 0; i < m; i++) NEED(z[i] == 0);
    memset(z, 0x5a, m);
    free(z);
  }
  return 0;
}
