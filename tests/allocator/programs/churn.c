/* 200,000 blocks of 64 KiB to 8 MiB come and go: the number of mappings must not follow. Prints their growth.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int mappings(void) {
  FILE* f = fopen("/proc/self/maps", "r");
  int n = 0;
  for (int c; (c = getc(f)) != EOF;) n += c == '\n';
  fclose(f);
  return n;
}

int main(void) {
  enum { slots = 256, operations = 200000 };
  static unsigned char* p[slots];
  static size_t bytes[slots];
  uint64_t x = 88172645463325252u;
  const int before = mappings();
  int most = before;
  for (int i = 0; i < operations; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    const unsigned s = x % slots;
    if (p[s] != NULL) {
      if (p[s][0] != (unsigned char)s || p[s][bytes[s] - 1] != (unsigned char)s) return 1;
      free(p[s]);
    }
    bytes[s] = 65536 + (x >> 20) % ((size_t)65536 << ((x >> 50) % 8));
    p[s] = malloc(bytes[s]);
    p[s][0] = p[s][bytes[s] - 1] = (unsigned char)s;
    if (i % 10000 == 0 && mappings() > most) most = mappings();
  }
  printf("mappings grew by %d\n", most - before);
  return most - before < 2000 ? 0 : 1;
}
