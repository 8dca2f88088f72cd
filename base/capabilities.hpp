// What this kernel, this user and this store directory can do, found out by trying it, never by version.
//
// Nouns: a *capability* has a name, what was found, the errno behind a refusal and a remedy. `needed` ones
// are those without which nothing is tiered; without a `wanted` one Terrace works through a counted fallback.
// Any thread; raw system calls, no heap, no errno. A probe cleans up after itself: no descriptor, mapping or
// file stays.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/status.hpp"

namespace terrace {

enum class Capability : std::uint32_t {
  userfaultfd,          // that also serves faults inside system calls
  uffd_move,            // UFFDIO_MOVE, tried on a page
  uffd_events,          // REMAP, REMOVE and UNMAP events
  uffd_wp_unpopulated,  // write protection of pages that do not exist yet
  io_uring,
  direct_io,   // O_DIRECT in the store directory
  store_disk,  // the store directory is on a disk, writable, with room
  huge_pages,
  pagemap_scan,
  memlock,
  descriptors,
  memory_cgroup,
  count_,
};

inline constexpr std::size_t kCapabilities = std::size_t(Capability::count_);

struct CapabilityReport {
  const char* name = "";
  bool needed = false;
  bool found = false;
  int errno_value = 0;      // of the refusal; 0 where there is none
  char detail[160] = {};    // what was seen: a limit, a mode, a file system
  const char* remedy = "";  // empty when found
};

using CapabilityReports = std::array<CapabilityReport, kCapabilities>;

// Tries everything. `store_directory` may be null: then the store's probes say that no directory was given.
CapabilityReports probe_capabilities(const char* store_directory);

// Whether a directory can hold a store: a directory on a disk (not tmpfs or ramfs), writable, with at least
// `least_bytes` free. Errors: not_found, invalid_argument (not a directory), not_supported (memory file
// system), no_permission (read-only too), no_space, io_error. `free_bytes` is what the file system gives this
// user.
Status check_store_directory(const char* directory, std::uint64_t least_bytes, std::uint64_t& free_bytes);

// The remedy for a refused store directory, as the end of one line.
std::string_view store_remedy(const Status& status);

// The first userfaultfd that this user gets and that serves faults inside system calls too; the descriptor or
// -errno. Tries the system call, then /dev/userfaultfd.
long open_userfaultfd();

}  // namespace terrace
