#include "base/capabilities.hpp"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/magic.h>
#include <linux/userfaultfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cstring>

#include "base/cgroup.hpp"
#include "base/line.hpp"
#include "base/linux_abi.hpp"
#include "base/size_text.hpp"
#include "base/syscall.hpp"
#include "base/types.hpp"

namespace terrace {

namespace {

// A descriptor that closes itself; negative: -errno of what should have opened it.
class Descriptor {
 public:
  explicit Descriptor(long value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) (void)sys(SYS_close, value_);
  }
  long value() const { return value_; }
  bool open() const { return value_ >= 0; }
  int errno_value() const { return value_ < 0 ? int(-value_) : 0; }

 private:
  long value_;
};

// Private anonymous pages that unmap themselves.
class Pages {
 public:
  explicit Pages(std::uint64_t bytes) : bytes_(bytes) {
    const long got =
        sys(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    address_ = got < 0 && got > -4096 ? 0 : std::uint64_t(got);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (address_ != 0) (void)sys(SYS_munmap, address_, bytes_);
  }
  std::uint64_t address() const { return address_; }
  volatile std::uint64_t* words() const { return reinterpret_cast<volatile std::uint64_t*>(address_); }

 private:
  std::uint64_t address_, bytes_;
};

void set_detail(CapabilityReport& report, const Line& line) {
  const std::string_view text = line.view();
  const std::size_t size = text.size() < sizeof report.detail - 1 ? text.size() : sizeof report.detail - 1;
  std::memcpy(report.detail, text.data(), size);
  report.detail[size] = 0;
}

void missing(CapabilityReport& report, int errno_value, const char* remedy) {
  report.found = false;
  report.errno_value = errno_value;
  report.remedy = remedy;
}

// ---- userfaultfd
// ----------------------------------------------------------------------------------------------------

long userfaultfd_from_device() {
  const Descriptor device(sys(SYS_openat, AT_FDCWD, "/dev/userfaultfd", O_RDWR | O_CLOEXEC, 0));
  if (!device.open()) return device.value();
  return sys(SYS_ioctl, device.value(), abi::kUserfaultfdIocNew, O_CLOEXEC | O_NONBLOCK);
}

// Features that the kernel offers, or 0. The descriptor is used up: UFFDIO_API is accepted once.
std::uint64_t offered_features() {
  const Descriptor uffd(open_userfaultfd());
  uffdio_api api = {.api = UFFD_API};
  if (!uffd.open() || sys(SYS_ioctl, uffd.value(), UFFDIO_API, &api) < 0) return 0;
  return api.features;
}

// 0 when a context with these features could be opened, else an errno.
int try_features(std::uint64_t features) {
  const Descriptor uffd(open_userfaultfd());
  if (!uffd.open()) return uffd.errno_value();
  uffdio_api api = {.api = UFFD_API, .features = features};
  return int(-sys(SYS_ioctl, uffd.value(), UFFDIO_API, &api));
}

void probe_userfaultfd(CapabilityReport& report) {
  char text[16] = {};
  const long size = read_text_file("/proc/sys/vm/unprivileged_userfaultfd", text, sizeof text);
  const bool sysctl_on = size > 0 && text[0] == '1';
  const Descriptor by_call(sys(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  const Descriptor by_device(userfaultfd_from_device());
  const Descriptor user_only(sys(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
  Line line;
  line.text("system call ")
      .text(errno_name(by_call.errno_value()))
      .text(", /dev/userfaultfd ")
      .text(errno_name(by_device.errno_value()));
  line.text(", user mode only ").text(errno_name(user_only.errno_value()));
  line.text(", vm.unprivileged_userfaultfd=").text(size > 0 ? (sysctl_on ? "1" : "0") : "absent");
  set_detail(report, line);
  report.found = by_call.open() || by_device.open();
  if (report.found) return;
  const bool built_in = by_call.errno_value() != ENOSYS;
  missing(
      report, by_call.errno_value(),
      built_in
          ? "sysctl vm.unprivileged_userfaultfd=1, or make /dev/userfaultfd readable and writable for this "
            "user; "
            "in a container let its seccomp profile allow userfaultfd"
          : "use a kernel with CONFIG_USERFAULTFD; in a container let its seccomp profile allow userfaultfd");
}

// Moves one page between two ranges and looks at its bytes.
int try_move() {
  constexpr std::uint64_t kWord = 0x7465727261636521;
  const Descriptor uffd(open_userfaultfd());
  if (!uffd.open()) return uffd.errno_value();
  uffdio_api api = {.api = UFFD_API, .features = abi::kFeatureMove};
  long error = sys(SYS_ioctl, uffd.value(), UFFDIO_API, &api);
  if (error < 0) return int(-error);
  const Pages source(kPageBytes), destination(kPageBytes);
  if (source.address() == 0 || destination.address() == 0) return ENOMEM;
  uffdio_register registration = {.range = {.start = destination.address(), .len = kPageBytes},
                                  .mode = UFFDIO_REGISTER_MODE_MISSING};
  error = sys(SYS_ioctl, uffd.value(), UFFDIO_REGISTER, &registration);
  if (error < 0) return int(-error);
  *source.words() = kWord;
  abi::UffdioMove move = {
      .dst = destination.address(), .src = source.address(), .len = kPageBytes, .mode = 0, .move = 0};
  for (int tries = 0; tries < 100; ++tries) {
    error = sys(SYS_ioctl, uffd.value(), abi::kUffdioMove, &move);
    if (error != -EAGAIN) break;
  }
  if (error < 0) return int(-error);
  // The page is there now, so this read cannot wait for a handler that does not exist.
  return move.move == std::int64_t(kPageBytes) && *destination.words() == kWord ? 0 : EIO;
}

void probe_move(CapabilityReport& report) {
  const int error = try_move();
  report.found = error == 0;
  Line line;
  line.text(error == 0 ? "one page moved, its bytes right" : "a page could not be moved");
  set_detail(report, line);
  if (error != 0) missing(report, error, "use Linux 6.8 or later, and a user who may use userfaultfd");
}

void probe_features(CapabilityReport& report, std::uint64_t features, const char* remedy) {
  const int error = try_features(features);
  report.found = error == 0;
  Line line;
  line.text("wanted ").hex(features).text(", offered ").hex(offered_features());
  set_detail(report, line);
  if (error != 0) missing(report, error, remedy);
}

// ---- io and the store
// -----------------------------------------------------------------------------------------------

void probe_io_uring(CapabilityReport& report) {
  io_uring_params params = {};
  const Descriptor ring(sys(SYS_io_uring_setup, 8, &params));
  report.found = ring.open();
  Line line;
  if (ring.open())
    line.text("features ").hex(params.features);
  else
    line.text("io_uring_setup ").text(errno_name(ring.errno_value()));
  set_detail(report, line);
  if (ring.open()) return;
  missing(report, ring.errno_value(),
          ring.errno_value() == ENOMEM
              ? "raise `ulimit -l` (locked memory)"
              : "sysctl kernel.io_uring_disabled=0; in a container let its seccomp profile allow io_uring_*");
}

// A file without a name in the directory: O_TMPFILE, else one that is unlinked at once.
long open_unnamed(const char* directory, int flags) {
  const long descriptor = sys(SYS_openat, AT_FDCWD, directory, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (descriptor != -EOPNOTSUPP && descriptor != -EISDIR) return descriptor;
  char path[1200];
  const std::size_t length = std::strlen(directory);
  if (length + 40 > sizeof path) return -ENAMETOOLONG;
  Line name;
  name.text("/.terrace-probe-").number(sys(SYS_getpid));
  std::memcpy(path, directory, length);
  std::memcpy(path + length, name.view().data(), name.view().size());
  path[length + name.view().size()] = 0;
  const long named = sys(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0600);
  if (named >= 0) (void)sys(SYS_unlinkat, AT_FDCWD, path, 0);
  return named;
}

void probe_direct_io(CapabilityReport& report, const char* directory) {
  Line line;
  if (directory == nullptr) {
    line.text("no store directory");
    set_detail(report, line);
    return missing(report, 0, "give --store DIR on a disk");
  }
  const Descriptor file(open_unnamed(directory, O_DIRECT));
  report.found = file.open();
  line.text("open with O_DIRECT in ").text(directory).text(": ").text(errno_name(file.errno_value()));
  set_detail(report, line);
  if (!file.open())
    missing(report, file.errno_value(),
            "put the store on ext4, xfs or btrfs; else it is buffered and slower");
}

void probe_store(CapabilityReport& report, const char* directory) {
  Line line;
  if (directory == nullptr) {
    line.text("no store directory");
    set_detail(report, line);
    return missing(report, 0, "give --store DIR on a disk");
  }
  std::uint64_t free_bytes = 0;
  const Status status = check_store_directory(directory, 256 * kMiB, free_bytes);
  report.found = status.ok();
  line.text(directory).text(": ");
  if (status.ok())
    line.text(SizeText::rounded(free_bytes)).text(" free");
  else
    line.text(status.text);
  set_detail(report, line);
  if (!status.ok()) missing(report, status.errno_value, store_remedy(status).data());
}

// ---- memory and limits
// ----------------------------------------------------------------------------------------------

// The word in brackets of a file like `always [madvise] never`.
std::string_view bracketed(std::string_view text) {
  const std::size_t open = text.find('['), close = text.find(']');
  return open == std::string_view::npos || close == std::string_view::npos
             ? std::string_view("absent")
             : text.substr(open + 1, close - open - 1);
}

void probe_huge_pages(CapabilityReport& report) {
  char enabled[128] = {}, defrag[128] = {};
  const long error = read_text_file("/sys/kernel/mm/transparent_hugepage/enabled", enabled, sizeof enabled);
  (void)read_text_file("/sys/kernel/mm/transparent_hugepage/defrag", defrag, sizeof defrag);
  const std::string_view mode = bracketed(enabled);
  report.found = mode == "always" || mode == "madvise";
  Line line;
  line.text("enabled=").text(mode).text(", defrag=").text(bracketed(defrag));
  set_detail(report, line);
  if (!report.found) {
    missing(
        report, error < 0 ? int(-error) : 0,
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; without it I/O is up to 3 times slower");
  }
}

void probe_pagemap_scan(CapabilityReport& report) {
  const Descriptor file(sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0));
  int error = file.errno_value();
  const Pages pages(2 * kPageBytes);
  std::int64_t regions = 0;
  if (error == 0 && pages.address() == 0) error = ENOMEM;
  if (error == 0) {
    *pages.words() = 1;  // the first page is there, the second is not
    abi::PageRegion region = {};
    abi::PmScanArg scan = {.size = sizeof scan,
                           .start = pages.address(),
                           .end = pages.address() + 2 * kPageBytes,
                           .vec = reinterpret_cast<std::uint64_t>(&region),
                           .vec_len = 1,
                           .category_mask = abi::kPageIsPresent,
                           .return_mask = abi::kPageIsPresent};
    regions = sys(SYS_ioctl, file.value(), abi::kPagemapScan, &scan);
    if (regions < 0)
      error = int(-regions);
    else if (regions != 1 || region.start != pages.address() || region.end != pages.address() + kPageBytes)
      error = EIO;
  }
  report.found = error == 0;
  Line line;
  line.text(error == 0 ? "found the present one of two pages" : "not possible on /proc/self/pagemap");
  set_detail(report, line);
  if (error != 0) missing(report, error, "use Linux 6.7 or later; else pages are found by mincore");
}

void probe_limit(CapabilityReport& report, int resource, std::uint64_t least, const char* remedy) {
  rlimit64 limit = {};
  const long error = sys(SYS_prlimit64, 0, resource, nullptr, &limit);
  report.found = error == 0 && limit.rlim_cur >= least;
  Line line;
  const bool bytes = resource == RLIMIT_MEMLOCK;
  if (limit.rlim_cur == RLIM64_INFINITY)
    line.text("unlimited");
  else if (bytes)
    line.text(SizeText::rounded(limit.rlim_cur));
  else
    line.number(std::int64_t(limit.rlim_cur));
  line.text(" (hard limit ");
  if (limit.rlim_max == RLIM64_INFINITY)
    line.text("none)");
  else if (bytes)
    line.text(SizeText::rounded(limit.rlim_max)).text(")");
  else
    line.number(std::int64_t(limit.rlim_max)).text(")");
  set_detail(report, line);
  if (!report.found) missing(report, error < 0 ? int(-error) : 0, remedy);
}

void probe_cgroup(CapabilityReport& report) {
  const MemoryLimit limit = memory_cgroup_limit();
  report.found = limit.version != 0;
  Line line;
  if (limit.version == 0)
    line.text("no memory controller");
  else if (limit.bytes == 0)
    line.text("v").number(limit.version).text(", no limit below the machine's memory");
  else
    line.text("v")
        .number(limit.version)
        .text(", limit ")
        .text(SizeText::rounded(limit.bytes))
        .text(" at ")
        .text(limit.directory);
  set_detail(report, line);
  if (!report.found)
    missing(report, ENOENT, "mount the cgroup file systems; else give the budget with --dram");
}

struct Entry {
  const char* name;
  bool needed;
};

constexpr Entry kEntries[kCapabilities] = {
    {"userfaultfd", true},   {"uffd_move", true},  {"uffd_events", true},  {"uffd_wp_unpopulated", true},
    {"io_uring", false},     {"direct_io", false}, {"store_disk", true},   {"huge_pages", false},
    {"pagemap_scan", false}, {"memlock", false},   {"descriptors", false}, {"memory_cgroup", false},
};

void probe_one(Capability which, const char* store_directory, CapabilityReport& report) {
  constexpr std::uint64_t kEvents =
      UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP;
  switch (which) {
    case Capability::userfaultfd: return probe_userfaultfd(report);
    case Capability::uffd_move: return probe_move(report);
    case Capability::uffd_events:
      return probe_features(
          report, kEvents, "use a kernel with userfaultfd events (4.11), and a user who may use userfaultfd");
    case Capability::uffd_wp_unpopulated:
      return probe_features(report, abi::kFeatureWpUnpopulated | UFFD_FEATURE_PAGEFAULT_FLAG_WP,
                            "use Linux 6.4 or later on x86-64 or arm64, and a user who may use userfaultfd");
    case Capability::io_uring: return probe_io_uring(report);
    case Capability::direct_io: return probe_direct_io(report, store_directory);
    case Capability::store_disk: return probe_store(report, store_directory);
    case Capability::huge_pages: return probe_huge_pages(report);
    case Capability::pagemap_scan: return probe_pagemap_scan(report);
    case Capability::memlock:
      return probe_limit(report, RLIMIT_MEMLOCK, 64 * kKiB,
                         "raise `ulimit -l` to 64 KiB or more; without it buffers are not registered");
    case Capability::descriptors:
      return probe_limit(report, RLIMIT_NOFILE, 64, "raise `ulimit -n` to 64 or more");
    case Capability::memory_cgroup: return probe_cgroup(report);
    case Capability::count_: return;
  }
}

}  // namespace

long open_userfaultfd() {
  const long by_call = sys(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  if (by_call >= 0) return by_call;
  const long by_device = userfaultfd_from_device();
  return by_device >= 0 ? by_device : by_call;
}

CapabilityReports probe_capabilities(const char* store_directory) {
  CapabilityReports reports;
  for (std::size_t i = 0; i < kCapabilities; ++i) {
    reports[i].name = kEntries[i].name;
    reports[i].needed = kEntries[i].needed;
    probe_one(Capability(i), store_directory, reports[i]);
  }
  return reports;
}

Status check_store_directory(const char* directory, std::uint64_t least_bytes, std::uint64_t& free_bytes) {
  free_bytes = 0;
  struct stat info = {};
  const long error = sys(SYS_newfstatat, AT_FDCWD, directory, &info, 0);
  if (error < 0)
    return Status::from_errno(
        int(-error), error == -ENOENT ? "the directory does not exist" : "the directory cannot be looked at");
  if (!S_ISDIR(info.st_mode))
    return Status::failure(ErrorCode::invalid_argument, ENOTDIR, "it is not a directory");
  struct statfs system = {};
  const long statfs_error = sys(SYS_statfs, directory, &system);
  if (statfs_error < 0) return Status::from_errno(int(-statfs_error), "its file system cannot be looked at");
  if (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC) {
    return Status::failure(ErrorCode::not_supported, 0, "it is on tmpfs, which is memory itself");
  }
  const Descriptor file(open_unnamed(directory, 0));
  if (!file.open()) {
    if (file.errno_value() == EROFS)
      return Status::failure(ErrorCode::no_permission, EROFS, "its file system is read-only");
    if (file.errno_value() == EACCES || file.errno_value() == EPERM) {
      return Status::failure(ErrorCode::no_permission, file.errno_value(), "this user may not write there");
    }
    return Status::from_errno(file.errno_value(), "no file can be made there");
  }
  free_bytes = std::uint64_t(system.f_bavail) * std::uint64_t(system.f_bsize);
  if (free_bytes < least_bytes)
    return Status::failure(ErrorCode::no_space, ENOSPC, "its file system is full");
  return Status::success();
}

std::string_view store_remedy(const Status& status) {
  switch (status.code) {
    case ErrorCode::not_found: return "make it, or give --store DIR with one that exists";
    case ErrorCode::no_permission: return "give --store DIR with a directory that this user may write";
    case ErrorCode::no_space: return "free some space, or give --store DIR on another disk";
    case ErrorCode::not_supported: return "give --store DIR on a disk";
    default: return "give --store DIR with a directory on a disk";
  }
}

}  // namespace terrace
