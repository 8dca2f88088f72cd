// The seam between those who move bytes and what moves them.
//
// Nouns: a *request* is one read or write of `length` bytes at `offset` of the device's file; its `id` is
// chosen by the caller and given back with the *completion*. A device takes requests into a bounded queue and
// completes each of them exactly once, whole or with an error: it loops over short transfers, EINTR and
// EAGAIN itself, and treats a transfer of 0 bytes as an error (EIO). Ids given out twice at one time, and
// completions nobody asked for, are the device's fault to detect, never the caller's.
//
// Invariant: requests in flight <= depth(), and the completion queue can hold them all.
// Threads: one user at a time. No heap after creation, no stdio, no errno: usable inside a fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.hpp"

namespace terrace::io {

// The most that one request may ask for: what the kernel moves in one call, rounded down to a chunk.
inline constexpr std::uint32_t kMaxRequestBytes = 1022u << 21;

enum class Op : std::uint8_t { read, write };

struct Request {
  std::uint64_t id = 0;
  Op op = Op::read;
  void* buffer = nullptr;  // stays valid until the completion; aligned to the device's alignment()
  std::uint64_t offset = 0;
  std::uint32_t length = 0;  // bytes, > 0; a multiple of alignment()
};

struct Completion {
  std::uint64_t id = 0;
  int errno_value = 0;  // 0: all `length` bytes were moved
};

class BlockDevice {
 public:
  // Queues a request; it may start at once or at flush(). Returns busy when depth() requests are in flight
  // (poll, then try again), invalid_argument for a request that breaks the contract above. Other errors come
  // as completions.
  virtual Status submit(const Request& request) = 0;
  // Hands what is queued to the kernel (one system call for all of it). Cheap when nothing is queued.
  virtual void flush() = 0;
  // Takes up to out.size() completions without waiting; returns how many.
  virtual std::size_t poll(std::span<Completion> out) = 0;
  // Waits until a completion is ready, or timeout_ms has passed (0: returns at once). Flushes first. Returns
  // at once when nothing is in flight, and perhaps early: poll() decides.
  virtual void wait(int timeout_ms) = 0;
  // A descriptor that polls readable when a completion is ready, or -1 where completions are ready at once.
  virtual int poll_descriptor() const = 0;

  virtual std::uint32_t depth() const = 0;
  virtual std::uint32_t in_flight() const = 0;
  // Bytes that buffers, offsets and lengths are multiples of (512 or 4096 for O_DIRECT, 1 for memory).
  virtual std::uint32_t alignment() const = 0;
  virtual const char* name() const = 0;  // `io_uring`, `sync`, `memory`, `faulty`

 protected:
  ~BlockDevice() =
      default;  // owned as concrete types: no deleting destructor, so nothing of libstdc++ is needed
};

}  // namespace terrace::io
