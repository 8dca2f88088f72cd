#include <cstdio>
#include <string_view>

#include "base/settings_help.hpp"
#include "clients/cli/verbs.hpp"

namespace terrace::cli {

int help_verb(std::span<char*> words) {
  if (!words.empty() && std::string_view(words[0]) == "settings") {
    std::fputs(settings_markdown().c_str(), stdout);
    return 0;
  }
  if (!words.empty() && std::string_view(words[0]) == "run") {
    char option[] = "--help";
    char* run_words[] = {option};
    return run_verb(run_words);
  }
  std::fputs(
      "terrace: runs a program in less memory than it needs\n\n"
      "  terrace run [OPTIONS] -- COMMAND ARGS...   runs a command under a memory budget; --help lists the "
      "options\n"
      "  terrace doctor [--store DIR] [--json]      what this machine can do, and what to change\n"
      "  terrace help [run|settings]                this text; the options; the settings as Markdown\n"
      "  terrace version\n\n"
      "Exit status of run: the program's own (128 + signal); 124 when Terrace ended a running job, 125 when "
      "it\n"
      "failed before the start, 126 when the command is not executable, 127 when it is not found.\n",
      stdout);
  return 0;
}

}  // namespace terrace::cli
