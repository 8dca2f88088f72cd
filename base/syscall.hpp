// System calls that neither touch errno nor any thread-local data: the pager runs as a process on the
// program's memory and may not use what libc keeps for the program's threads. Each returns the kernel's
// value: >= 0, or -errno.
#pragma once

#include <sys/syscall.h>

namespace terrace {

inline long raw_syscall(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

// Casts pointers and integers alike to what raw_syscall takes.
template <typename... Args>
inline long sys(long number, Args... args) {
  return raw_syscall(number, (long)args...);
}

}  // namespace terrace
