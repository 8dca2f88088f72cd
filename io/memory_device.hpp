// A block device whose file is a piece of memory: for tests and for the model checker.
//
// With a latency, a request is served when its completion is delivered, after 1 to `latency_polls` polls and
// out of order by seed: a caller that reads or reuses a buffer too early gets wrong bytes, as it would with a
// disk. A request beyond the end completes with EIO. Threads: one user at a time. No heap, no errno.
#pragma once

#include "io/block_device.hpp"
#include "io/private_mapping.hpp"
#include "io/slots.hpp"
#include "io/transfer.hpp"

namespace terrace::io {

struct MemoryOptions {
  void* bytes = nullptr;  // the caller's, stays valid; null: a mapping of its own, zeroed
  std::uint64_t size_bytes = 0;
  std::uint32_t depth = 64;         // 1..4096
  std::uint32_t alignment = 1;      // what it demands of requests, to stand in for a stricter device
  std::uint32_t latency_polls = 0;  // 0: ready at the next poll, in order
  std::uint64_t seed = 1;           // of the order
};

class MemoryDevice final : public BlockDevice {
 public:
  MemoryDevice() = default;
  MemoryDevice(const MemoryDevice&) = delete;
  MemoryDevice& operator=(const MemoryDevice&) = delete;

  // Errors: invalid_argument, no_memory.
  Status open(const MemoryOptions& options);

  Status submit(const Request& request) override;
  void flush() override {}
  std::size_t poll(std::span<Completion> out) override;
  void wait(int) override {}
  int poll_descriptor() const override { return -1; }
  std::uint32_t depth() const override { return slots_.depth(); }
  std::uint32_t in_flight() const override { return slots_.used(); }
  std::uint32_t alignment() const override { return alignment_; }
  const char* name() const override { return "memory"; }

  char* bytes() { return bytes_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  const DeviceCounters& counters() const { return counters_; }
  void set_injector(Injector* injector) { injector_ = injector; }  // test seam

 private:
  void serve(Slot& slot);

  PrivateMapping table_, own_bytes_;
  SlotTable slots_;
  std::uint16_t* order_ = nullptr;  // slots in flight, oldest first
  char* bytes_ = nullptr;
  std::uint64_t size_bytes_ = 0, random_ = 1;
  std::uint32_t alignment_ = 1, latency_polls_ = 0;
  Injector* injector_ = nullptr;
  DeviceCounters counters_;
};

}  // namespace terrace::io
