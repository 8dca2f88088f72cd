// Tests that change the process (limits, users, forbidden system calls) run in a child of their own.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace terrace::io::test {

// Runs `body` in a child; its result as exit status, 1000 + signal when it was killed.
template <typename Body>
int in_child(Body body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

struct Forbidden {
  unsigned system_call;
  unsigned errno_value;
  unsigned third_argument_bits = ~0u;  // only calls whose third argument has one of these (all: any call)
};

// From here on these system calls of this process fail with an errno.
inline bool forbid(Forbidden f) {
  const bool any = f.third_argument_bits == ~0u;
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, f.system_call, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 32),  // low half of seccomp_data.args[2]
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, f.third_argument_bits, 0, static_cast<unsigned char>(any ? 0 : 1)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | f.errno_value),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{6, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace terrace::io::test
