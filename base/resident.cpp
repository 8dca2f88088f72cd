#include "base/resident.hpp"

#include <fcntl.h>

#include "base/syscall.hpp"
#include "base/types.hpp"

namespace terrace {

int open_resident_size() {
  return int(sys(SYS_openat, AT_FDCWD, "/proc/self/statm", O_RDONLY | O_CLOEXEC, 0));
}

std::uint64_t resident_bytes(int descriptor) {
  char text[128];  // `size resident shared ...`, in pages
  const long got = sys(SYS_pread64, descriptor, text, sizeof text, 0);
  std::uint64_t pages = 0;
  long i = 0;
  while (i < got && text[i] != ' ') ++i;
  for (++i; i < got && text[i] >= '0' && text[i] <= '9'; ++i)
    pages = pages * 10 + std::uint64_t(text[i] - '0');
  return pages * kPageBytes;
}

}  // namespace terrace
