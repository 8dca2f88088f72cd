// What is decided before a job starts: its budget, its store, and where the preload library lies.
//
// Each function refuses with one line that names the thing and the remedy; the job then ends with status 125.
#pragma once

#include <string>

#include "base/line.hpp"
#include "base/settings.hpp"
#include "base/status.hpp"

namespace terrace::cli {

// Fills in the budget where none was given: the memory cgroup's limit / 1.1, else 80 % of the machine.
void choose_budget(Settings& settings);

// Makes the store directory absolute (the working directory where none was given) and opens a store in it
// once, so that one that is missing, read-only, full or in memory is refused now and not in the middle of the
// job.
Status choose_store(Settings& settings, Line& error);

// libterrace_preload.so beside this program: ../lib, ../lib/terrace, ../lib64, or the program's own
// directory. Errors: not_found; invalid_argument when its path holds a space or a colon, which LD_PRELOAD
// cannot express.
Status find_preload(std::string& path, Line& error);

// Refuses a --stats file that could not be written at the end.
Status check_stats_file(const Settings& settings, Line& error);

}  // namespace terrace::cli
