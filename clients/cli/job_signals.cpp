#include "clients/cli/job_signals.hpp"

#include <initializer_list>

namespace terrace::cli {

JobSignals::JobSignals() {
  sigemptyset(&blocked_);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF,
                           SIGCONT, SIGWINCH, SIGPIPE, SIGURG, SIGIO, SIGPWR, SIGXCPU, SIGXFSZ, SIGCHLD}) {
    sigaddset(&blocked_, signal);
  }
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) sigaddset(&blocked_, signal);
  sigprocmask(SIG_BLOCK, &blocked_, &before_);
  // A parent that ignores SIGCHLD hands that down, and then there is nothing to wait for.
  struct sigaction normal = {};
  normal.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &normal, &child_before_);
}

void JobSignals::restore() const {
  sigaction(SIGCHLD, &child_before_, nullptr);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

void JobSignals::forward(pid_t to, int signal, int code, sigval value) {
  if (code > 0 || to <= 0) return;
  if (code == SI_QUEUE)
    sigqueue(to, signal, value);
  else
    kill(to, signal);
}

}  // namespace terrace::cli
