#include "io/uring_device.hpp"

#include <liburing.h>
#include <poll.h>

#include <bit>
#include <cerrno>
#include <new>

#include "base/clock.hpp"
#include "base/syscall.hpp"

namespace terrace::io {

namespace {
// Room for the test's strays beside one attempt per request.
constexpr std::uint32_t kSpareEntries = 8;
constexpr std::uint64_t kDrainLimitNs = 10 * kNsPerS;

bool transient(int errno_value) {
  return errno_value == EINTR || errno_value == EAGAIN || errno_value == EBUSY;
}

}  // namespace

struct UringDevice::Ring {
  io_uring ring;
};

Status UringDevice::open(int descriptor, const UringOptions& options) {
  if (ring_ != nullptr) return Status::failure(ErrorCode::invalid_argument, 0, "device is open already");
  if (options.depth == 0 || options.depth > kMaxDepth)
    return Status::failure(ErrorCode::invalid_argument, 0, "queue depth out of range");
  if (!std::has_single_bit(options.alignment))
    return Status::failure(ErrorCode::invalid_argument, 0, "alignment is no power of two");

  constexpr std::uint64_t ring_bytes = round_up(sizeof(Ring), 64);
  if (Status s = memory_.map(ring_bytes + SlotTable::table_bytes(options.depth)); !s.ok()) return s;
  ring_ = ::new (memory_.data()) Ring{};

  // COOP_TASKRUN: completions wait for our next system call instead of interrupting us; kernels before 5.19
  // refuse it.
  int r = -EINVAL;
  for (const unsigned flags : {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0u}) {
    io_uring_params params{};
    params.flags = flags | IORING_SETUP_CLAMP;
    r = io_uring_queue_init_params(options.depth + kSpareEntries, &ring_->ring, &params);
    if (r != -EINVAL) break;
  }
  if (r < 0) {
    ring_ = nullptr;
    memory_.reset();
    const char* text =
        r == -EPERM    ? "io_uring is forbidden here (seccomp or kernel.io_uring_disabled)"
        : r == -ENOSYS ? "this kernel has no io_uring"
        // Since 6.14 the queues themselves are charged: a user without CAP_IPC_LOCK needs some 24 KiB.
        : r == -ENOMEM ? "the limit on locked memory leaves no room for a ring (ulimit -l)"
                       : "io_uring could not be set up";
    return Status::from_errno(-r, text);
  }
  slots_.init(static_cast<char*>(memory_.data()) + ring_bytes, options.depth);
  descriptor_ = descriptor;
  alignment_ = options.alignment;
  broken_errno_ = 0;
  counters_ = {};
  return Status::success();
}

void UringDevice::close() {
  if (ring_ == nullptr) return;
  const std::uint64_t limit = monotonic_ns() + kDrainLimitNs;
  Completion ignored[32];
  while (in_flight() != 0 && monotonic_ns() < limit) {
    wait(100);
    (void)poll(ignored);
  }
  io_uring_queue_exit(&ring_->ring);
  ring_ = nullptr;
  memory_.reset();
  slots_ = {};
}

Status UringDevice::submit(const Request& request) {
  if (!well_formed(request, alignment_))
    return Status::failure(ErrorCode::invalid_argument, 0, "request breaks the device's contract");
  if (broken_errno_ != 0) return Status::failure(ErrorCode::io_error, broken_errno_, "the ring is broken");
  Slot* slot = slots_.take(request);
  if (slot == nullptr) return Status::failure(ErrorCode::busy, 0, "queue full");
  counters_.requests++;
  start_attempt(*slot);
  return Status::success();
}

void UringDevice::start_attempt(Slot& slot) {
  Transfer& t = slot.transfer;
  std::uint32_t length = t.next(alignment_);
  if (injector_ != nullptr) length = injector_->limit(t.request, t.done, length);
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring);
  TERRACE_CHECK(sqe != nullptr, "one attempt per request and depth <= entries: an entry is free");
  if (t.request.op == Op::read)
    io_uring_prep_read(sqe, descriptor_, t.buffer(), length, t.offset());
  else
    io_uring_prep_write(sqe, descriptor_, t.buffer(), length, t.offset());
  sqe->user_data = newest_tag_ = slots_.new_tag(slot);
  counters_.attempts++;
}

