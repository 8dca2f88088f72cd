#include "runtime/mover.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/linux_abi.hpp"
#include "base/syscall.hpp"
#include "base/types.hpp"

namespace terrace::runtime {
namespace {

constexpr std::uint64_t kWanted = abi::kFeatureMove | abi::kFeatureWpUnpopulated |
                                  UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_REMAP |
                                  UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP;
constexpr std::uint64_t kTrashWanted = abi::kFeatureMove | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
// An unpin may lag behind its completion by microseconds; a page that the program pinned stays so.
constexpr std::uint64_t kBusyNs = 300'000;
// On the way home the other piece of a huge page may be pinned by an I/O of ours: that ends by itself, and
// the copy path is the last resort.
constexpr std::uint64_t kBusyHomeNs = 2'000'000'000;

int handshake(int descriptor, std::uint64_t features) {
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  return int(-sys(SYS_ioctl, descriptor, UFFDIO_API, &api));
}

int watch(int descriptor, void* start, std::uint64_t bytes, std::uint64_t mode) {
  uffdio_register r{};
  r.range = {std::uint64_t(start), bytes};
  r.mode = mode;
  return int(-sys(SYS_ioctl, descriptor, UFFDIO_REGISTER, &r));
}

}  // namespace

Status Mover::open(int descriptor) {
  if (descriptor < 0) {
    const long made = sys(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (made < 0) return Status::from_errno(int(-made), "userfaultfd");
    descriptor = int(made);
  }
  descriptor_ = descriptor;
  if (const int error = handshake(descriptor_, kWanted))
    return Status::failure(ErrorCode::not_supported, error,
                           "userfaultfd features (MOVE and events, kernel 6.8)");
  const long second = sys(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  if (second < 0) return Status::from_errno(int(-second), "userfaultfd for the trash range");
  trash_descriptor_ = int(second);
  if (const int error = handshake(trash_descriptor_, kTrashWanted))
    return Status::failure(ErrorCode::not_supported, error, "userfaultfd MOVE for the trash range");
  return Status::success();
}

void Mover::close() {
  if (descriptor_ >= 0) (void)sys(SYS_close, descriptor_);
  if (trash_descriptor_ >= 0) (void)sys(SYS_close, trash_descriptor_);
  if (mapping_ != nullptr) (void)sys(SYS_munmap, mapping_, 3 * kChunkBytes);
  descriptor_ = trash_descriptor_ = -1;
  mapping_ = nullptr;
}

Status Mover::watch_program(void* start, std::uint64_t bytes) {
  if (const int error = watch(descriptor_, start, bytes, UFFDIO_REGISTER_MODE_MISSING))
    return Status::from_errno(error, "registering the arena with userfaultfd");
  return Status::success();
}

void Mover::unwatch_program(void* start, std::uint64_t bytes) {
  uffdio_range range{std::uint64_t(start), bytes};
  (void)sys(SYS_ioctl, descriptor_, UFFDIO_UNREGISTER, &range);
}

Status Mover::watch_shadow(void* start, std::uint64_t bytes) {
  if (const int error = watch(descriptor_, start, bytes, UFFDIO_REGISTER_MODE_WP))
    return Status::from_errno(error, "registering the shadow with userfaultfd");
  return Status::success();
}

Status Mover::init_trash() {
  const std::uint64_t bytes = 2 * kChunkBytes;
  const long mapped = sys(SYS_mmap, nullptr, bytes + kChunkBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped < 0 && mapped > -4096) return Status::from_errno(int(-mapped), "mapping the trash range");
  mapping_ = reinterpret_cast<void*>(mapped);
  trash_ = reinterpret_cast<std::byte*>(round_up(std::uint64_t(mapped), kChunkBytes));
  (void)sys(SYS_madvise, trash_, bytes,
            MADV_HUGEPAGE);  // flags must equal the source's, and whole pages may move
  (void)sys(SYS_madvise, trash_, bytes, MADV_DONTDUMP);
  (void)sys(SYS_madvise, trash_, bytes, MADV_DONTFORK);
  if (const int error = watch(trash_descriptor_, trash_, bytes, UFFDIO_REGISTER_MODE_WP))
    return Status::from_errno(error, "registering the trash range with userfaultfd");
  return Status::success();
}

MoveOutcome Mover::move(void* destination, void* source, std::uint64_t bytes) {
  return move_through(descriptor_, destination, source, bytes, Towards::shadow);
}

MoveOutcome Mover::move_home(void* home, void* frame, std::uint64_t bytes) {
  return move_through(descriptor_, home, frame, bytes, Towards::program);
}

MoveOutcome Mover::move_through(int descriptor, void* destination, void* source, std::uint64_t bytes,
                                Towards towards) {
  MoveOutcome outcome;
  std::uint64_t busy_since_ns = 0;
  if (towards == Towards::program && backlog_size_ != 0) zero_dropped(destination, source, bytes);
  while (outcome.moved_bytes < bytes) {
    abi::UffdioMove m{};
    m.dst = std::uint64_t(destination) + outcome.moved_bytes;
    m.src = std::uint64_t(source) + outcome.moved_bytes;
    m.len = bytes - outcome.moved_bytes;
    m.mode = abi::kMoveModeAllowSrcHoles;
    const long result = sys(SYS_ioctl, descriptor, abi::kUffdioMove, &m);
    if (m.move > 0) outcome.moved_bytes += std::uint64_t(m.move);
    if (result == 0) continue;
    const int error = m.move < 0 ? int(-m.move) : int(-result);
    if (error == EAGAIN) {
      if (m.move <= 0) {
        read_into_backlog();
        if (towards == Towards::program) {
          zero_dropped(static_cast<std::byte*>(destination) + outcome.moved_bytes,
                       static_cast<std::byte*>(source) + outcome.moved_bytes, bytes - outcome.moved_bytes);
        }
        (void)sys(SYS_sched_yield);
      }
      continue;
    }
    if (error == EBUSY) {
      // By time, not by count: a try on a huge page with one pinned piece costs a failed split of it, 150 us.
      const std::uint64_t now = monotonic_ns();
      if (busy_since_ns == 0) busy_since_ns = now;
      if (now - busy_since_ns < (towards == Towards::program ? kBusyHomeNs : kBusyNs)) {
        (void)sys(SYS_sched_yield);
        continue;
      }
    }
    outcome.errno_value = error;
    return outcome;
  }
  return outcome;
}

int Mover::copy_in(void* home, void* frame, std::uint64_t bytes) {
  zero_dropped(home, frame, bytes);
  std::uint64_t step = bytes;
  for (std::uint64_t done = 0; done < bytes;) {
    uffdio_copy c{};
    c.dst = std::uint64_t(home) + done;
    c.src = std::uint64_t(frame) + done;
    c.len = step < bytes - done ? step : bytes - done;
    const long result = sys(SYS_ioctl, descriptor_, UFFDIO_COPY, &c);
    if (c.copy > 0) done += std::uint64_t(c.copy);
    if (result == 0) continue;
    const int error = c.copy < 0 ? int(-c.copy) : int(-result);
    if (error == EEXIST) {
      done += kPageBytes;
    } else if (error == EAGAIN) {
      read_into_backlog();
      zero_dropped(static_cast<std::byte*>(home) + done, static_cast<std::byte*>(frame) + done, bytes - done);
      (void)sys(SYS_sched_yield);
    } else if (error == ENOENT && step > kPageBytes) {
      step = kPageBytes;  // the range lies in several mappings (mprotect of a part): one call serves one of
                          // them only
    } else if (error == ENOENT) {
      done += kPageBytes;  // unmapped meanwhile
    } else {
      return error;
    }
  }
  return 0;
}

void Mover::fill_zero_page(void* page) {
  for (;;) {
    uffdio_zeropage z{};
    z.range = {std::uint64_t(page), kPageBytes};
    const long result = sys(SYS_ioctl, descriptor_, UFFDIO_ZEROPAGE, &z);
    if (result == -EAGAIN) {
      read_into_backlog();
      (void)sys(SYS_sched_yield);
      continue;
    }
    if (result != 0)
      wake(page, kPageBytes);  // present already, or no longer mapped: let the thread try again
    return;
  }
}

void Mover::wake(void* start, std::uint64_t bytes) {
  uffdio_range range{std::uint64_t(start), bytes};
  (void)sys(SYS_ioctl, descriptor_, UFFDIO_WAKE, &range);
}

void Mover::discard(void* start, std::uint64_t bytes) {
  // Pieces leave a page table behind at their destination, which would make every later whole page split: two
  // places.
  std::byte* const place = bytes == kChunkBytes ? trash_ : trash_ + kChunkBytes;
  (void)move_through(trash_descriptor_, place, start, bytes, Towards::shadow);
  (void)sys(SYS_madvise, place, bytes, MADV_DONTNEED);
}

void Mover::read_into_backlog() {
  while (backlog_size_ < kBacklog) {
    uffd_msg message;
    if (sys(SYS_read, descriptor_, &message, sizeof message) != long(sizeof message)) return;
    if (in_backlog(message)) continue;
    backlog_[(backlog_head_ + backlog_size_++) % kBacklog] = message;
  }
}

// A thread that is interrupted by signals, or that drops one range over and over, must not fill the backlog.
bool Mover::in_backlog(const uffd_msg& message) const {
  for (std::uint32_t i = 0; i < backlog_size_; ++i) {
    const uffd_msg& known = backlog_[(backlog_head_ + i) % kBacklog];
    if (known.event != message.event) continue;
    if (message.event == UFFD_EVENT_PAGEFAULT && known.arg.pagefault.address == message.arg.pagefault.address)
      return true;
    if (message.event == UFFD_EVENT_REMOVE && known.arg.remove.start == message.arg.remove.start &&
        known.arg.remove.end == message.arg.remove.end)
      return true;
  }
  return false;
}

// Zeroes in the frame what the messages of the backlog say was dropped from [home, home + bytes).
void Mover::zero_dropped(void* home, void* frame, std::uint64_t bytes) const {
  const std::uint64_t low = std::uint64_t(home), high = low + bytes;
  for (std::uint32_t i = 0; i < backlog_size_; ++i) {
    const uffd_msg& message = backlog_[(backlog_head_ + i) % kBacklog];
    std::uint64_t from = 0, to = 0;
    if (message.event == UFFD_EVENT_REMOVE || message.event == UFFD_EVENT_UNMAP) {
      from = message.arg.remove.start;
      to = message.arg.remove.end;
    } else if (message.event == UFFD_EVENT_REMAP) {
      from = message.arg.remap.from;
      to = from + message.arg.remap.len;
    }
    if (from < low) from = low;
    if (to > high) to = high;
    if (from < to) std::memset(static_cast<std::byte*>(frame) + (from - low), 0, to - from);
  }
}

bool Mover::next_message(uffd_msg& message) {
  if (backlog_size_ == 0) return sys(SYS_read, descriptor_, &message, sizeof message) == long(sizeof message);
  message = backlog_[backlog_head_];
  backlog_head_ = (backlog_head_ + 1) % kBacklog;
  --backlog_size_;
  return true;
}

}  // namespace terrace::runtime
