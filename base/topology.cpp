#include "base/topology.hpp"

#include <hwloc.h>
#include <numa.h>

#include "base/cgroup.hpp"

namespace terrace {

std::uint64_t Topology::memory_bytes() const {
  std::uint64_t bytes = 0;
  for (const MemoryNode& node : nodes) bytes += node.total_bytes;
  return bytes;
}

namespace {

std::uint32_t count_of(hwloc_topology_t topology, hwloc_obj_type_t type) {
  const int count = hwloc_get_nbobjs_by_type(topology, type);
  return count < 0 ? 0 : std::uint32_t(count);
}

std::uint64_t largest_cache_bytes(hwloc_topology_t topology) {
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE}) {
    const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
    if (cache != nullptr) return cache->attr->cache.size;
  }
  return 0;
}

// Nodes from libnuma, which also knows what is free; hwloc's count of cores below each.
std::vector<MemoryNode> memory_nodes(hwloc_topology_t topology) {
  std::vector<MemoryNode> nodes;
  if (numa_available() < 0) {  // a kernel without NUMA: one node that is the machine
    nodes.push_back(
        {.id = 0, .total_bytes = machine_memory_bytes(), .cpus = count_of(topology, HWLOC_OBJ_PU)});
    return nodes;
  }
  for (int id = 0; id <= numa_max_node(); ++id) {
    long long free_bytes = 0;
    const long long total_bytes = numa_node_size64(id, &free_bytes);
    if (total_bytes <= 0) continue;
    MemoryNode node{
        .id = id, .total_bytes = std::uint64_t(total_bytes), .free_bytes = std::uint64_t(free_bytes)};
    const hwloc_obj_t object = hwloc_get_numanode_obj_by_os_index(topology, unsigned(id));
    if (object != nullptr && object->cpuset != nullptr)
      node.cpus = std::uint32_t(hwloc_bitmap_weight(object->cpuset));
    nodes.push_back(node);
  }
  return nodes;
}

}  // namespace

Result<Topology> read_topology() {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0)
    return Status::failure(ErrorCode::not_supported, 0, "hwloc cannot start");
  if (hwloc_topology_load(topology) != 0) {
    hwloc_topology_destroy(topology);
    return Status::failure(ErrorCode::not_supported, 0, "hwloc cannot read this machine");
  }
  Topology out;
  out.packages = count_of(topology, HWLOC_OBJ_PACKAGE);
  out.cores = count_of(topology, HWLOC_OBJ_CORE);
  out.cpus = count_of(topology, HWLOC_OBJ_PU);
  out.last_level_cache_bytes = largest_cache_bytes(topology);
  const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
  const char* const model = package == nullptr ? nullptr : hwloc_obj_get_info_by_name(package, "CPUModel");
  if (model != nullptr) out.model = model;
  out.nodes = memory_nodes(topology);
  hwloc_topology_destroy(topology);
  return out;
}

}  // namespace terrace
