// The resident size of this address space, as the kernel counts it (anonymous memory, file mappings, shared
// memory). Any context: raw system calls only.
#pragma once

#include <cstdint>

namespace terrace {

// A descriptor to ask again and again, or -errno.
int open_resident_size();
// Bytes, from proc(5)'s statm; 0 when it cannot be read.
std::uint64_t resident_bytes(int descriptor);

}  // namespace terrace
