// The store: one unlinked file of a job on one device, cut into extents.
//
// Nouns: a *segment* is 2 MiB of the file; an *extent* is 1 to 128 granules within one segment (so a block
// always fits into one). Space is *reserved* (fallocate) before it is promised: an extent handed out can be
// written. Invariant: free + used granules == reserved granules; extents in use never overlap. Threads: one
// user at a time. No heap, no stdio, no errno after open(): its tables live in one mapping of its own. The
// file has no name from the start (O_TMPFILE, else unlinked at once): nothing is left after any kind of
// death.
#pragma once

#include <cstdint>

#include "base/granule_mask.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "io/private_mapping.hpp"

namespace terrace::io {

struct Extent {
  Granule first = 0;
  std::uint32_t count = 0;  // granules; 0: none
  bool valid() const { return count != 0; }
  std::uint64_t offset_bytes() const { return std::uint64_t(first) * kGranuleBytes; }
  std::uint64_t length_bytes() const { return std::uint64_t(count) * kGranuleBytes; }
};

// Places extents in segments. Pure bookkeeping over memory that the caller gives, so that tests can drive it.
class ExtentMap {
 public:
  // Bytes of memory that a map of `segments` segments needs.
  static std::uint64_t table_bytes(std::uint32_t segments);
  // `memory`: table_bytes(max_segments) zeroed bytes that outlive the map.
  void init(void* memory, std::uint32_t max_segments);
  // Makes the next `segments` segments available (they have been reserved on disk).
  void grow(std::uint32_t segments);
  // `count` (1..128) granules within one segment; an invalid Extent when none fits.
  Extent allocate(std::uint32_t count);
  void release(Extent extent);
  std::uint64_t free_granules() const { return free_granules_; }
  std::uint64_t used_granules() const { return used_granules_; }
  std::uint32_t segments() const { return segments_; }
  std::uint32_t max_segments() const { return max_segments_; }
  // Walks everything and aborts when the invariant is broken.
  void validate() const;

 private:
  struct Segment;
  void unlink(std::uint32_t index);
  void link(std::uint32_t index);
  Segment* table_ = nullptr;
  std::uint32_t segments_ = 0, max_segments_ = 0;
  std::uint64_t free_granules_ = 0, used_granules_ = 0;
  // Segments by the length class of their longest free run, each a doubly linked list.
  static constexpr std::uint32_t kClasses = 9;
  std::uint32_t heads_[kClasses] = {};
};

struct StoreOptions {
  const char* directory = nullptr;
  std::uint64_t capacity_bytes = 0;  // most that may ever be reserved; 0: what the file system has free
  std::uint64_t reserve_step_bytes = 256 * kMiB;
};

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store() { close(); }

  // Opens an unlinked file in the directory with O_DIRECT (direct() says whether the file system took it).
  // Errors: not_found, no_permission (read-only), invalid_argument (not a directory), not_supported (tmpfs or
  // ramfs: a store in DRAM gains nothing), no_space.
  Status open(const StoreOptions& options);
  void close();

  // Makes sure that at least `bytes` are reserved in total. no_space when the disk or the capacity does not
  // allow it; what was reserved before stays usable.
  Status reserve(std::uint64_t bytes);
  Extent allocate(std::uint32_t granules) { return extents_.allocate(granules); }
  void release(Extent extent) { extents_.release(extent); }

  int descriptor() const { return descriptor_; }
  bool direct() const { return direct_; }
  std::uint32_t alignment() const { return alignment_; }  // from STATX_DIOALIGN, else 4096; 1 when not direct
  std::uint64_t id() const { return id_; }  // random, seeds the identities of this store's blocks
  std::uint64_t reserved_bytes() const { return reserved_bytes_; }
  std::uint64_t capacity_bytes() const { return capacity_bytes_; }
  const ExtentMap& extents() const { return extents_; }

 private:
  ExtentMap extents_;
  int descriptor_ = -1;
  bool direct_ = false;
  std::uint32_t alignment_ = 4096;
  std::uint64_t id_ = 0, reserved_bytes_ = 0, capacity_bytes_ = 0, reserve_step_bytes_ = 0;
  PrivateMapping tables_;
};

}  // namespace terrace::io
