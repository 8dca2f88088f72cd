// How one request becomes as many raw transfers as it takes: shared by the devices that talk to a file.
//
// Nouns: an *attempt* is one raw read or write of the kernel; its *raw result* is bytes moved or -errno. A
// *transfer* is a request with the bytes that its attempts have moved so far. Invariant: `done` only grows,
// and a transfer is finished exactly when done == length; an attempt that moves nothing new ends it with EIO,
// so a file that was cut short under its reader cannot make it spin. Threads: one user at a time, as its
// device. No heap, no errno.
#pragma once

#include <cstdint>

#include "io/block_device.hpp"

namespace terrace::io {

// What a device met below its contract. Shown, never acted upon.
struct DeviceCounters {
  std::uint64_t requests = 0;
  std::uint64_t attempts = 0;             // raw transfers given to the kernel
  std::uint64_t resumed_short = 0;        // attempts that moved a part, and were resumed
  std::uint64_t retried = 0;              // EINTR and EAGAIN
  std::uint64_t errors = 0;               // requests completed with an error
  std::uint64_t refused_completions = 0;  // completions nobody waits for: stale, doubled or foreign
  std::uint64_t system_calls = 0;         // calls that hand over or wait for requests
};

// Test seam under the contract: sees every attempt of a device and may bend it, so that the resume logic runs
// for real.
class Injector {
 public:
  // Bytes that this attempt may really move (1..length): a true short transfer.
  virtual std::uint32_t limit(const Request& request, std::uint32_t done, std::uint32_t length) = 0;
  // The result that the device shall see in place of `raw`.
  virtual long alter(const Request& request, std::uint32_t done, long raw) = 0;

 protected:
  ~Injector() = default;
};

enum class Verdict : std::uint8_t { finished, resume, failed };

struct Transfer {
  Request request;
  std::uint32_t done = 0;       // bytes moved for good
  std::uint32_t start = 0;      // where the attempt under way begins: `done`, rounded down to the alignment
  std::uint32_t fruitless = 0;  // attempts in a row that met EINTR or EAGAIN

  // The attempt that comes next. An odd end (a file whose length is no multiple of its sector) makes the next
  // attempt begin before the first missing byte, at the sector that holds it: O_DIRECT would refuse it
  // otherwise.
  std::uint32_t next(std::uint32_t alignment) {
    start = done - done % alignment;
    return request.length - start;
  }
  char* buffer() const { return static_cast<char*>(request.buffer) + start; }
  std::uint64_t offset() const { return request.offset + start; }

  // Judges the raw result of the attempt. `error` is set with Verdict::failed.
  Verdict judge(long raw, DeviceCounters& counters, int& error);
};

// Runs a transfer to its end on the spot; `attempt(transfer, length)` gives the raw result of one attempt.
// Returns the errno that the completion carries, 0 when all bytes were moved.
template <typename Attempt>
int run_transfer(Transfer& transfer, std::uint32_t alignment, Injector* injector, DeviceCounters& counters,
                 Attempt attempt) {
  for (;;) {
    std::uint32_t length = transfer.next(alignment);
    if (injector != nullptr) length = injector->limit(transfer.request, transfer.done, length);
    counters.attempts++;
    long raw = attempt(transfer, length);
    if (injector != nullptr) raw = injector->alter(transfer.request, transfer.done, raw);
    int error = 0;
    switch (transfer.judge(raw, counters, error)) {
      case Verdict::finished: return 0;
      case Verdict::failed: return error;
      case Verdict::resume: break;
    }
  }
}

// Whether a request keeps the contract of a device with this alignment.
bool well_formed(const Request& request, std::uint32_t alignment);

}  // namespace terrace::io
