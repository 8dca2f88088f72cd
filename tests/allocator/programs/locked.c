/* Locks its memory, present and future, as real-time programs do, and then asks for large blocks: what is
   resident must follow what was asked for, not what was reserved. 77: locking is not allowed. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static long resident_mib(void) {
  FILE* f = fopen("/proc/self/statm", "r");
  long size = 0, resident = 0;
  if (fscanf(f, "%ld %ld", &size, &resident) != 2) resident = 0;
  fclose(f);
  return resident / 256;
}

int main(void) {
  for (int round = 0; round < 2; round++) {
    void* volatile p = malloc(20 << 20);
    if (p == NULL) return 1;
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) return 77;
    void* volatile q = malloc(50 << 20);
    if (q == NULL) return 1;
    if (resident_mib() > 400) {
      printf("%ld MiB are resident\n", resident_mib());
      return 1;
    }
    free(p);
    free(q);
  }
  return 0;
}
