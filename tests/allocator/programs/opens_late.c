/* Opens the libraries given, the preload library last: it must still find room in the static TLS block. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  for (int i = 1; i < argc; i++) {
    if (dlopen(argv[i], RTLD_NOW) == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
  }
  free(malloc(1 << 20));
  return 0;
}
