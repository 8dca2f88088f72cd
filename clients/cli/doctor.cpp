// `terrace doctor`: what this machine, this user and this store can do, and what to change.
// Exit status: 0 when memory can be tiered here, 1 when something that is needed is missing.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "base/capabilities.hpp"
#include "base/cgroup.hpp"
#include "base/json.hpp"
#include "base/line.hpp"
#include "base/settings.hpp"
#include "base/size_text.hpp"
#include "base/topology.hpp"
#include "clients/cli/verbs.hpp"

namespace terrace::cli {

namespace {

struct Examination {
  CapabilityReports reports;
  Topology topology;
  MemoryLimit limit;
  std::uint64_t budget_bytes = 0;
  std::string store_directory;
  bool can_tier = true;
};

std::string size(std::uint64_t bytes) { return std::string(SizeText::rounded(bytes).view()); }

Examination examine(const Settings& settings) {
  Examination out;
  out.store_directory = settings.store_directory.empty() ? "." : settings.store_directory.chars;
  out.reports = probe_capabilities(out.store_directory.c_str());
  for (const CapabilityReport& report : out.reports)
    out.can_tier = out.can_tier && (report.found || !report.needed);
  const Result<Topology> topology = read_topology();
  if (topology.ok()) out.topology = topology.value();
  out.limit = memory_cgroup_limit();
  out.budget_bytes =
      settings.dram_bytes != 0 ? settings.dram_bytes : default_dram_bytes(out.limit, machine_memory_bytes());
  return out;
}

void print_table(const Examination& seen) {
  const Topology& topology = seen.topology;
  std::printf("machine   %s, %u packages, %u cores, %u hardware threads, last-level cache %s\n",
              topology.model.empty() ? "unknown processor" : topology.model.c_str(), topology.packages,
              topology.cores, topology.cpus, size(topology.last_level_cache_bytes).c_str());
  for (const MemoryNode& node : topology.nodes) {
    std::printf("node %-4d %s, %s free, %u hardware threads%s\n", node.id, size(node.total_bytes).c_str(),
                size(node.free_bytes).c_str(), node.cpus, node.cpus == 0 ? " (memory only)" : "");
  }
  std::printf("budget    %s without --dram\n\n", size(seen.budget_bytes).c_str());
  for (const CapabilityReport& report : seen.reports) {
    std::printf("%-8s %-20s %s",
                report.found    ? "found"
                : report.needed ? "MISSING"
                                : "missing",
                report.name, report.detail);
    if (report.errno_value != 0) std::printf(" (%s)", errno_name(report.errno_value));
    std::printf("\n");
    if (!report.found) std::printf("%-8s %-20s remedy: %s\n", "", "", report.remedy);
  }
  std::printf("\n%s\n", seen.can_tier
                            ? "terrace can keep memory in the store here"
                            : "terrace cannot keep memory in the store here: see what is MISSING above");
}

void print_json(const Examination& seen) {
  const Topology& topology = seen.topology;
  JsonWriter json(2);
  json.begin_object().field("version", TERRACE_VERSION).field("can_tier", seen.can_tier);
  json.key("machine")
      .begin_object()
      .field("model", topology.model.c_str())
      .field("packages", topology.packages);
  json.field("cores", topology.cores)
      .field("cpus", topology.cpus)
      .field("memory_bytes", machine_memory_bytes());
  json.field("last_level_cache_bytes", topology.last_level_cache_bytes).key("nodes").begin_array();
  for (const MemoryNode& node : topology.nodes) {
    json.begin_object()
        .field("id", node.id)
        .field("total_bytes", node.total_bytes)
        .field("free_bytes", node.free_bytes);
    json.field("cpus", node.cpus).end_object();
  }
  json.end_array().end_object();
  json.field("default_dram_bytes", seen.budget_bytes).field("store_directory", seen.store_directory.c_str());
  json.key("memory_limit_bytes");
  if (seen.limit.bytes != 0)
    json.value(seen.limit.bytes);
  else
    json.null();
  json.key("capabilities").begin_array();
  for (const CapabilityReport& report : seen.reports) {
    json.begin_object()
        .field("name", report.name)
        .field("needed", report.needed)
        .field("found", report.found);
    json.field("errno", report.errno_value)
        .field("detail", static_cast<const char*>(report.detail))
        .field("remedy", report.remedy);
    json.end_object();
  }
  json.end_array().end_object();
  std::fputs(json.finish().c_str(), stdout);
}

}  // namespace

int doctor_verb(std::span<char*> words) {
  Settings settings = default_settings();
  Line error;
  if (!apply_environment(environ, settings, error).ok())
    return error.write_to(STDERR_FILENO), kStatusNotStarted;
  bool as_json = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--json") {
      as_json = true;
    } else if (word == "--store" && i + 1 < words.size()) {
      if (!apply_setting(*find_setting("store"), "--store", words[++i], settings, error).ok()) {
        return error.write_to(STDERR_FILENO), kStatusNotStarted;
      }
    } else if (word == "--help" || word == "-h") {
      std::puts("terrace doctor [--store DIR] [--json]");
      return 0;
    } else {
      error.text("terrace: doctor: option '")
          .text(word)
          .text("': unknown; terrace doctor [--store DIR] [--json]");
      return error.write_to(STDERR_FILENO), kStatusNotStarted;
    }
  }
  const Examination seen = examine(settings);
  if (as_json)
    print_json(seen);
  else
    print_table(seen);
  return seen.can_tier ? 0 : 1;
}

}  // namespace terrace::cli
