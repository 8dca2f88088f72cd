// Every setting of Terrace, in one table: from it come the flags of `terrace run`, the environment variables,
// `--help` and docs/settings.md.
//
// Nouns: a *setting* has a name, a flag, an environment variable, a kind, a default and a range; *Settings*
// is the plain struct that holds the values. The command line wins over the environment, which wins over the
// defaults. Any thread, any context: no heap, no stdio, no errno, so the preload reads its environment with
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/line.hpp"
#include "base/status.hpp"

namespace terrace {

enum class PolicyChoice : std::uint64_t { stream = 0, lru = 1 };  // in the order of the table's choices

struct PathText {
  char chars[1024];  // NUL-terminated; empty: not given
  std::string_view view() const { return chars; }
  bool empty() const { return chars[0] == 0; }
};

struct Settings {
  std::uint64_t dram_bytes = 0;  // 0: not given, see default_dram_bytes in base/cgroup.hpp
  PathText store_directory{};
  std::uint64_t store_capacity_bytes = 0;  // 0: what the file system has free
  std::uint64_t min_object_bytes = 0;
  std::uint64_t policy = 0;  // a PolicyChoice
  PathText stats_file{};
  std::uint64_t quiet = 0;
  std::uint64_t force_eviction = 0;  // 1: on
  std::uint64_t force_eviction_seed = 0;
  std::uint64_t io_timeout_s = 0;
  std::uint64_t io_depth = 0;
};

enum class SettingKind : std::uint8_t {
  size,    // SIZE
  number,  // a whole number
  text,    // a path
  flag,    // present or not; in the environment 1 or 0
  choice,  // one of `choices`
  seed,    // a flag with an optional number
  store,   // DIR or DIR:SIZE
};

struct Setting {
  std::string_view name;
  std::string_view flag;
  std::string_view environment;
  SettingKind kind;
  std::string_view value_name;    // as --help shows it
  std::string_view default_text;  // what happens without it; empty: the default value itself says it
  std::uint64_t default_value, minimum, maximum;
  std::string_view choices;  // separated by `|`
  std::string_view help;
  std::uint64_t Settings::*number;  // where size, number, choice, flag and seed's on/off go
  std::uint64_t Settings::*second;  // seed: the seed; store: the capacity
  PathText Settings::*text;         // where text and store go
};

std::span<const Setting> settings_table();

// The values of the table's defaults.
Settings default_settings();

// Sets one setting from its text. `origin` is the flag or the variable that the text came from: on an error
// `error` becomes one line that names it, the value and the remedy, and invalid_argument is returned;
// `settings` is untouched.
Status apply_setting(const Setting& setting, std::string_view origin, std::string_view value,
                     Settings& settings, Line& error);

// Reads the variables of the table from `environment` (`environ`). Empty variables count as not set.
Status apply_environment(const char* const* environment, Settings& settings, Line& error);

// Reads flags from arguments[0 ...] up to `--` or the first word that is no flag. `next` becomes the index of
// the first word after them. `--flag value` and `--flag=value` are the same; of a flag given twice the last
// one holds, but a second --store is refused.
Status apply_flags(std::span<char* const> arguments, Settings& settings, std::size_t& next, Line& error);

// The name of the choice with this value, as the table writes it.
std::string_view choice_name(const Setting& setting, std::uint64_t value);
const Setting* find_setting(std::string_view name);

}  // namespace terrace
