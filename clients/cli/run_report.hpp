// What is told about a job when it has ended: the summary on standard error and the --stats object.
#pragma once

#include <cstdint>
#include <string>

#include "base/settings.hpp"
#include "runtime/job_page.hpp"

namespace terrace::cli {

struct JobOutcome {
  const Settings& settings;
  const runtime::JobPage& page;
  std::uint64_t wall_ns = 0;
  std::uint64_t max_resident_bytes = 0;  // of the job's first process and those it waited for (wait4)
  int exit_status = 0;
};

// Lines, each with its newline: what happened, then one for each fallback with its remedy.
std::string summary_text(const JobOutcome& outcome);

// One JSON object with a newline at its end; the names are fixed by the manual.
std::string stats_text(const JobOutcome& outcome);

// Writes to a file, or to standard output for `-`. False with a line on standard error when that fails.
bool write_stats(const JobOutcome& outcome);

}  // namespace terrace::cli
