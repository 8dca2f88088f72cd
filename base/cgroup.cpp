#include "base/cgroup.hpp"

#include <fcntl.h>
#include <linux/sysinfo.h>

#include <cstring>
#include <string_view>

#include "base/size_text.hpp"
#include "base/syscall.hpp"
#include "base/types.hpp"

namespace terrace {

namespace {

constexpr std::size_t kFileBytes = 32 * 1024;  // mountinfo of a busy container host

// Takes the text up to `separator` off the front of `rest`.
std::string_view take(std::string_view& rest, char separator) {
  const std::size_t end = rest.find(separator);
  const std::string_view head = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  return head;
}

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    if (take(list, ',') == word) return true;
  }
  return false;
}

// This process's path in the v1 memory hierarchy and in the v2 one, from lines `id:controllers:path`.
struct OwnPaths {
  std::string_view v1, v2;
};

OwnPaths own_paths(std::string_view cgroup) {
  OwnPaths paths;
  while (!cgroup.empty()) {
    std::string_view line = take(cgroup, '\n');
    const std::string_view id = take(line, ':');
    const std::string_view controllers = take(line, ':');
    if (has_word(controllers, "memory"))
      paths.v1 = line;
    else if (id == "0" && controllers.empty())
      paths.v2 = line;
  }
  return paths;
}

struct Mount {
  std::string_view root, point;
};

// The mount of one hierarchy: `36 35 0:31 ROOT POINT options - cgroup source super,options` (proc(5)).
Mount find_mount(std::string_view mountinfo, int version) {
  while (!mountinfo.empty()) {
    std::string_view line = take(mountinfo, '\n');
    for (int i = 0; i < 3; ++i) take(line, ' ');
    Mount mount;
    mount.root = take(line, ' ');
    mount.point = take(line, ' ');
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    line = line.substr(dash + 3);
    const std::string_view type = take(line, ' ');
    take(line, ' ');  // source
    if (version == 2 ? type == "cgroup2" : type == "cgroup" && has_word(line, "memory")) return mount;
  }
  return {};
}

// A number at the start of a file; 0 for `max`, for nothing and for no file.
std::uint64_t read_limit(const char* directory, std::size_t length, const char* file) {
  char path[640];
  const std::size_t name = std::strlen(file);
  if (length + name + 1 > sizeof path) return 0;
  std::memcpy(path, directory, length);
  std::memcpy(path + length, file, name + 1);
  char text[64];
  const long size = read_text_file(path, text, sizeof text);
  if (size <= 0) return 0;
  std::string_view rest(text, std::size_t(size));
  const Result<std::uint64_t> number = parse_number(take(rest, '\n'));
  return number.ok() ? number.value() : 0;
}

// Lowest limit from the process's cgroup up to the mount point.
MemoryLimit lowest_limit(Mount mount, std::string_view own, int version, std::uint64_t machine_bytes) {
  MemoryLimit limit;
  // In a container the mount shows a part of the hierarchy (its root), while the path may be seen from the
  // top.
  if (mount.root != "/" && own.starts_with(mount.root)) own = own.substr(mount.root.size());
  if (own == "/") own = {};
  if (mount.point.empty() || mount.point.size() + own.size() >= sizeof limit.directory) return limit;
  limit.version = version;
  char directory[sizeof limit.directory];
  std::memcpy(directory, mount.point.data(), mount.point.size());
  std::memcpy(directory + mount.point.size(), own.data(), own.size());
  std::size_t length = mount.point.size() + own.size();
  std::memcpy(limit.directory, directory, length);
  const char* const file = version == 2 ? "/memory.max" : "/memory.limit_in_bytes";
  for (;;) {
    const std::uint64_t bytes = read_limit(directory, length, file);
    if (bytes != 0 && bytes < machine_bytes && (limit.bytes == 0 || bytes < limit.bytes)) {
      limit.bytes = bytes;
      std::memcpy(limit.directory, directory, length);
      limit.directory[length] = 0;
    }
    if (length <= mount.point.size()) return limit;
    do --length;
    while (length > mount.point.size() && directory[length] != '/');
  }
}

}  // namespace

long read_text_file(const char* path, char* buffer, std::uint64_t capacity) {
  const long descriptor = sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (descriptor < 0) return descriptor;
  std::uint64_t size = 0;
  long got = 0;
  while (size + 1 < capacity && (got = sys(SYS_read, descriptor, buffer + size, capacity - 1 - size)) > 0)
    size += std::uint64_t(got);
  (void)sys(SYS_close, descriptor);
  if (got < 0) return got;
  buffer[size] = 0;
  return long(size);
}

MemoryLimit memory_cgroup_limit(const char* cgroup, const char* mountinfo, std::uint64_t machine_bytes) {
  const OwnPaths own = own_paths(cgroup);
  // A machine with both hierarchies gives the memory controller to one of them: v1 when it names it.
  if (!own.v1.empty()) {
    const MemoryLimit limit = lowest_limit(find_mount(mountinfo, 1), own.v1, 1, machine_bytes);
    if (limit.version != 0) return limit;
  }
  if (!own.v2.empty()) return lowest_limit(find_mount(mountinfo, 2), own.v2, 2, machine_bytes);
  return {};
}

MemoryLimit memory_cgroup_limit() {
  char cgroup[4096], mountinfo[kFileBytes];
  if (read_text_file("/proc/self/cgroup", cgroup, sizeof cgroup) < 0) return {};
  if (read_text_file("/proc/self/mountinfo", mountinfo, sizeof mountinfo) < 0) return {};
  return memory_cgroup_limit(cgroup, mountinfo, machine_memory_bytes());
}

std::uint64_t machine_memory_bytes() {
  struct sysinfo info = {};
  if (sys(SYS_sysinfo, &info) < 0) return 0;
  return std::uint64_t(info.totalram) * info.mem_unit;
}

std::uint64_t default_dram_bytes(const MemoryLimit& limit, std::uint64_t machine_bytes) {
  const std::uint64_t bytes = limit.bytes != 0 ? limit.bytes / 11 * 10 : machine_bytes / 5 * 4;
  return bytes < kMiB ? kMiB : round_down(bytes, kMiB);
}

}  // namespace terrace
