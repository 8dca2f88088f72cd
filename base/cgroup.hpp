// Which memory limit holds for this process, and the default budget that follows from it.
//
// Reads /proc/self/cgroup and /proc/self/mountinfo, so both hierarchies (v1 and v2), other mount points and a
// container's own root are found. Any thread; raw system calls, no heap, no errno.
#pragma once

#include <cstdint>

#include "base/status.hpp"

namespace terrace {

struct MemoryLimit {
  std::uint64_t bytes = 0;   // 0: no limit below the machine's memory
  int version = 0;           // 1 or 2; 0: no memory controller was found
  char directory[512] = {};  // the cgroup that sets the limit, or this process's own where none does
};

// The lowest limit of this process's memory cgroup and its parents. Without a controller: version 0.
MemoryLimit memory_cgroup_limit();

// The same search with the texts of the two files given, so that tests can drive it. `cgroup` and `mountinfo`
// are NUL-terminated; limits are read below the mount points that mountinfo names.
MemoryLimit memory_cgroup_limit(const char* cgroup, const char* mountinfo, std::uint64_t machine_bytes);

// Memory of the machine (sysinfo).
std::uint64_t machine_memory_bytes();

// Budget when nobody gave one: the cgroup's limit / 1.1, since the job must stay inside it with 5 % to spare
// for what the kernel accounts late; else 80 % of the machine. In whole MiB.
std::uint64_t default_dram_bytes(const MemoryLimit& limit, std::uint64_t machine_bytes);

// Reads a whole file into `buffer`, NUL-terminated; returns its length, or -errno. What does not fit is cut.
long read_text_file(const char* path, char* buffer, std::uint64_t capacity);

}  // namespace terrace
