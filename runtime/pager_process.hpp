// A process of its own on this program's memory: what the pager runs in.
//
// clone3 with CLONE_VM but neither CLONE_THREAD nor CLONE_FILES: it has its own descriptors (so the program's
// closefrom and dup2 cannot reach them, and it keeps none of the program's pipes open), libc in the program
// stays single-threaded, no signal of the program reaches it, and it outlives the program's threads. It has
// its own stack and its own block of thread-local storage with guard pages, and must use raw system calls
// only.
#pragma once

#include <cstdint>

#include "base/status.hpp"

namespace terrace::runtime {

// Starts `body(argument)` in such a process, all signals blocked, no descriptor of the program open, in a
// session of its own; it ends when body returns. Context: any thread, inside malloc too. Errors: no_memory,
// or what clone3 gave.
Result<int> start_on_this_memory(int (*body)(void*), void* argument);

// Whether the process `pid` still uses the memory that we run on (it has not called exec).
bool shares_memory_with(int pid);

}  // namespace terrace::runtime
