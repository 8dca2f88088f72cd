// `terrace run`: settles the settings, refuses what cannot work, and hands over to the supervisor.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "base/cgroup.hpp"
#include "base/settings.hpp"
#include "base/settings_help.hpp"
#include "base/size_text.hpp"
#include "clients/cli/guard.hpp"
#include "clients/cli/job_setup.hpp"
#include "clients/cli/supervisor.hpp"
#include "clients/cli/verbs.hpp"

namespace terrace::cli {

namespace {

constexpr const char* kUsage =
    "terrace run [OPTIONS] -- COMMAND ARGS...\n\n"
    "Runs an unmodified program in less memory than it needs: what does not fit lies in the store.\n\n";

bool asks_for_help(std::span<char*> words) {
  for (const std::string_view word : words) {
    if (word == "--help" || word == "-h") return true;
    if (word == "--" || word.empty() || word[0] != '-') return false;
  }
  return false;
}

// Writes the refusal and returns its exit status.
int not_started(const Line& error) {
  error.write_to(STDERR_FILENO);
  return kStatusNotStarted;
}

}  // namespace

int run_verb(std::span<char*> words) {
  if (asks_for_help(words)) {
    std::printf("%s%s", kUsage, settings_help().c_str());
    return 0;
  }
  Settings settings = default_settings();
  Line error;
  if (!apply_environment(environ, settings, error).ok()) return not_started(error);
  std::size_t next = 0;
  if (!apply_flags({words.data(), words.size()}, settings, next, error).ok()) return not_started(error);
  const std::span<char*> command = words.subspan(next);
  if (command.empty() || command[0][0] == 0) {
    return not_started(
        error.text("terrace: run: the command is missing; terrace run [OPTIONS] -- COMMAND ARGS..."));
  }
  choose_budget(settings);
  std::string preload;
  if (!choose_store(settings, error).ok() || !find_preload(preload, error).ok() ||
      !check_stats_file(settings, error).ok()) {
    return not_started(error);
  }
  if (const std::uint64_t machine_bytes = machine_memory_bytes();
      settings.dram_bytes > machine_bytes && settings.quiet == 0) {
    error.text("terrace: note: --dram ")
        .text(SizeText::rounded(settings.dram_bytes))
        .text(" is more than this machine has, ");
    error.text(SizeText::rounded(machine_bytes)).write_to(STDERR_FILENO);
  }
  const JobSignals signals;
  return run_guarded(signals, [&](int guard_pidfd) {
    Supervisor supervisor(settings, preload, command, signals, guard_pidfd);
    return supervisor.run();
  });
}

}  // namespace terrace::cli