void UringDevice::flush() {
  if (ring_ == nullptr || broken_errno_ != 0 || io_uring_sq_ready(&ring_->ring) == 0) return;
  counters_.system_calls++;
  const int r = io_uring_submit(&ring_->ring);
  // What a transient failure leaves stays in the queue and goes with the next flush, poll or wait.
  // Else the kernel takes no more requests (a seccomp filter set since, a closed ring): those not handed over
  // fail, those in the kernel may still complete.
  if (r < 0 && !transient(-r)) broken_errno_ = -r;
}

std::size_t UringDevice::poll(std::span<Completion> out) {
  if (ring_ == nullptr) return 0;
  std::size_t n = 0;
  io_uring_cqe* cqe;
  while (n < out.size() && io_uring_peek_cqe(&ring_->ring, &cqe) == 0 && cqe != nullptr) {
    const std::uint64_t tag = cqe->user_data;
    long raw = cqe->res;
    io_uring_cqe_seen(&ring_->ring, cqe);
    Slot* slot = slots_.find(tag);
    if (slot == nullptr) {
      counters_.refused_completions++;
      continue;
    }
    slot->tag = 0;
    Transfer& t = slot->transfer;
    if (injector_ != nullptr) raw = injector_->alter(t.request, t.done, raw);
    int error = 0;
    Verdict verdict = t.judge(raw, counters_, error);
    if (verdict == Verdict::resume && broken_errno_ != 0) verdict = Verdict::failed, error = broken_errno_;
    if (verdict == Verdict::resume) {
      start_attempt(*slot);
      continue;
    }
    out[n++] = {t.request.id, verdict == Verdict::finished ? 0 : error};
    slots_.give_back(*slot);
  }
  flush();  // attempts that were resumed, or that an earlier flush left
  if (broken_errno_ != 0) n += fail_unsubmitted(out.subspan(n));
  return n;
}

// Completes requests whose attempt never reached the kernel.
std::size_t UringDevice::fail_unsubmitted(std::span<Completion> out) {
  io_uring_sq& sq = ring_->ring.sq;
  std::size_t n = 0;
  for (unsigned at = *sq.khead; at != sq.sqe_tail && n < out.size(); at++) {
    Slot* slot = slots_.find(sq.sqes[at & *sq.kring_mask].user_data);
    if (slot == nullptr) continue;
    out[n++] = {slot->transfer.request.id, broken_errno_};
    counters_.errors++;
    slots_.give_back(*slot);
  }
  return n;
}

void UringDevice::wait(int timeout_ms) {
  if (ring_ == nullptr) return;
  io_uring& ring = ring_->ring;
  if (timeout_ms <= 0 || in_flight() == 0 || broken_errno_ != 0 || io_uring_cq_ready(&ring) != 0)
    return flush();
  const long nanoseconds = (timeout_ms % 1000) * 1'000'000L;
  if ((ring.features & IORING_FEAT_EXT_ARG) != 0) {  // 5.11: hands over and waits in one call
    __kernel_timespec timeout{timeout_ms / 1000, nanoseconds};
    io_uring_cqe* cqe = nullptr;
    counters_.system_calls++;
    const int r = io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &timeout, nullptr);
    if (r < 0 && r != -ETIME && !transient(-r)) broken_errno_ = -r;
    return;
  }
  flush();
  counters_.system_calls++;
  pollfd p{ring.ring_fd, POLLIN, 0};
  timespec timeout{timeout_ms / 1000, nanoseconds};
  (void)sys(SYS_ppoll, &p, 1, &timeout, nullptr, 0);
}

int UringDevice::poll_descriptor() const { return ring_ == nullptr ? -1 : ring_->ring.ring_fd; }

std::uint32_t UringDevice::completion_entries() const {
  return ring_ == nullptr ? 0 : *ring_->ring.cq.kring_entries;
}

void UringDevice::deliver_stray(std::uint64_t tag) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring);
  TERRACE_CHECK(sqe != nullptr, "an entry is free");
  io_uring_prep_nop(sqe);
  sqe->user_data = tag;
}

}  // namespace terrace::io
