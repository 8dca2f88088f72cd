// Kernel constants that the 6.1 headers of Debian 12 lack. Values from include/uapi/linux of the kernel
// version named at each; whether the running kernel knows them is found out by probing (base/capabilities),
// never by version.
#pragma once

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include <cstdint>

namespace terrace::abi {

// userfaultfd.h, 6.8: move pages between two places of one address space.
struct UffdioMove {
  std::uint64_t dst, src, len, mode;
  std::int64_t move;  // bytes moved, or -errno
};
inline constexpr unsigned long kUffdioMove = _IOWR(UFFDIO, 0x05, UffdioMove);
inline constexpr std::uint64_t kMoveModeAllowSrcHoles = 1u << 1;
inline constexpr std::uint64_t kFeatureWpUnpopulated = 1u << 13;
inline constexpr std::uint64_t kFeatureMove = 1u << 16;
inline constexpr unsigned long kUserfaultfdIocNew = _IO(0xAA, 0x00);  // on /dev/userfaultfd, 6.1

// fs.h, 6.7: PAGEMAP_SCAN on /proc/self/pagemap.
struct PageRegion {
  std::uint64_t start, end, categories;
};
struct PmScanArg {
  std::uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  std::uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
inline constexpr unsigned long kPagemapScan = _IOWR('f', 16, PmScanArg);
inline constexpr std::uint64_t kPageIsPresent = 1u << 3;
inline constexpr std::uint64_t kPageIsSwapped = 1u << 4;
inline constexpr std::uint64_t kPageIsPfnZero = 1u << 5;
inline constexpr std::uint64_t kPageIsHuge = 1u << 6;

}  // namespace terrace::abi
