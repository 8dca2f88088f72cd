// Which signals `terrace run` passes on to its job, and how.
//
// Those that somebody sent (kill, sigqueue) are passed on; those that the kernel sent are not: what a
// terminal sends (INT, QUIT, HUP, WINCH) reaches every process of the foreground group by itself. TSTP, TTIN
// and TTOU keep their default, so that the shell sees the job stop.
#pragma once

#include <signal.h>
#include <sys/types.h>

namespace terrace::cli {

// Blocks those signals and SIGCHLD for this process; the job gets back what was before.
class JobSignals {
 public:
  JobSignals();
  // In the child, before exec.
  void restore() const;
  const sigset_t& blocked() const { return blocked_; }
  // Sends the signal on when somebody sent it. `code` and `value` are si_code and the value of sigqueue.
  static void forward(pid_t to, int signal, int code, sigval value);

 private:
  sigset_t blocked_, before_;
  struct sigaction child_before_;
};

}  // namespace terrace::cli
