/* Argument: how many malloc and free pairs of small blocks to do. For counting instructions. */
#include <stdlib.h>

int main(int argc, char** argv) {
  const long pairs = argc > 1 ? atol(argv[1]) : 0;
  for (long i = 0; i < pairs; i++) free(malloc(100));
  return 0;
}
