// The `terrace` program: finds the verb and calls it.
#include <cstdio>
#include <string_view>

#include "clients/cli/verbs.hpp"

namespace {

struct Verb {
  std::string_view name;
  int (*call)(std::span<char*> words);
};

constexpr Verb kVerbs[] = {
    {"run", terrace::cli::run_verb},           {"doctor", terrace::cli::doctor_verb},
    {"help", terrace::cli::help_verb},         {"--help", terrace::cli::help_verb},
    {"-h", terrace::cli::help_verb},           {"version", terrace::cli::version_verb},
    {"--version", terrace::cli::version_verb},
};

// Verbs that the manual names and this version does not have.
constexpr std::string_view kLaterVerbs[] = {"profile", "report", "import", "simulate", "plan", "top",
                                            "jobs",    "status", "drain",  "zoom",     "tune"};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    (void)terrace::cli::help_verb({});
    return terrace::cli::kStatusNotStarted;
  }
  const std::string_view name = argv[1];
  for (const Verb& verb : kVerbs) {
    if (verb.name == name) return verb.call({argv + 2, std::size_t(argc - 2)});
  }
  for (const std::string_view later : kLaterVerbs) {
    if (later != name) continue;
    std::fprintf(stderr, "terrace: '%s' is not in this version; terrace help lists what is\n", argv[1]);
    return terrace::cli::kStatusNotStarted;
  }
  std::fprintf(stderr, "terrace: '%s': no such command; terrace help lists them\n", argv[1]);
  return terrace::cli::kStatusNotStarted;
}
