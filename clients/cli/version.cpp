#include <cstdio>

#include "clients/cli/verbs.hpp"

namespace terrace::cli {

int version_verb(std::span<char*>) {
  std::puts("terrace " TERRACE_VERSION);
  return 0;
}

}  // namespace terrace::cli
