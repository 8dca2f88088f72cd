#include "clients/cli/job_setup.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "base/capabilities.hpp"
#include "base/cgroup.hpp"
#include "base/types.hpp"
#include "io/store.hpp"

namespace terrace::cli {

namespace {

Status refuse(Line& error, std::string_view what, const Status& why, std::string_view remedy) {
  error.text("terrace: ").text(what).text(": ").text(why.text);
  if (why.errno_value != 0) error.text(" (").text(errno_name(why.errno_value)).text(")");
  error.text("; ").text(remedy);
  return why;
}

// Opens a store and takes a little space, which also finds file systems without fallocate and limits on file
// size.
Status try_store(const Settings& settings, std::uint64_t least_bytes) {
  io::Store store;
  Status status = store.open(
      {.directory = settings.store_directory.chars, .capacity_bytes = settings.store_capacity_bytes});
  if (!status.ok()) return status;
  status = store.capacity_bytes() < least_bytes
               ? Status::failure(ErrorCode::no_space, ENOSPC, "too little room on its file system")
               : store.reserve(least_bytes);
  store.close();
  return status;
}

}  // namespace

void choose_budget(Settings& settings) {
  if (settings.dram_bytes != 0) return;
  settings.dram_bytes = default_dram_bytes(memory_cgroup_limit(), machine_memory_bytes());
}

Status choose_store(Settings& settings, Line& error) {
  const bool given = !settings.store_directory.empty();
  const std::string wanted = given ? settings.store_directory.chars : ".";
  const std::string what = given ? "store '" + wanted + "'" : "the working directory as store";
  char absolute[PATH_MAX];
  bool exists = false;
  Status status = Status::success();
  if (realpath(wanted.c_str(), absolute) == nullptr) {
    status = Status::from_errno(errno, errno == ENOENT ? "the store directory does not exist"
                                                       : "the store directory cannot be reached");
  } else if (std::strlen(absolute) >= sizeof settings.store_directory.chars) {
    status = Status::failure(ErrorCode::invalid_argument, ENAMETOOLONG,
                             "its absolute path is longer than 1023 bytes");
  }
  if (status.ok()) {
    exists = true;
    std::strcpy(settings.store_directory.chars, absolute);
    // A directory that nobody chose must have room to be useful; one that was chosen only has to work.
    status = try_store(settings, given ? 16 * kMiB : 256 * kMiB);
  }
  if (status.ok()) return status;
  // ENOENT of a directory that is there: its file system (proc, sysfs) makes no files.
  if (exists && status.code == ErrorCode::not_found) status.code = ErrorCode::not_supported;
  return refuse(error, what, status, store_remedy(status));
}

Status find_preload(std::string& path, Line& error) {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length <= 0)
    return refuse(error, "/proc/self/exe", Status::from_errno(errno, "it cannot be read"), "mount /proc");
  const std::string program(self, std::size_t(length));
  const std::string folder = program.substr(0, program.rfind('/'));
  const std::string parent = folder.substr(0, folder.rfind('/'));
  for (const std::string& candidate : {parent + "/lib", parent + "/lib/terrace",
                                       parent + "/lib/x86_64-linux-gnu", parent + "/lib64", folder}) {
    path = candidate + "/libterrace_preload.so";
    if (access(path.c_str(), R_OK) != 0) continue;
    if (path.find_first_of(" :\t") == std::string::npos) return Status::success();
    return refuse(
        error, path,
        Status::failure(ErrorCode::invalid_argument, 0, "LD_PRELOAD takes no path with a space or a colon"),
        "install terrace in a folder without them");
  }
  return refuse(error, "libterrace_preload.so",
                Status::failure(ErrorCode::not_found, ENOENT, "not beside this program"),
                "put it into " + parent + "/lib, or build everything with scripts/build");
}

Status check_stats_file(const Settings& settings, Line& error) {
  if (settings.stats_file.empty() || settings.stats_file.view() == "-") return Status::success();
  const std::string path = settings.stats_file.chars;
  const std::string what = "--stats '" + path + "'";
  struct stat info = {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) {
    return refuse(error, what, Status::failure(ErrorCode::invalid_argument, EISDIR, "it is a directory"),
                  "name a file");
  }
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const char* const checked = exists ? path.c_str() : folder.c_str();
  if (access(checked, W_OK) == 0) return Status::success();
  return refuse(error, what, Status::from_errno(errno, "it cannot be written"),
                "name a file in a folder that exists and that this user may write");
}

}  // namespace terrace::cli
