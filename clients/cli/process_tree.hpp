// Looks at processes through /proc: the state of one, and the descendants of this one.
#pragma once

#include <sys/types.h>

#include <vector>

namespace terrace::cli {

// The state letter of /proc/PID/stat; 0 when there is no such process.
char process_state(pid_t pid);

// All living processes below this one, zombies left out. A subreaper also finds those whose parents have
// died.
std::vector<pid_t> descendants();

// Sends SIGKILL to all descendants but `last`, parents before children, and once those are dead to `last`
// too. Looks again until none is left or two seconds have passed, which catches processes that are being
// forked meanwhile. `last` is the pager (0: none): while it lives, no memory of the dying program reads as
// zero.
void kill_descendants(pid_t last);

}  // namespace terrace::cli
