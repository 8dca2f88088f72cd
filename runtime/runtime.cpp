#include "runtime/runtime.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/clock.hpp"
#include "base/line.hpp"
#include "base/resident.hpp"
#include "base/settings.hpp"
#include "base/syscall.hpp"
#include "io/store.hpp"
#include "io/sync_device.hpp"
#include "io/uring_device.hpp"
#include "runtime/mover.hpp"
#include "runtime/pager.hpp"
#include "runtime/pager_process.hpp"
#include "tiering/lru.hpp"
#include "tiering/stream.hpp"

namespace terrace::runtime {
namespace {

// How much the heap may grow before the rest of the program is looked at again.
constexpr std::uint64_t kPressureStepBytes = 32 * kMiB;
constexpr int kPagerTimeoutMs = 10;

// What the pager's process works with. Raw storage, so that no destructor ever runs on it.
struct PagerSide {
  Mover mover;
  io::Store store;
  io::UringDevice uring;
  io::SyncDevice sync;
  tiering::StreamPolicy stream;
  tiering::LruPolicy lru;
  Pager pager;
};

enum class Outcome : std::uint32_t { pending, running, failed };

struct State {
  Arena arena;
  PagerLink link;
  Heap heap;
  JobPage* job = nullptr;
  int pid = 0;
  bool attached = false;
  Attachment attachment = Attachment::pass_through;
  bool start_tried = false;
  std::atomic<Outcome> outcome{Outcome::pending};
  alignas(64) unsigned char pager_side[sizeof(PagerSide)];
};

// Zeroed until load() makes a State of it: what is asked before that is answered with "none".
alignas(64) unsigned char state_storage[sizeof(State)];
bool loaded = false;
State& state() { return *reinterpret_cast<State*>(state_storage); }

JobPage* map_job_page() {
  const char* path = getenv(kJobPageVariable);
  if (path == nullptr || *path == 0) return nullptr;
  const long descriptor = sys(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
  if (descriptor < 0) return nullptr;
  const long mapped =
      sys(SYS_mmap, nullptr, kJobPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  (void)sys(SYS_close, descriptor);
  if (mapped < 0 && mapped > -4096) return nullptr;
  auto* const page = reinterpret_cast<JobPage*>(mapped);
  if (page->magic != kJobPageMagic || page->version != kJobPageVersion ||
      page->settings_bytes != sizeof(JobSettings)) {
    (void)sys(SYS_munmap, page, kJobPageBytes);
    return nullptr;
  }
  // A child would count its memory as its parent's.
  return page;
}

// One process manages the job's objects: the first that allocates one, or the next after that one has ended.
bool claim(JobPage* job, int pid) {
  for (;;) {
    std::uint32_t owner = job->owner_pid.load(std::memory_order_acquire);
    if (owner == std::uint32_t(pid)) return true;
    if (owner != 0 && sys(SYS_kill, owner, 0) != -ESRCH) return false;
    if (job->owner_pid.compare_exchange_strong(owner, std::uint32_t(pid), std::memory_order_acq_rel))
      return true;
  }
}

std::uint64_t resident_now() {
  const int descriptor = open_resident_size();
  if (descriptor < 0) return 0;
  const std::uint64_t bytes = resident_bytes(descriptor);
  (void)sys(SYS_close, descriptor);
  return bytes;
}

void say_failed(JobPage* job, const Status& why, const char* remedy) {
  Line line;
  line.text("terrace: no tiering: ").text(why.text);
  if (why.errno_value != 0) line.text(" errno=").error(why.errno_value);
  line.text("; ").text(remedy);
  say(*job, line.view());
}

// The supervisor keeps a duplicate of the userfaultfd and never reads it: when the last one closes while
// threads of the dying program are still inside a system call, the kernel would fill zeros and send them on.
bool send_duplicate(const JobSettings& settings, int descriptor) {
  const long socket = sys(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = strnlen(settings.supervisor_socket, sizeof settings.supervisor_socket);
  std::memcpy(address.sun_path + 1, settings.supervisor_socket,
              length < sizeof address.sun_path - 1 ? length : 0);
  bool sent = false;
  if (sys(SYS_connect, socket, &address, offsetof(sockaddr_un, sun_path) + 1 + length) == 0) {
    char letter = 'U';
    iovec part{&letter, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    sent = sys(SYS_sendmsg, socket, &message, MSG_NOSIGNAL) == 1;
  }
  (void)sys(SYS_close, socket);
  return sent;
}

// One more duplicate, among the program's own descriptors: when the whole job is killed at once (a cgroup, a
// container), pager and supervisor may be gone before the program's threads are. Descriptors close after the
// last thread has left its memory. The number is high, so that the program's own stay as they would be; a
// program that closes it falls back to the other two, so a failure is not counted.
void keep_among_own(int pager_pid, int pager_descriptor) {
  constexpr std::uint64_t kNumber = 1000;
  const long pager = sys(SYS_pidfd_open, pager_pid, 0);
  if (pager < 0) return;
  const long copy = sys(SYS_pidfd_getfd, pager, pager_descriptor, 0);  // close-on-exec
  (void)sys(SYS_close, pager);
  if (copy < 0) return;
  struct {
    std::uint64_t soft, hard;
  } limit{};
  (void)sys(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit);
  const std::uint64_t number = limit.soft > kNumber ? kNumber : limit.soft > 0 ? limit.soft - 1 : 0;
  if (sys(SYS_fcntl, copy, F_DUPFD_CLOEXEC, number) >= 0) (void)sys(SYS_close, copy);
}

// Memory of a policy's own: as much as its blocks could need, touched as it grows.
template <typename Policy>
Status init_policy(Policy& policy, std::uint32_t capacity) {
  const std::uint64_t bytes = Policy::memory_bytes(capacity);
  const long mapped = sys(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped < 0 && mapped > -4096) return Status::from_errno(int(-mapped), "mapping the policy's tables");
  (void)sys(SYS_madvise, mapped, bytes, MADV_NOHUGEPAGE);
  policy.init(reinterpret_cast<void*>(mapped), bytes, capacity);
  return Status::success();
}

Status start_pager(State& s, PagerSide& side, int owner_pidfd) {
  const JobSettings& settings = s.job->settings;
  if (Status opened = side.mover.open(); !opened.ok()) {
    say_failed(s.job, opened,
               "run as root, set sysctl vm.unprivileged_userfaultfd=1 or give access to /dev/userfaultfd");
    s.job->fallbacks[std::size_t(Fallback::no_pager)].fetch_add(1);
    return opened;
  }
  if (!send_duplicate(settings, side.mover.descriptor()))
    s.job->fallbacks[std::size_t(Fallback::no_duplicate)].fetch_add(1);

  io::StoreOptions store_options;
  store_options.directory = settings.store_directory;
  store_options.capacity_bytes = settings.store_capacity_bytes;
  if (Status opened = side.store.open(store_options); !opened.ok()) {
    say_failed(s.job, opened, "name a directory on a disk with room with --store");
    return opened;
  }
  if (!side.store.direct()) s.job->fallbacks[std::size_t(Fallback::buffered_store)].fetch_add(1);

  const std::uint32_t depth = settings.io_depth != 0 ? settings.io_depth : 64;
  PagerParts parts;
  if (Status opened = side.uring.open(side.store.descriptor(), {depth, side.store.alignment()});
      opened.ok()) {
    parts.device = &side.uring;
  } else {
    s.job->fallbacks[std::size_t(Fallback::sync_io)].fetch_add(1);
    if (Status fallback = side.sync.open(side.store.descriptor(), {depth, side.store.alignment()});
        !fallback.ok()) {
      say_failed(s.job, fallback, "neither io_uring nor plain I/O works on the store");
      return fallback;
    }
    parts.device = &side.sync;
  }

  const std::uint32_t capacity = BlockTable::capacity_for(s.arena.reserved_bytes());
  Status ready = settings.policy == PolicyKind::lru ? init_policy(side.lru, capacity)
                                                    : init_policy(side.stream, capacity);
  parts.policy =
      settings.policy == PolicyKind::lru ? static_cast<tiering::OnlinePolicy*>(&side.lru) : &side.stream;
  parts.arena = &s.arena;
  parts.heap = &s.heap;
  parts.link = &s.link;
  parts.mover = &side.mover;
  parts.store = &side.store;
  parts.job = s.job;
  parts.owner_pidfd = owner_pidfd;
  PagerOptions options;
  options.dram_bytes = settings.dram_bytes;
  options.io_timeout_ms = settings.io_timeout_ms;
  options.force_eviction = settings.force_eviction != 0;
  options.seed = settings.force_eviction_seed;
  if (ready.ok()) ready = side.pager.start(parts, options);
  if (!ready.ok()) {
    // The supervisor's duplicate keeps the registration alive, and nobody will ever answer a fault.
    auto* const arena = reinterpret_cast<void*>(s.arena.base());
    side.mover.unwatch_program(arena, s.arena.reserved_bytes());
    (void)sys(SYS_madvise, arena, s.arena.reserved_bytes(), MADV_DOFORK);
    say_failed(s.job, ready,
               ready.code == ErrorCode::no_space
                   ? "free space in the store's directory, or name another one with --store"
               : ready.errno_value == EMFILE ? "raise `ulimit -n`"
                                             : "see terrace doctor");
  }
  return ready;
}

// Leaves on purpose: the supervisor takes a pager that is gone with its pid still set for a dead one. After
// an exec the pid may already be that of the next pager.
void resign(JobPage* job) {
  std::uint32_t own = std::uint32_t(sys(SYS_getpid));
  job->pager_pid.compare_exchange_strong(own, 0, std::memory_order_acq_rel);
}

int pager_main(void*) {
  State& s = state();
  PagerSide& side = *new (s.pager_side) PagerSide;
  const long owner_pidfd = sys(SYS_pidfd_open, s.pid, 0);
  s.job->pager_pid.store(std::uint32_t(sys(SYS_getpid)), std::memory_order_release);
  if (!start_pager(s, side, int(owner_pidfd)).ok()) {
    s.job->phase.store(PagerPhase::failed, std::memory_order_release);
    resign(s.job);
    s.outcome.store(Outcome::failed, std::memory_order_release);
    return 1;
  }
  s.job->phase.store(PagerPhase::running, std::memory_order_release);
  s.outcome.store(Outcome::running, std::memory_order_release);
  std::uint64_t next_look = 0;
  while (side.pager.run_once(kPagerTimeoutMs)) {
    const std::uint64_t now = monotonic_ns();
    if (now < next_look) continue;
    next_look = now + 100 * kNsPerMs;
    if (!shares_memory_with(s.pid)) break;  // exec: the program has other memory now
  }
  // After fatal() the supervisor ends the job; nothing may be served, or closed, until then.
  if (side.pager.failed()) {
    for (;;) {
      s.job->heartbeat.fetch_add(1, std::memory_order_relaxed);
      timespec pause{0, 50'000'000};
      (void)sys(SYS_nanosleep, &pause, nullptr);
      if (sys(SYS_kill, s.pid, 0) == -ESRCH || !shares_memory_with(s.pid)) break;
    }
  }
  resign(s.job);
  return 0;
}

// With the heap's lock held: starts the pager when the budget is nearly used up, else says when to ask again.
Pressure on_pressure(void*, std::uint64_t touched_bytes, std::uint64_t idle_bytes) {
  State& s = state();
  if (s.job == nullptr || s.start_tried) {
    s.heap.set_pressure_bytes(~std::uint64_t{0});
    return Pressure::go_on;
  }
  const std::uint64_t resident = resident_now();
  const std::uint64_t rest = resident > touched_bytes ? resident - touched_bytes : 0;
  const JobSettings& settings = s.job->settings;
  const std::uint64_t trigger = settings.dram_bytes / 5 * 4;
  if (settings.force_eviction == 0 && touched_bytes + kPressureStepBytes + rest < trigger) {
    s.heap.set_pressure_bytes(touched_bytes + kPressureStepBytes);
    return Pressure::go_on;
  }
  if (settings.force_eviction == 0 && idle_bytes != 0 &&
      touched_bytes - idle_bytes + kPressureStepBytes + rest < trigger)
    return Pressure::purge;

  s.start_tried = true;
  s.heap.set_pressure_bytes(~std::uint64_t{0});
  s.job->phase.store(PagerPhase::starting, std::memory_order_release);
  const Result<int> pager = start_on_this_memory(&pager_main, nullptr);
  if (!pager.ok()) {
    say_failed(s.job, pager.status(), "see terrace doctor");
    s.job->phase.store(PagerPhase::failed, std::memory_order_release);
    return Pressure::go_on;
  }
  while (s.outcome.load(std::memory_order_acquire) == Outcome::pending) {
    timespec pause{0, 20'000};
    (void)sys(SYS_nanosleep, &pause, nullptr);
    if (sys(SYS_kill, pager.value(), 0) == -ESRCH) break;  // it died: the supervisor sees that too
  }
  if (s.outcome.load(std::memory_order_acquire) == Outcome::running)
    keep_among_own(pager.value(), reinterpret_cast<PagerSide*>(s.pager_side)->mover.descriptor());
  return Pressure::go_on;
}

}  // namespace

Runtime& runtime() {
  static Runtime instance;
  return instance;
}

std::uint64_t Runtime::min_object_bytes() {
  State& s = state();
  if (s.job != nullptr) return s.job->settings.min_object_bytes;
  Settings settings = default_settings();
  Line error;
  (void)apply_environment(environ, settings, error);
  return settings.min_object_bytes;
}

void Runtime::load() {
  if (loaded) return;
  loaded = true;
  State& s = *new (state_storage) State;
  s.job = map_job_page();
  if (s.job != nullptr) s.job->processes.fetch_add(1, std::memory_order_relaxed);
}

Attachment Runtime::attach() {
  load();
  State& s = state();
  if (s.attached) return s.attachment;
  s.attached = true;
  s.pid = int(sys(SYS_getpid));
  if (s.job == nullptr && getenv(kJobPageVariable) != nullptr) return s.attachment;
  if (s.job != nullptr && !claim(s.job, s.pid)) {
    s.job->fallbacks[std::size_t(Fallback::passed_through)].fetch_add(1, std::memory_order_relaxed);
    return s.attachment;
  }
  HeapOptions options;
  options.on_pressure = &on_pressure;
  if (s.job != nullptr) options.counters = &s.job->counters;
  if (!s.arena.reserve().ok() || !s.heap.init(&s.arena, &s.link, options).ok()) {
    if (s.job != nullptr) {
      s.job->fallbacks[std::size_t(Fallback::no_arena)].fetch_add(1, std::memory_order_relaxed);
      std::uint32_t own = std::uint32_t(s.pid);
      s.job->owner_pid.compare_exchange_strong(own, 0, std::memory_order_acq_rel);
    }
    return s.attachment;
  }
  s.heap.set_pressure_bytes(s.job == nullptr ? ~std::uint64_t{0} : 0);
  s.attachment = s.job == nullptr ? Attachment::alone : Attachment::owner;
  return s.attachment;
}

Heap& Runtime::heap() { return state().heap; }
Arena& Runtime::arena() { return state().arena; }
bool Runtime::pager_active() const { return state().link.active.load(std::memory_order_acquire) != 0; }

bool Runtime::child_after_fork() {
  State& s = state();
  if (!s.attached || s.attachment == Attachment::pass_through) return true;
  if (pager_active()) return false;
  // The child has a copy of the heap; the budget is its parent's.
  s.heap.set_pressure_bytes(~std::uint64_t{0});
  if (s.job != nullptr)
    s.job->fallbacks[std::size_t(Fallback::passed_through)].fetch_add(1, std::memory_order_relaxed);
  s.job = nullptr;
  return true;
}

}  // namespace terrace::runtime
