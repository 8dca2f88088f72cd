#include "base/topology.hpp"

#include <doctest/doctest.h>

TEST_CASE("topology: nodes hold the machine's memory and its cores") {
  const auto read = terrace::read_topology();
  REQUIRE(read.ok());
  const terrace::Topology& topology = read.value();
  REQUIRE_FALSE(topology.nodes.empty());
  CHECK(topology.memory_bytes() > (64u << 20));
  CHECK(topology.cpus >= 1);
  CHECK(topology.cores <= topology.cpus);
  std::uint32_t cpus = 0;
  for (const terrace::MemoryNode& node : topology.nodes) {
    CHECK(node.free_bytes <= node.total_bytes);
    cpus += node.cpus;
  }
  CHECK(cpus == topology.cpus);
}
