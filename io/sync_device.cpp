#include "io/sync_device.hpp"

#include <bit>

#include "base/syscall.hpp"

namespace terrace::io {

Status SyncDevice::open(int descriptor, const SyncOptions& options) {
  if (options.depth == 0 || options.depth > kMaxDepth)
    return Status::failure(ErrorCode::invalid_argument, 0, "queue depth out of range");
  if (!std::has_single_bit(options.alignment))
    return Status::failure(ErrorCode::invalid_argument, 0, "alignment is no power of two");
  if (Status s = memory_.map(options.depth * sizeof(Completion)); !s.ok()) return s;
  queue_ = static_cast<Completion*>(memory_.data());
  descriptor_ = descriptor;
  depth_ = options.depth;
  first_ = ready_ = 0;
  alignment_ = options.alignment;
  counters_ = {};
  return Status::success();
}

Status SyncDevice::submit(const Request& request) {
  if (!well_formed(request, alignment_))
    return Status::failure(ErrorCode::invalid_argument, 0, "request breaks the device's contract");
  if (ready_ == depth_) return Status::failure(ErrorCode::busy, 0, "queue full");
  Transfer transfer{request};
  counters_.requests++;
  const int error = run_transfer(transfer, alignment_, injector_, counters_,
                                 [this](const Transfer& t, std::uint32_t length) {
                                   counters_.system_calls++;
                                   return sys(t.request.op == Op::read ? SYS_pread64 : SYS_pwrite64,
                                              descriptor_, t.buffer(), length, t.offset());
                                 });
  queue_[(first_ + ready_++) % depth_] = {request.id, error};
  return Status::success();
}

std::size_t SyncDevice::poll(std::span<Completion> out) {
  std::size_t n = 0;
  for (; n < out.size() && ready_ != 0; n++, ready_--) {
    out[n] = queue_[first_];
    first_ = (first_ + 1) % depth_;
  }
  return n;
}

}  // namespace terrace::io
