#include "clients/cli/supervisor.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/clock.hpp"
#include "base/line.hpp"
#include "base/size_text.hpp"
#include "clients/cli/process_tree.hpp"
#include "clients/cli/run_report.hpp"
#include "clients/cli/verbs.hpp"

namespace terrace::cli {

namespace {

using runtime::PagerPhase;

constexpr int kTickMs = 100;
// A dying program takes its pager along: only a pager that is gone while its owner lives on for this long has
// failed.
constexpr std::uint64_t kPagerGoneMaxNs = 300 * kNsPerMs;
// Between the phase `fatal` and its message.
constexpr std::uint64_t kMessageMaxNs = 200 * kNsPerMs;

std::string error_text(int errno_value) {
  return std::string(std::strerror(errno_value)) + " (" + errno_name(errno_value) + ")";
}

int exit_status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

bool readable(int descriptor) {
  pollfd polled = {.fd = descriptor, .events = POLLIN, .revents = 0};
  return poll(&polled, 1, 0) > 0;
}

}  // namespace

// ---- processes watched
// ----------------------------------------------------------------------------------------------

void Supervisor::Watched::reset() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
  missing_ = false;
}

bool Supervisor::Watched::follow(pid_t pid) {
  if (pid == pid_) return false;
  reset();
  pid_ = pid;
  if (pid <= 0) return true;
  descriptor_ = int(syscall(SYS_pidfd_open, pid, 0));
  missing_ = descriptor_ < 0 && errno == ESRCH;
  return true;
}

bool Supervisor::Watched::gone() const { return missing_ || (descriptor_ >= 0 && readable(descriptor_)); }

// ---- start
// ----------------------------------------------------------------------------------------------------------

Supervisor::Supervisor(const Settings& settings, std::string preload, std::span<char*> command,
                       const JobSignals& signals, int guard_pidfd)
    : settings_(settings),
      preload_(std::move(preload)),
      command_(command),
      signals_(signals),
      guard_pidfd_(guard_pidfd) {}

Supervisor::~Supervisor() {
  if (signal_descriptor_ >= 0) close(signal_descriptor_);
}

void Supervisor::become_command(int error_pipe, pid_t supervisor, const std::string& job) {
  signals_.restore();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != supervisor) _exit(kStatusJobEnded);  // it died before the line above
  setenv(runtime::kJobPageVariable, job.c_str(), 1);
  const char* const before = std::getenv("LD_PRELOAD");
  const std::string preload = before == nullptr || *before == 0 ? preload_ : preload_ + ":" + before;
  setenv("LD_PRELOAD", preload.c_str(), 1);
  execvp(command_[0], command_.data());
  const int error = errno;
  (void)!write(error_pipe, &error, sizeof error);
  _exit(kStatusNotFound);
}

int Supervisor::start() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // so that processes whose parents die stay ours to end
  Status status = keeper_.open();
  if (status.ok()) status = shared_.create(settings_, keeper_.name());
  int error_pipe[2] = {-1, -1};
  if (status.ok() && pipe2(error_pipe, O_CLOEXEC) != 0) status = Status::from_errno(errno, "a pipe");
  if (status.ok()) {
    signal_descriptor_ = signalfd(-1, &signals_.blocked(), SFD_CLOEXEC | SFD_NONBLOCK);
    if (signal_descriptor_ < 0) status = Status::from_errno(errno, "signalfd");
  }
  if (!status.ok()) {
    const char* const remedy = status.errno_value == EMFILE ? "raise `ulimit -n`" : "see terrace doctor";
    std::fprintf(stderr, "terrace: %s: %s; %s\n", status.text, error_text(status.errno_value).c_str(),
                 remedy);
    return kStatusNotStarted;
  }
  begin_ns_ = monotonic_ns();
  const pid_t supervisor = getpid();
  // The path names this process, so it is made before the fork.
  const std::string job = shared_.path();
  child_ = fork();
  if (child_ < 0) {
    std::fprintf(stderr, "terrace: fork: %s; raise the limit on processes\n", error_text(errno).c_str());
    return kStatusNotStarted;
  }
  if (child_ == 0) become_command(error_pipe[1], supervisor, job);
  close(error_pipe[1]);
  int error = 0;
  ssize_t got;
  do got = read(error_pipe[0], &error, sizeof error);
  while (got < 0 && errno == EINTR);
  close(error_pipe[0]);
  if (got != sizeof error) return 0;  // the pipe closed by exec
  waitpid(child_, nullptr, 0);
  const bool missing = error == ENOENT || error == ENOTDIR;
  std::fprintf(stderr, "terrace: '%s': %s; %s\n", command_[0], error_text(error).c_str(),
               missing ? "check its name and PATH" : "give a program that this user may execute");
  return missing ? kStatusNotFound : kStatusNotExecutable;
}

// ---- the loop
// -------------------------------------------------------------------------------------------------------

void Supervisor::reap() {
  for (;;) {
    int status = 0;
    rusage usage = {};
    const pid_t pid = wait4(-1, &status, WNOHANG, &usage);
    if (pid <= 0) return;
    if (pid != child_) continue;  // an orphan of the job
    child_ended_ = true;
    wait_status_ = status;
    max_resident_bytes_ = std::uint64_t(usage.ru_maxrss) * 1024;
  }
}

void Supervisor::take_signals() {
  signalfd_siginfo info;
  while (read(signal_descriptor_, &info, sizeof info) == sizeof info) {
    const int signal = int(info.ssi_signo);
    sigval value;
    value.sival_ptr = reinterpret_cast<void*>(info.ssi_ptr);
    if (signal != SIGCHLD && !child_ended_) JobSignals::forward(child_, signal, info.ssi_code, value);
  }
  reap();  // one SIGCHLD may stand for many
}

