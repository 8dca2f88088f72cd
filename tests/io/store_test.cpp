#include "io/store.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

#include "child.hpp"
#include "device_rigs.hpp"

using namespace terrace;
using namespace terrace::io;
using namespace terrace::io::test;

namespace {

// A directory of its own on a real file system, gone at the end.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    const char* base = std::getenv("TERRACE_STORE");
    path_ = std::string(base != nullptr ? base : ".") + "/store-test-XXXXXX";
    REQUIRE(mkdtemp(path_.data()) != nullptr);
  }
  ~ScratchDirectory() { rmdir(path_.c_str()); }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

int entries_in(const char* path) {
  int n = 0;
  DIR* d = opendir(path);
  REQUIRE(d != nullptr);
  while (const dirent* e = readdir(d)) n += e->d_name[0] != '.' || std::string(e->d_name).size() > 2;
  closedir(d);
  return n;
}

std::uint64_t bytes_on_disk(int fd) {
  struct stat s;
  REQUIRE(fstat(fd, &s) == 0);
  return std::uint64_t(s.st_blocks) * 512;
}

int shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()); }

// A small ext4 in a loop device with sectors of `sector` bytes; null path() where that cannot be had.
class LoopFileSystem {
 public:
  LoopFileSystem(int mib, int sector) {
    if (getuid() != 0) return;
    const std::string image = std::string(directory_.path()) + "/image",
                      mount_point = std::string(directory_.path()) + "/mnt";
    image_ = image;
    if (shell("truncate -s " + std::to_string(mib) + "M " + image) != 0) return;
    FILE* p =
        popen(("losetup --find --show --sector-size " + std::to_string(sector) + " " + image + " 2>/dev/null")
                  .c_str(),
              "r");
    char line[128] = {};
    if (p != nullptr && fgets(line, sizeof line, p) != nullptr)
      device_ = std::string(line, strcspn(line, "\n"));
    if (p != nullptr) pclose(p);
    if (device_.empty()) return;
    if (shell("mkfs.ext4 -q -O ^has_journal -m 0 " + device_) != 0) return;
    mkdir(mount_point.c_str(), 0755);
    if (mount(device_.c_str(), mount_point.c_str(), "ext4", 0, "") == 0) mount_point_ = mount_point;
  }
  ~LoopFileSystem() {
    if (!mount_point_.empty()) umount2(mount_point_.c_str(), MNT_DETACH);
    if (!device_.empty()) shell("losetup -d " + device_);
    rmdir((std::string(directory_.path()) + "/mnt").c_str());
    if (!image_.empty()) unlink(image_.c_str());
  }
  const char* path() const { return mount_point_.empty() ? nullptr : mount_point_.c_str(); }

 private:
  ScratchDirectory directory_;
  std::string image_, device_, mount_point_;
};

}  // namespace

