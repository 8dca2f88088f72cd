// Physically contiguous buffers for a device.
//
// A disk request takes a limited number of segments (254 on the reference disk), so a 2 MiB request from 4
// KiB pages is cut in pieces and runs at a third of the speed (DESIGN section 6). These buffers are whole
// huge pages wherever the kernel has them, populated up front, and huge_bytes() tells how much really is.
// Move-only; gives itself back. Any thread. No heap, no errno.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.hpp"

namespace terrace::io {

class IoMemory {
 public:
  IoMemory() = default;
  IoMemory(IoMemory&& other) noexcept;
  IoMemory& operator=(IoMemory&& other) noexcept;
  ~IoMemory() { reset(); }

  // Maps `bytes` (rounded up to 2 MiB), aligned to 2 MiB, and populates them. no_memory when they are not to
  // be had; small pages are no error.
  Status map(std::uint64_t bytes);
  void reset();

  char* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  // Bytes that are mapped by huge pages now. not_supported on kernels before 6.7 (no PAGEMAP_SCAN).
  Result<std::uint64_t> huge_bytes() const;

 private:
  char* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace terrace::io