void Supervisor::wait_for_events() {
  std::vector<pollfd> polled;
  polled.push_back({.fd = signal_descriptor_, .events = POLLIN, .revents = 0});
  polled.push_back({.fd = guard_pidfd_, .events = POLLIN, .revents = 0});
  // A pager that is gone stays readable: it is left out once seen, or the loop would spin.
  polled.push_back({.fd = pager_gone_ns_ == 0 ? pager_.descriptor() : -1, .events = POLLIN, .revents = 0});
  const std::size_t first_of_keeper = polled.size();
  keeper_.append_to(polled);
  if (poll(polled.data(), polled.size(), kTickMs) < 0) return;
  for (std::size_t i = first_of_keeper; i < polled.size(); ++i) {
    if (polled[i].revents != 0) keeper_.handle(polled[i].fd);
  }
  take_signals();
  if (polled[1].revents != 0) {  // the guard was killed: so is the job, and nobody is there to read a line
    kill_descendants(pid_t(shared_.page().pager_pid.load()));
    _exit(128 + SIGKILL);
  }
}

std::string Supervisor::page_message() const {
  const runtime::JobPage& page = shared_.page();
  if (page.message_ready.load(std::memory_order_acquire) == 0) return {};
  std::string text(page.message, strnlen(page.message, sizeof page.message));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.starts_with("terrace") ? text : "terrace: " + text;
}

void Supervisor::end_job(const std::string& line) {
  std::fprintf(stderr, "%s\n", line.c_str());
  ended_by_us_ = true;
  kill_descendants(pid_t(shared_.page().pager_pid.load()));
  const std::uint64_t begin_ns = monotonic_ns();
  while (!child_ended_ && monotonic_ns() - begin_ns < 5 * kNsPerS) {  // one in state D dies when its I/O ends
    reap();
    if (!child_ended_) usleep(1000);
  }
}

void Supervisor::check_pager_death(std::uint64_t now_ns) {
  if (pager_gone_ns_ == 0) pager_gone_ns_ = now_ns;
  if (owner_.gone() || child_ended_ || now_ns - pager_gone_ns_ < kPagerGoneMaxNs) return;
  end_job("terrace: the pager (process " + std::to_string(pager_.pid()) +
          ") has died, so memory of the program is out of reach; was it killed, or the machine out of "
          "memory? start the job again");
}

void Supervisor::check_pager() {
  runtime::JobPage& page = shared_.page();
  const std::uint64_t now_ns = monotonic_ns();
  const PagerPhase phase = page.phase.load(std::memory_order_acquire);
  owner_.follow(pid_t(page.owner_pid.load(std::memory_order_acquire)));
  if (phase == PagerPhase::fatal) {
    if (fatal_seen_ns_ == 0) fatal_seen_ns_ = now_ns;
    std::string message = page_message();
    if (message.empty() && now_ns - fatal_seen_ns_ < kMessageMaxNs && !child_ended_) return;
    if (message.empty()) message = "terrace: the pager gave up without saying why; start the job again";
    return end_job(message);
  }
  if (phase == PagerPhase::failed && !failure_told_) {
    const std::string message = page_message();
    failure_told_ = !message.empty();
    if (failure_told_) std::fprintf(stderr, "%s\n", message.c_str());
  }
  if (pager_.follow(pid_t(page.pager_pid.load(std::memory_order_acquire)))) {
    pager_gone_ns_ = 0;
    watchdog_ = Watchdog();
  }
  if (pager_.pid() == 0 || child_ended_ || (phase != PagerPhase::running && phase != PagerPhase::starting))
    return;
  if (pager_.gone()) return check_pager_death(now_ns);
  const std::uint64_t due_ns = page.heartbeat_due_ns.load(std::memory_order_acquire);
  const char state = Watchdog::late(now_ns, due_ns) ? process_state(pager_.pid()) : char(0);
  if (!watchdog_.tick(now_ns, page.heartbeat.load(std::memory_order_relaxed), due_ns, state)) return;
  if (owner_.gone()) return;
  end_job("terrace: the pager (process " + std::to_string(pager_.pid()) + ", state " + state +
          ") gave no sign of life for " + std::to_string(watchdog_.late_ns() / kNsPerMs) +
          " ms more than it promised; is the store's disk stuck? start the job again");
}

int Supervisor::run() {
  const int not_started = start();
  if (not_started != 0) return not_started;
  while (!child_ended_ && !ended_by_us_) {
    wait_for_events();
    check_pager();  // after the end too: a program that its pager killed has left a message
  }
  return report();
}

// ---- the end
// --------------------------------------------------------------------------------------------------------

int Supervisor::report() {
  int status = ended_by_us_ ? kStatusJobEnded : exit_status_of(wait_status_);
  const bool nothing_evicted =
      settings_.force_eviction != 0 && shared_.page().counters.blocks_stored.load() == 0;
  if (status == 0 && nothing_evicted) {
    std::fprintf(stderr,
                 "terrace: --force-eviction: no block went to the store; let the program allocate objects of "
                 "%s or more, and see "
                 "terrace doctor\n",
                 std::string(SizeText::exact(settings_.min_object_bytes).view()).c_str());
    status = kStatusJobEnded;
  }
  const JobOutcome outcome{.settings = settings_,
                           .page = shared_.page(),
                           .wall_ns = monotonic_ns() - begin_ns_,
                           .max_resident_bytes = max_resident_bytes_,
                           .exit_status = status};
  if (settings_.quiet == 0 && !ended_by_us_) std::fputs(summary_text(outcome).c_str(), stderr);
  if (!settings_.stats_file.empty()) (void)write_stats(outcome);
  return status;
}

}  // namespace terrace::cli
