// A private anonymous mapping that gives itself back: the only memory that the devices and the store own.
// Move-only; zero-filled; NORESERVE, so a table sized for the worst case costs what is touched. Raw system
// calls.
#pragma once

#include <sys/mman.h>

#include <cstdint>

#include "base/status.hpp"
#include "base/syscall.hpp"
#include "base/types.hpp"

namespace terrace::io {

class PrivateMapping {
 public:
  PrivateMapping() = default;
  PrivateMapping(PrivateMapping&& o) noexcept : data_(o.data_), bytes_(o.bytes_) {
    o.data_ = nullptr, o.bytes_ = 0;
  }
  PrivateMapping& operator=(PrivateMapping&& o) noexcept {
    if (this != &o) {
      reset();
      data_ = o.data_, bytes_ = o.bytes_;
      o.data_ = nullptr, o.bytes_ = 0;
    }
    return *this;
  }
  ~PrivateMapping() { reset(); }

  // Replaces what it holds. no_memory when the address space is used up.
  Status map(std::uint64_t bytes) {
    reset();
    bytes = round_up(bytes, kPageBytes);
    const long r = sys(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r < 0) return Status::from_errno(int(-r), "no address space for tables");
    data_ = reinterpret_cast<void*>(r);
    bytes_ = bytes;
    return Status::success();
  }
  void reset() {
    if (data_ != nullptr) (void)sys(SYS_munmap, data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }
  void* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace terrace::io
