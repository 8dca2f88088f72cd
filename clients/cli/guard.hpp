// Two processes watch each other so that `kill -9` of either leaves no process of the job.
//
// `terrace run` becomes the *guard* and forks the *supervisor*, which does all the work. The guard passes
// signals on and waits. When the supervisor is killed, the job's first process dies with it
// (PR_SET_PDEATHSIG) and the guard, to whom the others fall as subreaper, kills those. When the guard is
// killed, the supervisor sees it and ends the job.
#pragma once

#include <sys/types.h>

#include <functional>

#include "clients/cli/job_signals.hpp"

namespace terrace::cli {

// Runs `supervise` in a process of its own and returns the exit status for this one. `supervise` is given a
// pidfd that polls readable when the guard has died, and returns the exit status of the job.
int run_guarded(const JobSignals& signals, const std::function<int(int guard_pidfd)>& supervise);

}  // namespace terrace::cli
