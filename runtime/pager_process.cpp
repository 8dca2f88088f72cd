#include "runtime/pager_process.hpp"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/line.hpp"
#include "base/syscall.hpp"
#include "base/types.hpp"

namespace terrace::runtime {
namespace {

constexpr std::uint64_t kStackBytes = 256 * kKiB;
// Static thread-local storage lies below the thread pointer (x86-64 ABI, variant II), the thread control
// block above.
constexpr std::uint64_t kTlsBytes = 64 * kKiB;
constexpr std::uint64_t kControlBlockBytes = 8 * kKiB;
// Fields of glibc's tcbhead_t that compiled code may read.
constexpr std::size_t kSelf = 0x00, kSelfToo = 0x10, kStackGuard = 0x28, kPointerGuard = 0x30;

// Fields of linux_dirent64 (getdents64(2)).
constexpr std::size_t kEntryLength = 16, kEntryName = 19;

struct Start {
  int (*body)(void*);
  void* argument;
};

std::uint64_t own_word(std::size_t offset) {
  std::uint64_t value;
  asm volatile("mov %%fs:(%1), %0" : "=r"(value) : "r"(offset));
  return value;
}

void put_word(std::byte* block, std::size_t offset, std::uint64_t value) {
  std::memcpy(block + offset, &value, sizeof value);
}

[[noreturn]] void enter(Start* start) {
  (void)sys(SYS_close_range, 0, ~0u, 0);
  (void)sys(SYS_setsid);
  (void)sys(SYS_prctl, PR_SET_NAME, "terrace-pager");
  const int status = start->body(start->argument);
  for (;;) (void)sys(SYS_exit_group, status);
}

// clone3, and enter(start) on the new stack in the child. Written out because the child may not return
// through the frame of the parent, whose stack it shares until then.
long clone_and_enter(clone_args* args, Start* start) {
  long result;
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "mov %[start], %%rdi\n\t"
      "call *%[entry]\n\t"
      "ud2\n"
      "1:"
      : "=a"(result)
      : "a"(long{SYS_clone3}), "D"(args), "S"(sizeof *args), [start] "r"(start), [entry] "b"(&enter)
      : "rcx", "r11", "memory");
  return result;
}

bool thread_shares_memory(int thread) {
  const long order = sys(SYS_kcmp, thread, sys(SYS_getpid), KCMP_VM, 0, 0);
  return order <= 0;  // equal; or not allowed to ask: then the pidfd alone decides
}

}  // namespace

Result<int> start_on_this_memory(int (*body)(void*), void* argument) {
  constexpr std::uint64_t kGuard = kPageBytes;
  constexpr std::uint64_t kBytes = kGuard + kStackBytes + kGuard + kTlsBytes + kControlBlockBytes + kGuard;
  const long mapped =
      sys(SYS_mmap, nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped < 0 && mapped > -4096) return Status::from_errno(int(-mapped), "mapping the pager's stack");
  auto* const base = reinterpret_cast<std::byte*>(mapped);
  std::byte* const stack = base + kGuard;
  std::byte* const tls = stack + kStackBytes + kGuard;
  (void)sys(SYS_mprotect, stack, kStackBytes, PROT_READ | PROT_WRITE);
  (void)sys(SYS_mprotect, tls, kTlsBytes + kControlBlockBytes, PROT_READ | PROT_WRITE);
  (void)sys(SYS_madvise, base, kBytes, MADV_DONTFORK);
  (void)sys(SYS_madvise, base, kBytes, MADV_DONTDUMP);

  std::byte* const control = tls + kTlsBytes;
  put_word(control, kSelf, std::uint64_t(control));
  put_word(control, kSelfToo, std::uint64_t(control));
  put_word(control, kStackGuard, own_word(kStackGuard));
  put_word(control, kPointerGuard, own_word(kPointerGuard));
  auto* const start = reinterpret_cast<Start*>(control + kControlBlockBytes / 2);
  *start = {body, argument};

  // The child inherits the mask: no handler of the program ever runs there.
  std::uint64_t all = ~std::uint64_t{0}, old = 0;
  (void)sys(SYS_rt_sigprocmask, 0 /* SIG_BLOCK */, &all, &old, sizeof all);
  clone_args args{};
  args.flags = CLONE_VM | CLONE_SETTLS;
  args.stack = std::uint64_t(stack);
  args.stack_size = kStackBytes;
  args.tls = std::uint64_t(control);
  const long pid = clone_and_enter(&args, start);
  (void)sys(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &old, nullptr, sizeof old);
  if (pid < 0) {
    (void)sys(SYS_munmap, base, kBytes);
    return Status::from_errno(int(-pid), "clone3 for the pager");
  }
  return int(pid);
}

bool shares_memory_with(int pid) {
  if (thread_shares_memory(pid)) return true;
  // A first thread that has ended has no memory any more, while others of its process live on: ask each.
  // After an exec there is only one.
  Line path;
  path.text("/proc/").number(pid).text("/task");
  char name[64] = {};
  path.view().copy(name, sizeof name - 1);
  const long directory = sys(SYS_openat, AT_FDCWD, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (directory < 0) return false;
  bool shares = false;
  alignas(8) char entries[2048];
  long bytes;
  while (!shares && (bytes = sys(SYS_getdents64, directory, entries, sizeof entries)) > 0) {
    for (long at = 0; at < bytes && !shares;) {
      const char* const entry = entries + at;
      std::uint16_t length;
      std::memcpy(&length, entry + kEntryLength, sizeof length);
      at += length;
      int thread = 0;
      for (const char* digit = entry + kEntryName; *digit >= '0' && *digit <= '9'; ++digit)
        thread = thread * 10 + (*digit - '0');
      shares = thread != 0 && thread != pid && thread_shares_memory(thread);
    }
  }
  (void)sys(SYS_close, directory);
  return shares;
}

}  // namespace terrace::runtime
