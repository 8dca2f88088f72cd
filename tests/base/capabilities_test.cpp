#include "base/capabilities.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/types.hpp"

using namespace terrace;

namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace

TEST_CASE("capabilities: each probe has a name, and a missing one a remedy") {
  std::set<std::string> names;
  for (const CapabilityReport& report : probe_capabilities(".")) {
    CAPTURE(std::string(report.name));
    CHECK(names.insert(report.name).second);
    CHECK(report.detail[0] != 0);
    CHECK((report.found || report.remedy[0] != 0));
    CHECK((!report.found || report.errno_value == 0));
    MESSAGE(std::string(report.name), ": ", std::string(report.found ? "found" : "missing"), ", ",
            std::string(report.detail));
  }
  CHECK(names.size() == kCapabilities);
}

TEST_CASE("capabilities: probes leave no descriptor and no file behind") {
  char name[] = "/tmp/terrace-probe-XXXXXX";
  const std::string directory = mkdtemp(name);
  const std::size_t before = open_descriptors();
  (void)probe_capabilities(directory.c_str());
  CHECK(open_descriptors() == before);
  CHECK(std::filesystem::is_empty(directory));
  std::filesystem::remove(directory);
}

TEST_CASE("capabilities: a store directory that cannot hold blocks is refused by kind") {
  std::uint64_t free_bytes = 0;
  CHECK(check_store_directory("/nonexistent/store", 0, free_bytes).code == ErrorCode::not_found);
  CHECK(check_store_directory("/proc/self/stat", 0, free_bytes).code == ErrorCode::invalid_argument);
  struct statfs shm = {};
  if (statfs("/dev/shm", &shm) == 0 && shm.f_type == 0x01021994) {
    CHECK(check_store_directory("/dev/shm", 0, free_bytes).code == ErrorCode::not_supported);
  } else {
    MESSAGE("skip: /dev/shm is no tmpfs here");
  }
  char name[] = "terrace-store-XXXXXX";
  const std::string directory = mkdtemp(name);
  struct statfs own = {};
  REQUIRE(statfs(directory.c_str(), &own) == 0);
  if (own.f_type == 0x01021994) {
    MESSAGE("skip: the build directory is on tmpfs");
  } else {
    CHECK(check_store_directory(directory.c_str(), 0, free_bytes).ok());
    CHECK(free_bytes > 0);
    CHECK(check_store_directory(directory.c_str(), ~std::uint64_t{0}, free_bytes).code ==
          ErrorCode::no_space);
    if (geteuid() == 0) {
      MESSAGE("skip: root may write to every directory");
    } else {
      REQUIRE(chmod(directory.c_str(), 0500) == 0);
      CHECK(check_store_directory(directory.c_str(), 0, free_bytes).code == ErrorCode::no_permission);
    }
  }
  std::filesystem::remove(directory);
}
