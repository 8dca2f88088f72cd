#include "clients/cli/process_tree.hpp"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/cgroup.hpp"
#include "base/clock.hpp"

namespace terrace::cli {

namespace {

struct Stat {
  char state = 0;
  pid_t parent = 0;
};

Stat read_stat(pid_t pid) {
  char path[40], text[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", int(pid));
  if (read_text_file(path, text, sizeof text) <= 0) return {};
  // `PID (NAME) STATE PARENT ...`: the name may hold anything, so the last parenthesis counts.
  const char* const close = std::strrchr(text, ')');
  Stat stat;
  int parent = 0;
  if (close == nullptr || std::sscanf(close + 1, " %c %d", &stat.state, &parent) != 2) return {};
  stat.parent = parent;
  return stat;
}

}  // namespace

char process_state(pid_t pid) { return read_stat(pid).state; }

std::vector<pid_t> descendants() {
  struct Process {
    pid_t pid, parent;
    bool alive;
  };
  std::vector<Process> all;
  DIR* const directory = opendir("/proc");
  if (directory == nullptr) return {};
  while (const dirent* entry = readdir(directory)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    const Stat stat = read_stat(pid);
    if (stat.state != 0) all.push_back({pid, stat.parent, stat.state != 'Z' && stat.state != 'X'});
  }
  closedir(directory);
  std::vector<pid_t> family{
      getpid()};  // breadth first; a zombie's children belong to it until they are given away
  std::vector<pid_t> found;
  for (std::size_t at = 0; at < family.size(); ++at) {
    for (const Process& process : all) {
      if (process.parent != family[at] || process.pid == family[0]) continue;
      family.push_back(process.pid);
      if (process.alive) found.push_back(process.pid);
    }
  }
  return found;
}

void kill_descendants(pid_t last) {
  const std::uint64_t begin_ns = monotonic_ns();
  for (std::uint64_t waited_ns = 0; waited_ns < 2 * kNsPerS; waited_ns = monotonic_ns() - begin_ns) {
    const std::vector<pid_t> family = descendants();
    if (family.empty()) return;
    const bool only_last = family.size() == 1 && family[0] == last;
    for (const pid_t pid : family) {
      if (pid != last || only_last || waited_ns > kNsPerS) kill(pid, SIGKILL);
    }
    usleep(1000);
  }
}

}  // namespace terrace::cli
