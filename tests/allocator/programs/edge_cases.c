/* Prints what the malloc family answers at its edges: one line a case, to be the same under glibc and under
   Terrace. With an argument it also fails where posix_memalign touches errno, as glibc does on ENOMEM and
   POSIX does not ask. */
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void* volatile sink;

static void show(const char* what, void* p) {
  sink = p;
  printf("%s: %s errno %d usable>0 %d\n", what, p ? "pointer" : "null", p ? 0 : errno,
         p ? malloc_usable_size(p) > 0 : 0);
  free(p);
  errno = 0;
}

int main(int argc, char** argv) {
  (void)argv;
  volatile size_t zero = 0, huge = (size_t)PTRDIFF_MAX + 1, most = SIZE_MAX, big = 3 << 20;
  errno = 0;
  show("malloc(0)", malloc(zero));
  show("calloc(0,n)", calloc(zero, 7));
  show("calloc(n,0)", calloc(big, zero));
  show("aligned_alloc(64,0)", aligned_alloc(64, zero));
  show("malloc(huge)", malloc(huge));
  show("malloc(most)", malloc(most));
  show("calloc overflow", calloc(most / 2, 3));
  show("calloc(huge)", calloc(huge, 1));
  show("realloc(null,big)", realloc(NULL, big));
  show("realloc(null,0)", realloc(NULL, zero));
  show("reallocarray overflow", reallocarray(NULL, most / 2, 3));
  show("reallocarray(null)", reallocarray(NULL, big, 2));
  show("memalign(48,big)", memalign(48, big));
  show("memalign(0,big)", memalign(zero, big));
  show("memalign(most,big)", memalign(most, big));
  show("memalign(16,huge)", memalign(16, huge));
  show("aligned_alloc(4096,most)", aligned_alloc(4096, most));
  show("valloc(big)", valloc(big));
  show("pvalloc(most)", pvalloc(most));
  show("pvalloc(1)", pvalloc(1));

  /* realloc(p, 0) frees and gives null, for small and for large. */
  for (size_t n = 100; n <= big; n *= 100) {
    void* p = malloc(n);
    errno = 0;
    void* q = realloc(p, zero);
    printf("realloc(p,0): %s errno %d\n", q ? "pointer" : "null", errno);
  }
  /* A refused realloc leaves the block alone. */
  for (size_t n = 100; n <= big; n *= 100) {
    char* p = malloc(n);
    memset(p, 7, n);
    errno = 0;
    void* q = realloc(p, most);
    void* r = reallocarray(p, most / 2, 3);
    printf("realloc(p,most): %d %d errno %d byte %d\n", q == NULL, r == NULL, errno, p[n - 1]);
    free(p);
  }
  /* posix_memalign: the pointer and errno stay on error. */
  size_t alignments[] = {0, 1, 3, 4, 8, 12, 24, 16, 4096, (size_t)1 << 30};
  size_t sizes[] = {0, 10, big, huge, most};
  for (unsigned a = 0; a < sizeof alignments / sizeof *alignments; a++) {
    for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++) {
      void* p = (void*)0x1234;
      errno = 77;
      int r = posix_memalign(&p, alignments[a], sizes[s]);
      if (argc > 1 && errno != 77) return 1;
      printf("posix_memalign(%zu,%zu): %d", alignments[a], sizes[s], r);
      if (r == 0) {
        printf(" aligned %d\n", (uintptr_t)p % alignments[a] == 0);
        free(p);
      } else {
        printf(" unchanged %d\n", p == (void*)0x1234);
      }
    }
  }
  /* errno survives free. */
  void* p = malloc(100);
  void* q = malloc(big);
  errno = 5;
  free(p);
  free(q);
  free(NULL);
  printf("free: errno %d\n", errno);
  printf("malloc_usable_size(null): %zu\n", malloc_usable_size(NULL));
  return 0;
}