TEST_CASE("store: it opens without a name, reserves step by step, and leaves nothing behind") {
  ScratchDirectory directory;
  Store store;
  REQUIRE(
      store.open({.directory = directory.path(), .capacity_bytes = 64 * kMiB, .reserve_step_bytes = 8 * kMiB})
          .ok());
  CHECK(entries_in(directory.path()) == 0);
  CHECK(store.id() != 0);
  CHECK(store.capacity_bytes() == 64 * kMiB);
  CHECK_FALSE(store.allocate(1).valid());
  REQUIRE(store.reserve(kMiB).ok());
  CHECK(store.reserved_bytes() == 8 * kMiB);
  CHECK(bytes_on_disk(store.descriptor()) >= 8 * kMiB);
  CHECK(store.extents().free_granules() == 8 * kMiB / kGranuleBytes);
  const Extent e = store.allocate(128);
  REQUIRE(e.valid());
  CHECK(e.offset_bytes() % kChunkBytes == 0);
  store.release(e);
  struct stat s;
  REQUIRE(fstat(store.descriptor(), &s) == 0);
  CHECK(s.st_nlink == 0);
  CHECK((s.st_mode & 0777) == 0600);
  CHECK((fcntl(store.descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("store: two stores have two identities") {
  ScratchDirectory directory;
  Store a, b;
  REQUIRE(a.open({.directory = directory.path(), .capacity_bytes = 2 * kMiB}).ok());
  REQUIRE(b.open({.directory = directory.path(), .capacity_bytes = 2 * kMiB}).ok());
  CHECK(a.id() != b.id());
}

TEST_CASE("store: the capacity holds, and what was reserved before stays usable") {
  ScratchDirectory directory;
  Store store;
  REQUIRE(
      store.open({.directory = directory.path(), .capacity_bytes = 10 * kMiB, .reserve_step_bytes = 4 * kMiB})
          .ok());
  CHECK(store.reserve(256 * kMiB).code == ErrorCode::no_space);
  CHECK(store.reserve(10 * kMiB).ok());
  CHECK(store.reserved_bytes() == 10 * kMiB);
  CHECK(bytes_on_disk(store.descriptor()) <= 10 * kMiB + 64 * kKiB);
  CHECK(store.reserve(10 * kMiB + 1).code == ErrorCode::no_space);
  for (int i = 0; i < 5; i++) CHECK(store.allocate(128).valid());
  CHECK_FALSE(store.allocate(1).valid());
}

TEST_CASE("store: a directory that is missing, a file, empty or in memory is refused by name of the reason") {
  Store store;
  Status s = store.open({.directory = "./no-such-directory"});
  CHECK(s.code == ErrorCode::not_found);
  CHECK(s.errno_value == ENOENT);
  CHECK(store.open({.directory = "/proc/self/exe"}).code == ErrorCode::invalid_argument);
  CHECK(store.open({.directory = nullptr}).code == ErrorCode::invalid_argument);
  CHECK(store.open({.directory = ""}).code == ErrorCode::invalid_argument);
  CHECK(store.descriptor() == -1);
  CHECK(store.reserve(1).code == ErrorCode::invalid_argument);
  if (access("/dev/shm", F_OK) != 0) return skip("no tmpfs at /dev/shm");
  s = store.open({.directory = "/dev/shm"});
  CHECK(s.code == ErrorCode::not_supported);
  CHECK(std::string(s.text).find("tmpfs") != std::string::npos);
}

TEST_CASE("store: a directory where nothing can be written is no permission") {
  ScratchDirectory directory;
  REQUIRE(chmod(directory.path(), 0555) == 0);
  CHECK(in_child([&] {
          if (getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 3;
          Store store;
          const Status s = store.open({.directory = directory.path(), .capacity_bytes = 2 * kMiB});
          return s.code == ErrorCode::no_permission && s.errno_value == EACCES ? 0 : 1;
        }) == 0);
}

TEST_CASE("store: a limit on file size is no space, not a signal") {
  ScratchDirectory directory;
  CHECK(in_child([&] {
          const rlimit limit{5 * kMiB, 5 * kMiB};
          setrlimit(RLIMIT_FSIZE, &limit);
          Store store;
          if (!store.open({.directory = directory.path(), .capacity_bytes = 64 * kMiB}).ok()) return 2;
          if (!store.reserve(4 * kMiB).ok()) return 3;
          const Status s = store.reserve(8 * kMiB);
          if (s.code != ErrorCode::no_space || s.errno_value != EFBIG) return 4;
          return store.allocate(128).valid() && store.reserved_bytes() == 4 * kMiB ? 0 : 5;
        }) == 0);
}

TEST_CASE("store: without O_TMPFILE its file loses its name at once") {
  ScratchDirectory directory;
  CHECK(in_child([&] {
          // The flag proper: O_TMPFILE contains O_DIRECTORY, which the store needs for its directory.
          if (!forbid({SYS_openat, EOPNOTSUPP, O_TMPFILE & ~O_DIRECTORY})) return 2;
          Store store;
          if (!store.open({.directory = directory.path(), .capacity_bytes = 4 * kMiB}).ok()) return 3;
          struct stat s;
          if (fstat(store.descriptor(), &s) != 0 || s.st_nlink != 0 || (s.st_mode & 0777) != 0600) return 4;
          return store.reserve(4 * kMiB).ok() && entries_in(directory.path()) == 0 ? 0 : 5;
        }) == 0);
}

TEST_CASE("store: where O_DIRECT is refused it is buffered and says so, and any size and place is good") {
  ScratchDirectory directory;
  CHECK(in_child([&] {
          if (!forbid({SYS_fcntl, EINVAL})) return 2;
          Store store;
          if (!store.open({.directory = directory.path(), .capacity_bytes = 4 * kMiB}).ok()) return 3;
          if (store.direct() || store.alignment() != 1 || !store.reserve(4 * kMiB).ok()) return 4;
          SyncDevice device;
          if (!device.open(store.descriptor(), {.alignment = store.alignment()}).ok()) return 5;
          char bytes[2][5000];
          for (const std::uint32_t length : {1u, 511u, 1025u, 4097u}) {
            fill(bytes[0], sizeof bytes[0], length);
            if (run_one(device, {0, Op::write, bytes[0] + 3, 777, length}) != 0) return 6;
            if (run_one(device, {0, Op::read, bytes[1] + 1, 777, length}) != 0) return 7;
            if (std::memcmp(bytes[0] + 3, bytes[1] + 1, length) != 0) return 8;
          }
          return 0;
        }) == 0);
}

TEST_CASE("store: a read-only file system is no permission") {
  LoopFileSystem fs(16, 512);
  if (fs.path() == nullptr) return skip("no loop device with ext4 (needs root, losetup, mkfs.ext4)");
  REQUIRE(mount(nullptr, fs.path(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0);
  Store store;
  const Status s = store.open({.directory = fs.path(), .capacity_bytes = 2 * kMiB});
  CHECK(s.code == ErrorCode::no_permission);
  CHECK(s.errno_value == EROFS);
  CHECK(std::string(s.text).find("read-only") != std::string::npos);
}

TEST_CASE("store: kill -9 with writes in flight leaves no file and no space, a hundred times") {
  ScratchDirectory directory;
  for (int round = 0; round < 100; round++) {
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
      Store store;
      if (!store
               .open({.directory = directory.path(),
                      .capacity_bytes = 16 * kMiB,
                      .reserve_step_bytes = 4 * kMiB})
               .ok() ||
          !store.reserve(16 * kMiB).ok())
        _exit(1);
      IoMemory memory;
      UringDevice device;
      if (!memory.map(2 * kMiB).ok()) _exit(1);
      if (device.open(store.descriptor(), {.depth = 64, .alignment = store.alignment()}).ok()) {
        for (std::uint64_t i = 0; i < 64; i++)
          (void)device.submit({i, Op::write, memory.data() + (i % 8) * 256 * kKiB, i * 256 * kKiB,
                               std::uint32_t(256 * kKiB)});
        device.flush();
      }
      (void)!write(ready[1], "x", 1);
      pause();
    }
    char x;
    close(ready[1]);
    REQUIRE(read(ready[0], &x, 1) == 1);
    close(ready[0]);
    kill(pid, SIGKILL);
    int status = 0;
    waitpid(pid, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    REQUIRE(entries_in(directory.path()) == 0);
  }
}

TEST_CASE("store: a full disk is ENOSPC, and extents promised before can be written") {
  LoopFileSystem fs(64, 512);
  if (fs.path() == nullptr) return skip("no loop device with ext4 (needs root, losetup, mkfs.ext4)");
  Store store;
  REQUIRE(store.open({.directory = fs.path(), .capacity_bytes = 512 * kMiB, .reserve_step_bytes = 16 * kMiB})
              .ok());
  const Status s = store.reserve(512 * kMiB);
  CHECK(s.code == ErrorCode::no_space);
  CHECK(s.errno_value == ENOSPC);
  CHECK(store.reserved_bytes() >= 32 * kMiB);
  CHECK(store.reserved_bytes() < 64 * kMiB);
  SyncDevice device;
  REQUIRE(device.open(store.descriptor(), {.alignment = store.alignment()}).ok());
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  std::uint64_t written = 0;
  for (Extent e = store.allocate(128); e.valid(); e = store.allocate(128), written += kChunkBytes)
    REQUIRE(run_one(device, {0, Op::write, memory.data(), e.offset_bytes(), std::uint32_t(kChunkBytes)}) ==
            0);
  CHECK(written == store.reserved_bytes());
}

TEST_CASE("store: sectors of 4096 bytes show in the alignment, and every granule is good for them") {
  LoopFileSystem fs(64, 4096);
  if (fs.path() == nullptr) return skip("no loop device with sectors of 4096 bytes");
  Store store;
  REQUIRE(store.open({.directory = fs.path(), .capacity_bytes = 8 * kMiB}).ok());
  REQUIRE(store.reserve(8 * kMiB).ok());
  if (!store.direct()) return skip("this file system refuses O_DIRECT");
  CHECK(store.alignment() == 4096);
  SyncDevice device;
  REQUIRE(device.open(store.descriptor(), {.alignment = store.alignment()}).ok());
  IoMemory memory;
  REQUIRE(memory.map(4 * kMiB).ok());
  fill(memory.data(), 2 * kMiB, 8);
  for (const std::uint32_t granules : {1u, 3u, 64u, 127u}) {
    const Extent e = store.allocate(granules);
    REQUIRE(e.valid());
    const auto length = std::uint32_t(e.length_bytes());
    REQUIRE(run_one(device, {0, Op::write, memory.data(), e.offset_bytes(), length}) == 0);
    REQUIRE(run_one(device, {0, Op::read, memory.data() + 2 * kMiB, e.offset_bytes(), length}) == 0);
    CHECK(std::memcmp(memory.data(), memory.data() + 2 * kMiB, length) == 0);
  }
}
