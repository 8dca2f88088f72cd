// A program that plays the owner of a job's page and its pager, well or badly, so that the supervisor is
// tested apart from the real ones. The first word says the play; `sleep` is how long it would live if nobody
// ended it.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/clock.hpp"
#include "runtime/job_page.hpp"

using namespace terrace;
using runtime::JobPage;
using runtime::PagerPhase;

namespace {

JobPage* map_page() {
  const char* const path = std::getenv(runtime::kJobPageVariable);
  const int descriptor = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) std::perror("TERRACE_JOB"), std::exit(90);
  void* const memory =
      mmap(nullptr, runtime::kJobPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) std::perror("mmap"), std::exit(91);
  auto* const page = static_cast<JobPage*>(memory);
  if (page->magic != runtime::kJobPageMagic || page->settings_bytes != sizeof(runtime::JobSettings))
    std::exit(92);
  return page;
}

void say(JobPage& page, const char* text) {
  std::strncpy(page.message, text, sizeof page.message - 1);
  page.message_ready.store(1, std::memory_order_release);
}

void promise(JobPage& page, std::uint64_t ms) {
  page.heartbeat.fetch_add(1);
  page.heartbeat_due_ns.store(monotonic_ns() + ms * kNsPerMs);
}

// A child that plays the pager: it beats `beats` times, 50 ms apart, then does `then`.
pid_t start_pager(JobPage& page, int beats, void (*then)()) {
  const pid_t pid = fork();
  if (pid != 0) {
    page.pager_pid.store(std::uint32_t(pid));
    page.phase.store(PagerPhase::running);
    return pid;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a pager ends with its program
  for (int i = 0; i < beats; ++i) {
    promise(page, 100);
    usleep(50'000);
  }
  promise(page, 100);
  then();
  _exit(0);
}

void hang() {
  for (;;) pause();
}
void spin() {
  for (;;) asm volatile("");
}
void stop_then_beat() { raise(SIGSTOP); }

// Sends a descriptor to the supervisor and returns its answer.
char send_descriptor(const JobPage& page, int descriptor, int count) {
  const int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {.sun_family = AF_UNIX};
  const std::size_t length = std::strlen(page.settings.supervisor_socket);
  std::memcpy(address.sun_path + 1, page.settings.supervisor_socket, length);
  const auto size = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (connect(peer, reinterpret_cast<sockaddr*>(&address), size) != 0) return '?';
  char byte = 'U';
  iovec part = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control};
  message.msg_controllen = CMSG_SPACE(std::size_t(count) * sizeof(int));
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(std::size_t(count) * sizeof(int));
  for (int i = 0; i < count; ++i)
    std::memcpy(CMSG_DATA(header) + i * sizeof(int), &descriptor, sizeof descriptor);
  if (sendmsg(peer, &message, 0) != 1) return '!';
  char answer = '0';
  (void)!read(peer, &answer, 1);
  close(peer);
  return answer;
}

int play_descriptors(const JobPage& page) {
  const int uffd = int(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
  if (uffd < 0) return 77;
  const char good = send_descriptor(page, uffd, 1), foreign = send_descriptor(page, 0, 1),
             many = send_descriptor(page, uffd, 8);
  std::printf("good=%c foreign=%c many=%c\n", good, foreign, many);
  return good == 'K' && foreign == 'R' && many == 'R' ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view play = argc > 1 ? argv[1] : "";
  JobPage& page = *map_page();
  page.processes.fetch_add(1);
  page.owner_pid.store(std::uint32_t(getpid()));
  if (play == "fatal") {
    say(page, "terrace: block lost object=0x1000 errno=EIO (5); look at the disk");
    page.phase.store(PagerPhase::fatal, std::memory_order_release);
  } else if (play == "fatal-silent") {
    page.phase.store(PagerPhase::fatal, std::memory_order_release);
  } else if (play == "fatal-and-exit") {
    say(page, "no block");
    page.phase.store(PagerPhase::fatal, std::memory_order_release);
    return 3;
  } else if (play == "failed") {
    say(page, "terrace: no tiering: no userfaultfd; see terrace doctor");
    page.phase.store(PagerPhase::failed, std::memory_order_release);
    usleep(300'000);
    return 5;
  } else if (play == "pager-dies") {
    start_pager(page, 3, [] { _exit(1); });
  } else if (play == "pager-leaves") {  // as after an exec: it says so before it goes
    start_pager(page, 3, hang);
    usleep(200'000);
    page.pager_pid.store(0);
    usleep(700'000);
    return 6;
  } else if (play == "pager-late") {
    start_pager(page, 3, hang);
  } else if (play == "pager-starved") {  // runs, without a beat, for less than ten seconds
    start_pager(page, 3, spin);
    usleep(2'500'000);
    return 7;
  } else if (play == "pager-stopped") {
    const pid_t pager = start_pager(page, 3, stop_then_beat);
    usleep(2'500'000);
    page.heartbeat_due_ns.store(0);
    kill(pager, SIGKILL);
    return 8;
  } else if (play == "pager-asleep") {
    start_pager(page, 3, hang);
    usleep(250'000);
    page.heartbeat_due_ns.store(0);
    usleep(2'000'000);
    return 9;
  } else if (play == "descriptors") {
    return play_descriptors(page);
  } else if (play == "numbers") {
    page.settings.dram_bytes != 0 ? void() : std::exit(93);
    page.counters.dram_peak_bytes.store(1ull << 40);
    page.counters.object_peak_bytes.store(11);
    page.counters.faults_demand.store(12);
    page.counters.stall_ns.store(1'500'000'000);
    page.counters.bytes_in.store(13);
    page.counters.bytes_out.store(14);
    page.counters.blocks_stored.store(15);
    page.fallbacks[std::size_t(runtime::Fallback::buffered_store)].store(2);
    std::printf("store=%s policy=%u min=%llu timeout=%u seed=%llu\n", page.settings.store_directory,
                unsigned(page.settings.policy),
                static_cast<unsigned long long>(page.settings.min_object_bytes), page.settings.io_timeout_ms,
                static_cast<unsigned long long>(page.settings.force_eviction_seed));
    return 0;
  } else {
    return 94;
  }
  sleep(30);
  return 0;
}
