#include "io/store.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/line.hpp"
#include "base/syscall.hpp"
#include "io/random.hpp"

namespace terrace::io {

namespace {

constexpr std::uint32_t kStatxDioAlign = 0x2000;  // STATX_DIOALIGN, linux/stat.h of 6.1
constexpr int kNameTries = 16;

// struct statx up to the fields of 6.1 that older headers call spare.
struct StatxDio {
  std::uint32_t mask, blksize;
  std::uint64_t unused[18];
  std::uint32_t mem_align, offset_align;
  std::uint64_t rest[12];
};
static_assert(sizeof(StatxDio) == sizeof(struct statx) && offsetof(StatxDio, mem_align) == 0x98);

std::uint64_t random_number() {
  std::uint64_t value = 0;
  if (sys(SYS_getrandom, &value, sizeof value, 0) == long(sizeof value)) return value;
  std::uint64_t seed = monotonic_ns() ^ (std::uint64_t(sys(SYS_getpid)) << 40);
  return next_random(seed);
}

// Opens a file without a name: O_TMPFILE (with O_EXCL: none can be given later), else one with a name of its
// own that is removed at once (a death in between leaves an empty file at worst, for the space is reserved
// later). Returns the descriptor or -errno.
long open_unnamed(long directory) {
  constexpr int flags = O_RDWR | O_CLOEXEC;
  long fd = sys(SYS_openat, directory, ".", flags | O_TMPFILE | O_EXCL, 0600);
  if (fd != -EOPNOTSUPP && fd != -EISDIR && fd != -EINVAL && fd != -ENOENT) return fd;
  for (int i = 0; i < kNameTries; i++) {
    Line name;
    name.text(".terrace-").hex(random_number());
    char text[64] = {};
    std::memcpy(text, name.view().data(), std::min(name.view().size(), sizeof text - 1));
    fd = sys(SYS_openat, directory, text, flags | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd >= 0) (void)sys(SYS_unlinkat, directory, text, 0);
    if (fd != -EEXIST) return fd;
  }
  return fd;
}

// Bytes that buffers and offsets of O_DIRECT are multiples of: what the kernel tells since 6.1, else a page.
std::uint32_t direct_alignment(int fd) {
  StatxDio s{};
  if (sys(SYS_statx, fd, "", AT_EMPTY_PATH, kStatxDioAlign, &s) != 0 || (s.mask & kStatxDioAlign) == 0)
    return 4096;
  const std::uint32_t wanted = std::max({s.mem_align, s.offset_align, 512u});
  return std::has_single_bit(wanted) && wanted <= kGranuleBytes ? wanted : 4096;
}

std::uint64_t file_size_limit() {
  rlimit64 limit{};
  if (sys(SYS_prlimit64, 0, RLIMIT_FSIZE, nullptr, &limit) != 0) return RLIM64_INFINITY;
  return limit.rlim_cur;
}

}  // namespace

Status Store::open(const StoreOptions& options) {
  if (descriptor_ >= 0) return Status::failure(ErrorCode::invalid_argument, 0, "the store is open already");
  if (options.directory == nullptr || options.directory[0] == 0)
    return Status::failure(ErrorCode::invalid_argument, 0, "no store directory given");
  const long directory = sys(SYS_openat, AT_FDCWD, options.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (directory < 0) {
    return Status::from_errno(int(-directory), directory == -ENOENT ? "the store directory does not exist"
                                               : directory == -ENOTDIR
                                                   ? "the store path is not a directory"
                                                   : "the store directory cannot be opened");
  }
  struct statfs fs {};
  const long r = sys(SYS_fstatfs, directory, &fs);
  const auto type = std::uint64_t(std::uint32_t(fs.f_type));
  long fd = -1;
  Status status = Status::success();
  if (r < 0)
    status = Status::from_errno(int(-r), "the store's file system cannot be asked for its kind");
  else if (type == TMPFS_MAGIC || type == RAMFS_MAGIC)
    status = Status::failure(ErrorCode::not_supported, 0,
                             "the store directory lies in memory (tmpfs): choose a directory on a disk");
  else if ((fd = open_unnamed(directory)) < 0)
    status = Status::from_errno(int(-fd), fd == -EROFS    ? "the store's file system is read-only"
                                          : fd == -EACCES ? "the store directory is not writable"
                                                          : "no file can be made in the store directory");
  (void)sys(SYS_close, directory);
  if (!status.ok()) return status;

  const std::uint64_t space_bytes =
      std::uint64_t(fs.f_bavail) * std::uint64_t(fs.f_frsize ? fs.f_frsize : fs.f_bsize);
  const std::uint64_t limit_bytes =
      std::min(options.capacity_bytes != 0 ? options.capacity_bytes : space_bytes,
               std::uint64_t(~Granule{0}) * kGranuleBytes);
  const std::uint64_t capacity_bytes = round_down(limit_bytes, kChunkBytes);
  if (capacity_bytes == 0) {
    (void)sys(SYS_close, fd);
    return options.capacity_bytes != 0
               ? Status::failure(ErrorCode::invalid_argument, 0, "the store's capacity is below 2 MiB")
               : Status::failure(ErrorCode::no_space, ENOSPC, "the store's file system is full");
  }
  const auto segments = std::uint32_t(capacity_bytes / kChunkBytes);
  if (Status s = tables_.map(ExtentMap::table_bytes(segments)); !s.ok()) {
    (void)sys(SYS_close, fd);
    return s;
  }
  extents_.init(tables_.data(), segments);
  descriptor_ = int(fd);
  direct_ = sys(SYS_fcntl, fd, F_SETFL, O_RDWR | O_DIRECT) == 0;
  alignment_ = direct_ ? direct_alignment(descriptor_) : 1;
  id_ = random_number();
  reserved_bytes_ = 0;
  capacity_bytes_ = capacity_bytes;
  reserve_step_bytes_ = std::max(round_up(options.reserve_step_bytes, kChunkBytes), kChunkBytes);
  return Status::success();
}

void Store::close() {
  if (descriptor_ < 0) return;
  (void)sys(SYS_close, descriptor_);  // the last descriptor gives the space back: the file has no name
  descriptor_ = -1;
  tables_.reset();
  extents_ = {};
  reserved_bytes_ = capacity_bytes_ = 0;
}

Status Store::reserve(std::uint64_t bytes) {
  if (descriptor_ < 0) return Status::failure(ErrorCode::invalid_argument, 0, "the store is not open");
  if (bytes > capacity_bytes_)
    return Status::failure(ErrorCode::no_space, 0, "the store's capacity is used up");
  // A file that would outgrow RLIMIT_FSIZE is refused here: the kernel would send SIGXFSZ, which kills by
  // default.
  const std::uint64_t most_bytes = std::min(capacity_bytes_, round_down(file_size_limit(), kChunkBytes));
  if (bytes > most_bytes)
    return Status::failure(ErrorCode::no_space, EFBIG,
                           "the limit on file size (ulimit -f) is below the store's need");
  std::uint64_t step_bytes = reserve_step_bytes_;
  while (reserved_bytes_ < bytes) {
    const std::uint64_t want_bytes = std::min(step_bytes, most_bytes - reserved_bytes_);
    const long r = sys(SYS_fallocate, descriptor_, 0, reserved_bytes_, want_bytes);
    if (r == -EINTR || r == -EAGAIN) continue;
    if (r == -ENOSPC && want_bytes > kChunkBytes) {  // a nearly full disk may still hold a smaller step
      step_bytes = round_up(want_bytes / 2, kChunkBytes);
      continue;
    }
    if (r < 0) {
      (void)sys(SYS_ftruncate, descriptor_, reserved_bytes_);  // a failed step may have taken a part
      return Status::from_errno(int(-r), r == -ENOSPC ? "the store's file system is full"
                                                      : "space for the store cannot be reserved (fallocate)");
    }
    extents_.grow(std::uint32_t(want_bytes / kChunkBytes));
    reserved_bytes_ += want_bytes;
  }
  return Status::success();
}

}  // namespace terrace::io
