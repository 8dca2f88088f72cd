/* Built with FORTIFY_SOURCE=3: writes up to malloc_usable_size of large blocks, through a pointer whose size
   the compiler knows, as systemd and redis did. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
  (void)argv;
  /* From here on large blocks are objects; of libc's, whose usable size is larger, such a program dies
   * anywhere. */
  void* volatile first = malloc(16 << 20);
  free(first);
  for (size_t n = 150000; n < 9000000; n += 1234567 + (size_t)argc) {
    char* p = malloc(n);
    size_t usable = malloc_usable_size(p);
    if (usable < n) return 1;
    memset(p, 1, usable);
    char* q = realloc(p, usable + 100000);
    memset(q, 2, malloc_usable_size(q));
    free(q);
  }
  puts("fine");
  return 0;
}
