// The machine as `terrace doctor` shows it: memory nodes and cores.
//
// The only user of libnuma and hwloc. For programs, never for the preload: the supervisor passes numbers on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace terrace {

// A host tier: DRAM of one NUMA node. A node without cores is memory only (CXL).
struct MemoryNode {
  int id = 0;
  std::uint64_t total_bytes = 0, free_bytes = 0;
  std::uint32_t cpus = 0;
};

struct Topology {
  std::vector<MemoryNode> nodes;
  std::uint32_t packages = 0, cores = 0, cpus = 0;  // cpus: hardware threads this process may use
  std::uint64_t last_level_cache_bytes = 0;         // of one package's largest cache; 0: unknown
  std::string model;                                // of the processor; may be empty
  std::uint64_t memory_bytes() const;
};

// Errors: not_supported when hwloc cannot read this system.
Result<Topology> read_topology();

}  // namespace terrace
