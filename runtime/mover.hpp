// The pager's hands: moving pages between the program's memory and the shadow by userfaultfd.
//
// One context watches the program's arena (missing pages) and the shadow (write-protect mode only, so that a
// hole in it reads as zero instead of faulting on the pager itself): a MOVE looks at pending changes of its
// own context only, and with two contexts a range unmapped and mapped anew while its event is unread would be
// moved away and read as zeros. A second, event-free context owns the *trash*: pages moved there can be
// dropped by madvise without waiting for an event that only the pager itself could read.
//
// Threads: the pager only. Raw system calls, no errno.
#pragma once

#include <linux/userfaultfd.h>

#include <cstddef>
#include <cstdint>

#include "base/status.hpp"

namespace terrace::runtime {

struct MoveOutcome {
  std::uint64_t moved_bytes = 0;  // from the start of the range, holes counted
  int errno_value = 0;  // why it stopped: EBUSY (pinned), EEXIST (destination present), EINVAL (not writable)
};

class Mover {
 public:
  // `descriptor`: an open userfaultfd (brokered), or -1 to make one. Errors: no_permission, not_supported (no
  // MOVE).
  Status open(int descriptor = -1);
  void close();

  Status watch_program(void* start, std::uint64_t bytes);
  // For a pager that could not start: faults there are the kernel's again, and whoever waits on one goes on.
  void unwatch_program(void* start, std::uint64_t bytes);
  Status watch_shadow(void* start, std::uint64_t bytes);
  Status init_trash();

  // Moves pages; holes in the source are skipped and stay holes. Retries while the address space is changing
  // (reading pending messages into the backlog meanwhile) and, for a short time, while pages are pinned by an
  // I/O that has just ended.
  MoveOutcome move(void* destination, void* source, std::uint64_t bytes);
  // The same towards the program. What unread or unhandled messages say that the program has dropped of
  // `home` is zeroed in the frame first: the kernel goes on as soon as such a message is read, and old bytes
  // moved home behind its back would stay there.
  MoveOutcome move_home(void* home, void* frame, std::uint64_t bytes);
  // Copies into absent pages (which the kernel allocates), with the care of move_home: where MOVE cannot
  // serve. 0 or errno; pages that are present, or no longer mapped, are skipped.
  int copy_in(void* home, void* frame, std::uint64_t bytes);
  // Makes one page read as zero unless it is present; wakes whoever waits on it.
  void fill_zero_page(void* page);
  void wake(void* start, std::uint64_t bytes);
  // Drops pages of the shadow (at most one chunk) and gives their memory back to the system.
  void discard(void* start, std::uint64_t bytes);

  // Next message, backlog first. False when there is none.
  bool next_message(uffd_msg& message);
  // Whether messages were read that next_message() has not given out yet.
  bool has_backlog() const { return backlog_size_ != 0; }

  int descriptor() const { return descriptor_; }

 private:
  enum class Towards : std::uint8_t { shadow, program };
  MoveOutcome move_through(int descriptor, void* destination, void* source, std::uint64_t bytes,
                           Towards towards);
  void read_into_backlog();
  bool in_backlog(const uffd_msg& message) const;
  void zero_dropped(void* home, void* frame, std::uint64_t bytes) const;

  int descriptor_ = -1;
  int trash_descriptor_ = -1;
  void* mapping_ = nullptr;     // of the trash, unaligned
  std::byte* trash_ = nullptr;  // a chunk for whole huge pages, then one for pieces
  // Room for a message of each of thousands of threads: a MOVE cannot go on while an event is unread.
  static constexpr std::uint32_t kBacklog = 4096;
  uffd_msg backlog_[kBacklog];
  std::uint32_t backlog_head_ = 0, backlog_size_ = 0;
};

}  // namespace terrace::runtime
