// A block device over an open file that moves the bytes at submit(), by pread and pwrite: the fallback
// without io_uring. Same contract; a completion is ready as soon as submit() returns, in order. Threads: one
// user at a time. No heap after open(), no errno: raw system calls.
#pragma once

#include "io/block_device.hpp"
#include "io/private_mapping.hpp"
#include "io/slots.hpp"
#include "io/transfer.hpp"

namespace terrace::io {

struct SyncOptions {
  std::uint32_t depth = 64;       // completions that may wait to be polled, 1..4096
  std::uint32_t alignment = 512;  // of buffers, offsets and lengths; a power of two (1 for a buffered file)
};

class SyncDevice final : public BlockDevice {
 public:
  SyncDevice() = default;
  SyncDevice(const SyncDevice&) = delete;
  SyncDevice& operator=(const SyncDevice&) = delete;

  // `descriptor` stays the caller's and open while the device is. Errors: invalid_argument, no_memory.
  Status open(int descriptor, const SyncOptions& options);

  Status submit(const Request& request) override;
  void flush() override {}
  std::size_t poll(std::span<Completion> out) override;
  void wait(int) override {}
  int poll_descriptor() const override { return -1; }
  std::uint32_t depth() const override { return depth_; }
  std::uint32_t in_flight() const override { return ready_; }
  std::uint32_t alignment() const override { return alignment_; }
  const char* name() const override { return "sync"; }

  const DeviceCounters& counters() const { return counters_; }
  void set_injector(Injector* injector) { injector_ = injector; }  // test seam

 private:
  PrivateMapping memory_;
  Completion* queue_ = nullptr;  // a ring of depth_ completions
  int descriptor_ = -1;
  std::uint32_t depth_ = 0, first_ = 0, ready_ = 0, alignment_ = 1;
  Injector* injector_ = nullptr;
  DeviceCounters counters_;
};

}  // namespace terrace::io
