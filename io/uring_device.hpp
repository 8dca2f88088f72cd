// A block device over an open file through io_uring: requests are batched, one system call hands over all of
// them.
//
// Nothing of the program's memory is registered with the ring, so the kernel holds pages only while a request
// runs. Invariant: each request has at most one attempt in the kernel, requests <= depth <= entries of both
// queues, so neither queue can overflow. Completions that match no attempt are refused and counted
// (slots.hpp). Threads: one user at a time. After open() no heap, no errno, no TLS: only raw system calls
// (liburing's are raw too).
#pragma once

#include "io/block_device.hpp"
#include "io/private_mapping.hpp"
#include "io/slots.hpp"
#include "io/transfer.hpp"

namespace terrace::io {

struct UringOptions {
  std::uint32_t depth = 64;       // requests in flight, 1..4096
  std::uint32_t alignment = 512;  // of buffers, offsets and lengths; a power of two (1 for a buffered file)
};

class UringDevice final : public BlockDevice {
 public:
  UringDevice() = default;
  UringDevice(const UringDevice&) = delete;
  UringDevice& operator=(const UringDevice&) = delete;
  ~UringDevice() { close(); }

  // `descriptor` stays the caller's and open while the device is. Errors: not_supported (no io_uring:
  // ENOSYS), no_permission (refused by seccomp or sysctl: EPERM), no_memory, invalid_argument: in each case
  // SyncDevice serves.
  Status open(int descriptor, const UringOptions& options);
  // Waits until nothing is in flight (at most 10 s), for the kernel may still write into the buffers until
  // then.
  void close();

  Status submit(const Request& request) override;
  void flush() override;
  std::size_t poll(std::span<Completion> out) override;
  void wait(int timeout_ms) override;
  int poll_descriptor() const override;
  std::uint32_t depth() const override { return slots_.depth(); }
  std::uint32_t in_flight() const override { return slots_.used(); }
  std::uint32_t alignment() const override { return alignment_; }
  const char* name() const override { return "io_uring"; }

  const DeviceCounters& counters() const { return counters_; }
  // Entries of the completion queue (>= depth).
  std::uint32_t completion_entries() const;

  // Test seams: bend attempts; let the ring deliver a completion with a tag of the test's choice (through a
  // no-op); the tag of the newest attempt.
  void set_injector(Injector* injector) { injector_ = injector; }
  void deliver_stray(std::uint64_t tag);
  std::uint64_t newest_tag() const { return newest_tag_; }

 private:
  struct Ring;
  void start_attempt(Slot& slot);
  std::size_t fail_unsubmitted(std::span<Completion> out);

  Ring* ring_ = nullptr;  // at the start of memory_
  PrivateMapping memory_;
  SlotTable slots_;
  int descriptor_ = -1;
  std::uint32_t alignment_ = 1;
  int broken_errno_ = 0;  // why the ring takes no more requests
  Injector* injector_ = nullptr;
  std::uint64_t newest_tag_ = 0;
  DeviceCounters counters_;
};

}  // namespace terrace::io
