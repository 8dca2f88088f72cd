// What the table of settings says to people: the option list of `terrace run --help` and docs/settings.md.
// For programs, never for the preload: it uses the heap.
#pragma once

#include <string>

namespace terrace {

// One line or two an option, indented by two spaces.
std::string settings_help();
// The whole of docs/settings.md.
std::string settings_markdown();

}  // namespace terrace
