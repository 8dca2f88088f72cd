// The page that a job's supervisor (`terrace run`) shares with the processes of its job.
//
// The supervisor makes it as a memfd and names it in TERRACE_JOB (`/proc/PID/fd/N`); a process maps it before
// its first object. Settings are written once, before the program starts. The first process that allocates an
// object claims `owner`; the others pass through and are counted. Counters are written by the owner (its heap
// and its pager) with relaxed atomics and may be read at any time. Threads and processes: every field is
// either constant after the start or atomic.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace terrace::runtime {

inline constexpr std::uint64_t kJobPageMagic = 0x3145434152524554;  // "TERRACE1"
inline constexpr std::uint32_t kJobPageVersion = 1;
inline constexpr std::size_t kJobPageBytes = 16384;
inline constexpr const char* kJobPageVariable = "TERRACE_JOB";

enum class PolicyKind : std::uint32_t { stream = 0, lru = 1 };

// What the pager is doing for its job, as the supervisor sees it.
enum class PagerPhase : std::uint32_t {
  none,  // no pager: everything still fits (or no process manages objects)
  starting,
  running,
  failed,  // it could not start: the job passes through; `message` says why and the remedy
  fatal,   // it cannot serve a block: the job must end with `message`, status 124
};

struct JobSettings {
  std::uint64_t dram_bytes;
  std::uint64_t min_object_bytes;
  std::uint64_t store_capacity_bytes;  // 0: what the file system has free
  std::uint64_t force_eviction_seed;   // used when force_eviction is 1
  std::uint32_t force_eviction;
  PolicyKind policy;
  std::uint32_t io_timeout_ms;
  std::uint32_t io_depth;
  char store_directory[1024];
  char supervisor_socket[108];  // abstract Unix socket (without the leading 0) that takes the duplicate
                                // userfaultfd
};

// Names and order are those of the --stats object (DESIGN section 12); bytes and counts are totals of the
// job.
struct JobCounters {
  std::atomic<std::uint64_t> dram_peak_bytes;    // highest resident size of the owner that was seen
  std::atomic<std::uint64_t> object_peak_bytes;  // highest live bytes of objects
  std::atomic<std::uint64_t> object_bytes;       // live bytes of objects now
  std::atomic<std::uint64_t> faults_demand, faults_rescued, faults_first;
  std::atomic<std::uint64_t> stall_ns;  // time between reading a fault and answering it
  std::atomic<std::uint64_t> bytes_in, bytes_in_prefetched, bytes_in_vain, bytes_out;
  std::atomic<std::uint64_t> blocks_dropped_clean, blocks_stored;
  std::atomic<std::uint64_t> moves, copies;
  std::atomic<std::uint64_t> overshoots;  // chunks beyond the limit because nothing could leave
  std::atomic<std::uint64_t> checksum_failures, io_errors;
  std::atomic<std::uint64_t>
      bytes_contiguous;  // bytes of I/O whose buffer was one huge page or a whole piece of one
  std::atomic<std::uint64_t> frames_recycled;  // allocations served from mapped frames of freed blocks
};

// Fallbacks that were taken, counted by what was missing. Keep in step with kFallbackNames.
enum class Fallback : std::uint32_t {
  sync_io,          // no io_uring
  buffered_store,   // O_DIRECT refused
  copy_in,          // UFFDIO_MOVE not possible, UFFDIO_COPY used
  passed_through,   // a process that does not manage objects
  no_pager,         // userfaultfd not available: nothing is tiered
  no_duplicate,     // the supervisor did not take the descriptor
  unmovable_block,  // a victim was pinned or not writable
  no_arena,         // no address space for objects: everything is libc's
  store_full,       // allocations were refused because the store has no room for them
  count_,
};
inline constexpr const char* kFallbackNames[] = {
    "sync_io",      "buffered_store",  "copy_in",  "passed_through", "no_pager",
    "no_duplicate", "unmovable_block", "no_arena", "store_full",
};
static_assert(sizeof kFallbackNames / sizeof *kFallbackNames == std::size_t(Fallback::count_));

struct JobPage {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t settings_bytes;  // sizeof(JobSettings), so that a foreign build is refused
  JobSettings settings;

  std::atomic<std::uint32_t> owner_pid;  // 0: nobody manages objects yet
  std::atomic<std::uint32_t> pager_pid;
  std::atomic<PagerPhase> phase;
  std::atomic<std::uint64_t> heartbeat;  // grows with each round of the pager
  std::atomic<std::uint64_t>
      heartbeat_due_ns;                      // monotonic time by which the next beat was promised (0: asleep)
  std::atomic<std::uint32_t> processes;      // that loaded the preload
  std::atomic<std::uint32_t> message_ready;  // 1 when `message` is complete
  char message[504];                         // one line, NUL-terminated: what, cause, remedy
  std::atomic<std::uint64_t> fallbacks[std::size_t(Fallback::count_)];
  JobCounters counters;
};
static_assert(sizeof(JobPage) <= kJobPageBytes);

// Leaves the one line that the supervisor prints, cut to what fits.
inline void say(JobPage& page, std::string_view line) {
  const std::size_t size = line.size() < sizeof page.message - 1 ? line.size() : sizeof page.message - 1;
  line.copy(page.message, size);
  page.message[size] = 0;
  page.message_ready.store(1, std::memory_order_release);
}

}  // namespace terrace::runtime
