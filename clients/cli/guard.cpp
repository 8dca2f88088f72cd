#include "clients/cli/guard.hpp"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "clients/cli/process_tree.hpp"
#include "clients/cli/verbs.hpp"

namespace terrace::cli {

namespace {

// In the guard: waits for the supervisor and returns its wait status.
int wait_and_forward(const JobSignals& signals, pid_t supervisor) {
  for (;;) {
    siginfo_t info = {};
    if (sigwaitinfo(&signals.blocked(), &info) < 0) continue;
    if (info.si_signo != SIGCHLD) {
      JobSignals::forward(supervisor, info.si_signo, info.si_code, info.si_value);
      continue;
    }
    for (;;) {
      int status = 0;
      const pid_t pid = waitpid(-1, &status, WNOHANG);
      if (pid == supervisor) return status;
      if (pid <= 0) break;
    }
  }
}

}  // namespace

int run_guarded(const JobSignals& signals, const std::function<int(int)>& supervise) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t guard = getpid();
  const pid_t supervisor = fork();
  if (supervisor < 0) {
    std::fprintf(stderr, "terrace: fork: %s; raise the limit on processes\n", std::strerror(errno));
    return kStatusNotStarted;
  }
  if (supervisor == 0) {
    const int guard_pidfd = int(syscall(SYS_pidfd_open, guard, 0));  // close-on-exec by itself
    if (getppid() != guard) _exit(kStatusNotStarted);                // it died before we could watch it
    const int status = supervise(guard_pidfd);
    std::fflush(nullptr);
    _exit(status);
  }
  const int status = wait_and_forward(signals, supervisor);
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::fprintf(stderr,
               "terrace: the supervisor was killed by signal %d, so the job was ended; start it again\n",
               WTERMSIG(status));
  kill_descendants(0);
  return kStatusJobEnded;
}

}  // namespace terrace::cli
