// Starts a job, watches it and ends it: the process behind `terrace run` (see guard.hpp for the other one).
//
// One poll loop over signals, the guard, the pager and the socket of the descriptor keeper, with a tick of
// 100 ms. It ends the job with one line and status 124 when the pager says that it cannot serve a block, has
// died, or is overdue. No page fault ever waits for this process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/settings.hpp"
#include "clients/cli/descriptor_keeper.hpp"
#include "clients/cli/job_signals.hpp"
#include "clients/cli/shared_job_page.hpp"
#include "clients/cli/watchdog.hpp"

namespace terrace::cli {

class Supervisor {
 public:
  // `command` ends with a null pointer behind its last word. `guard_pidfd` may be -1.
  Supervisor(const Settings& settings, std::string preload, std::span<char*> command,
             const JobSignals& signals, int guard_pidfd);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor();

  // Runs the job to its end and reports it; returns the exit status of `terrace run`.
  int run();

 private:
  // A process of the job that is watched by a pidfd: it cannot be taken for another one that got its number.
  class Watched {
   public:
    ~Watched() { reset(); }
    // Follows the number that the page shows; true when it is a new one.
    bool follow(pid_t pid);
    bool gone() const;
    pid_t pid() const { return pid_; }
    int descriptor() const { return descriptor_; }

   private:
    void reset();
    pid_t pid_ = 0;
    int descriptor_ = -1;
    bool missing_ = false;  // it was gone before we could open it
  };

  // 0, or the exit status of a start that failed (its line is printed).
  int start();
  [[noreturn]] void become_command(int error_pipe, pid_t supervisor, const std::string& job);
  void wait_for_events();
  void take_signals();
  void reap();
  // Looks at the page; ends the job when the pager cannot go on.
  void check_pager();
  void check_pager_death(std::uint64_t now_ns);
  void end_job(const std::string& line);
  std::string page_message() const;
  int report();

  const Settings& settings_;
  const std::string preload_;
  const std::span<char*> command_;
  const JobSignals& signals_;
  const int guard_pidfd_;
  int signal_descriptor_ = -1;
  SharedJobPage shared_;
  DescriptorKeeper keeper_;
  Watchdog watchdog_;
  Watched owner_, pager_;

  pid_t child_ = 0;
  bool child_ended_ = false;
  int wait_status_ = 0;
  std::uint64_t max_resident_bytes_ = 0;
  std::uint64_t begin_ns_ = 0;
  std::uint64_t pager_gone_ns_ = 0;  // when its death was first seen
  std::uint64_t fatal_seen_ns_ = 0;
  bool failure_told_ = false;
  bool ended_by_us_ = false;
};

}  // namespace terrace::cli
