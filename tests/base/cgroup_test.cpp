#include "base/cgroup.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

using namespace terrace;

namespace {

constexpr std::uint64_t kMachine = 64ull << 30;

// A directory with cgroup files in it, removed at the end.
class FakeCgroups {
 public:
  FakeCgroups() {
    char name[] = "/tmp/terrace-cgroup-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~FakeCgroups() { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string mount(const std::string& hierarchy_root, const std::string& type,
                    const std::string& options) const {
    return "20 1 8:1 / / rw - ext4 /dev/root rw\n30 20 0:26 " + hierarchy_root + " " + root_ +
           " rw,nosuid shared:9 - " + type + " cgroup rw" + options + "\n";
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

}  // namespace

TEST_CASE("cgroup: v2 takes the lowest limit on the way up") {
  FakeCgroups files;
  files.write("/user/memory.max", "2147483648\n");
  files.write("/user/job/memory.max", "max\n");
  const std::string mounts = files.mount("/", "cgroup2", "");
  const MemoryLimit limit = memory_cgroup_limit("0::/user/job\n", mounts.c_str(), kMachine);
  CHECK(limit.version == 2);
  CHECK(limit.bytes == 2ull << 30);
  CHECK(std::string(limit.directory) == files.root() + "/user");
}

TEST_CASE("cgroup: v1 reads the memory controller's own path") {
  FakeCgroups files;
  files.write("/memory.limit_in_bytes", "9223372036854771712\n");
  files.write("/a/memory.limit_in_bytes", "1073741824\n");
  const std::string mounts = files.mount("/", "cgroup", ",memory");
  const MemoryLimit limit =
      memory_cgroup_limit("4:cpu,cpuacct:/x\n3:memory:/a\n0::/y\n", mounts.c_str(), kMachine);
  CHECK(limit.version == 1);
  CHECK(limit.bytes == 1ull << 30);
}

TEST_CASE("cgroup: a container's mount root is taken off the path") {
  FakeCgroups files;
  files.write("/memory.max", "1073741824\n");
  const std::string mounts = files.mount("/docker/abc", "cgroup2", "");
  CHECK(memory_cgroup_limit("0::/docker/abc\n", mounts.c_str(), kMachine).bytes == 1ull << 30);
}

TEST_CASE("cgroup: no limit, no controller and a limit above the machine all mean none") {
  FakeCgroups files;
  files.write("/a/memory.max", "max\n");
  files.write("/b/memory.max", "137438953472\n");
  const std::string mounts = files.mount("/", "cgroup2", "");
  CHECK(memory_cgroup_limit("0::/a\n", mounts.c_str(), kMachine).bytes == 0);
  CHECK(memory_cgroup_limit("0::/a\n", mounts.c_str(), kMachine).version == 2);
  CHECK(memory_cgroup_limit("0::/b\n", mounts.c_str(), kMachine).bytes == 0);
  CHECK(memory_cgroup_limit("", "", kMachine).version == 0);
  CHECK(memory_cgroup_limit("0::/a\n", "rubbish\n", kMachine).version == 0);
}

TEST_CASE("cgroup: the default budget is the limit / 1.1, else 80 % of the machine") {
  MemoryLimit limit;
  CHECK(default_dram_bytes(limit, 10ull << 30) == 8ull << 30);
  limit.bytes = 1100ull << 20;
  CHECK(default_dram_bytes(limit, 10ull << 30) == 1000ull << 20);
}

TEST_CASE("cgroup: the machine this runs on answers") {
  CHECK(machine_memory_bytes() > (64u << 20));
  const MemoryLimit limit = memory_cgroup_limit();
  CHECK((limit.bytes == 0 || limit.bytes < machine_memory_bytes()));
}
