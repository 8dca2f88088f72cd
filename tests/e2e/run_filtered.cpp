// Runs a program under a seccomp filter that refuses system calls: run_filtered CALL=ERRNO... -- COMMAND
// ARGS... CALL is io_uring or userfaultfd, ERRNO EPERM or ENOSYS. As container runtimes do it: the call
// fails, nobody dies.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <vector>

namespace {

void refuse(std::vector<sock_filter>& program, long call, int error) {
  program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, unsigned(call), 0, 1));
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | unsigned(error)));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  int i = 1;
  for (; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view rule = argv[i];
    const std::size_t equals = rule.find('=');
    const int error = rule.substr(equals + 1) == "ENOSYS" ? ENOSYS : EPERM;
    if (rule.substr(0, equals) == "io_uring") {
      for (const long call : {SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register})
        refuse(program, call, error);
    } else {
      refuse(program, SYS_userfaultfd, error);
    }
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter = {.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  if (i + 1 >= argc) return 2;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0) {
    std::perror("run_filtered: seccomp");
    return 77;
  }
  execvp(argv[i + 1], argv + i + 1);
  std::perror(argv[i + 1]);
  return 127;
}
