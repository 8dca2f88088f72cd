#include "io/io_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/linux_abi.hpp"
#include "base/syscall.hpp"
#include "base/types.hpp"

namespace terrace::io {

namespace {
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, 5.14
}

IoMemory::IoMemory(IoMemory&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
  other.data_ = nullptr;
  other.bytes_ = 0;
}

IoMemory& IoMemory::operator=(IoMemory&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = other.data_;
    bytes_ = other.bytes_;
    other.data_ = nullptr;
    other.bytes_ = 0;
  }
  return *this;
}

Status IoMemory::map(std::uint64_t bytes) {
  reset();
  if (bytes == 0 || bytes > ~std::uint64_t{0} / 4)
    return Status::failure(ErrorCode::invalid_argument, 0, "size out of range");
  bytes = round_up(bytes, kChunkBytes);
  // One chunk more than asked, so that an aligned range lies inside; what is over on both sides goes back.
  const long r =
      sys(SYS_mmap, nullptr, bytes + kChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (r < 0) return Status::from_errno(int(-r), "no address space for I/O memory");
  const std::uint64_t from = std::uint64_t(r), start = round_up(from, kChunkBytes);
  if (start != from) (void)sys(SYS_munmap, from, start - from);
  const std::uint64_t over = from + kChunkBytes - start;
  if (over != 0) (void)sys(SYS_munmap, start + bytes, over);
  data_ = reinterpret_cast<char*>(start);
  bytes_ = bytes;
  (void)sys(SYS_madvise, data_, bytes_,
            MADV_HUGEPAGE);  // refused without THP: small pages serve, more slowly
  const long populated = sys(SYS_madvise, data_, bytes_, kPopulateWrite);
  if (populated == -EINVAL) {
    for (std::uint64_t at = 0; at < bytes_; at += kPageBytes) *static_cast<volatile char*>(data_ + at) = 0;
  } else if (populated < 0) {
    reset();
    return Status::from_errno(int(-populated), "I/O memory could not be populated");
  }
  return Status::success();
}

void IoMemory::reset() {
  if (data_ != nullptr) (void)sys(SYS_munmap, data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

Result<std::uint64_t> IoMemory::huge_bytes() const {
  if (data_ == nullptr) return std::uint64_t{0};
  const long fd = sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return Status::from_errno(int(-fd), "/proc/self/pagemap");
  abi::PageRegion regions[64];
  abi::PmScanArg arg{};
  arg.size = sizeof arg;
  arg.start = std::uint64_t(data_);
  arg.end = arg.start + bytes_;
  arg.vec = std::uint64_t(regions);
  arg.vec_len = 64;
  arg.category_mask = arg.return_mask = abi::kPageIsHuge;
  std::uint64_t huge = 0;
  long found = 0;
  while (arg.start < arg.end) {
    found = sys(SYS_ioctl, fd, abi::kPagemapScan, &arg);
    if (found < 0) break;
    for (long i = 0; i < found; i++) huge += regions[i].end - regions[i].start;
    if (arg.walk_end <= arg.start) break;
    arg.start = arg.walk_end;
  }
  (void)sys(SYS_close, fd);
  if (found < 0) {
    const int e = int(-found);
    return e == ENOTTY || e == EINVAL
               ? Status::failure(ErrorCode::not_supported, e, "this kernel has no PAGEMAP_SCAN")
               : Status::from_errno(e, "PAGEMAP_SCAN");
  }
  return huge;
}

}  // namespace terrace::io
