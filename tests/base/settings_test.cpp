#include "base/settings.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/settings_help.hpp"

using namespace terrace;

namespace {

struct Parsed {
  Settings settings = default_settings();
  std::size_t next = 0;
  bool ok = false;
  std::string error;
};

Parsed parse(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  Parsed parsed;
  Line error;
  parsed.ok = apply_flags(pointers, parsed.settings, parsed.next, error).ok();
  parsed.error = std::string(error.view());
  return parsed;
}

Parsed parse_environment(std::vector<const char*> entries) {
  entries.push_back(nullptr);
  Parsed parsed;
  Line error;
  parsed.ok = apply_environment(entries.data(), parsed.settings, error).ok();
  parsed.error = std::string(error.view());
  return parsed;
}

}  // namespace

TEST_CASE("settings: defaults come from the table") {
  const Settings settings = default_settings();
  CHECK(settings.dram_bytes == 0);
  CHECK(settings.store_directory.empty());
  CHECK(settings.min_object_bytes == 128 << 10);
  CHECK(PolicyChoice(settings.policy) == PolicyChoice::stream);
  CHECK(settings.io_timeout_s == 120);
  CHECK(settings.io_depth == 32);
  CHECK(settings.quiet == 0);
  CHECK(settings.force_eviction == 0);
}

TEST_CASE("settings: flags are read up to the command") {
  const Parsed parsed =
      parse({"--dram", "4GiB", "--store=/data:100GB", "--min-object", "64KiB", "--policy=lru", "--stats", "-",
             "--quiet", "--force-eviction=7", "--io-timeout", "5", "--io-depth=8", "--", "prog", "--dram"});
  REQUIRE(parsed.ok);
  CHECK(parsed.next == 14);
  CHECK(parsed.settings.dram_bytes == 4ull << 30);
  CHECK(parsed.settings.store_directory.view() == "/data");
  CHECK(parsed.settings.store_capacity_bytes == 100'000'000'000);
  CHECK(parsed.settings.min_object_bytes == 64 << 10);
  CHECK(PolicyChoice(parsed.settings.policy) == PolicyChoice::lru);
  CHECK(parsed.settings.stats_file.view() == "-");
  CHECK(parsed.settings.quiet == 1);
  CHECK(parsed.settings.force_eviction == 1);
  CHECK(parsed.settings.force_eviction_seed == 7);
  CHECK(parsed.settings.io_timeout_s == 5);
  CHECK(parsed.settings.io_depth == 8);
}

TEST_CASE("settings: the first word that is no flag begins the command") {
  CHECK(parse({"prog", "--quiet"}).next == 0);
  const Parsed parsed = parse({"--quiet", "--force-eviction", "prog"});
  CHECK(parsed.ok);
  CHECK(parsed.next == 2);
  CHECK(parsed.settings.force_eviction == 1);
  CHECK(parse({}).next == 0);
  CHECK(parse({"--dram", "1G", "--dram", "2G"}).settings.dram_bytes == 2ull << 30);
}

TEST_CASE("settings: each bad flag is refused by one line with the thing and the remedy") {
  const struct {
    std::vector<std::string> words;
    const char* line;
  } table[] = {
      {{"--dram", "12x"},
       "terrace: --dram '12x': its unit is none of K, M, G, T (binary), KiB..TiB, KB..TB (decimal), B; write "
       "a size such as "
       "4GiB, 512MiB, 4GB or plain bytes"},
      {{"--dram=1KiB"}, "terrace: --dram '1KiB': too small; give 16MiB to 1024TiB"},
      {{"--dram=9999TiB"}, "terrace: --dram '9999TiB': too large; give 16MiB to 1024TiB"},
      {{"--dram="}, "terrace: --dram '': it is empty; write a size such as 4GiB, 512MiB, 4GB or plain bytes"},
      {{"--dram"}, "terrace: option '--dram': its value is missing; give --dram SIZE"},
      {{"--store", ""}, "terrace: --store '': the name is empty; give a path"},
      {{"--store", ":4GiB"}, "terrace: --store ':4GiB': the name is empty; give a path"},
      {{"--store", "/a:1KiB"}, "terrace: --store '/a:1KiB': too small; give 16MiB to 1024TiB"},
      {{"--store", "/a:1Q"},
       "terrace: --store '/a:1Q': its unit is none of K, M, G, T (binary), KiB..TiB, KB..TB (decimal), B; "
       "write a size such as "
       "4GiB, 512MiB, 4GB or plain bytes"},
      {{"--store", "/a", "--store", "/b"},
       "terrace: --store '/b': a second store is not supported in this version; give one --store"},
      {{"--min-object", "32KiB"}, "terrace: --min-object '32KiB': too small; give 64KiB to 1GiB"},
      {{"--min-object", "2GiB"}, "terrace: --min-object '2GiB': too large; give 64KiB to 1GiB"},
      {{"--policy", "belady"}, "terrace: --policy 'belady': no such choice; choose one of stream|lru"},
      {{"--policy", "stream|lru"},
       "terrace: --policy 'stream|lru': no such choice; choose one of stream|lru"},
      {{"--quiet=1"}, "terrace: --quiet '1': it takes no value; give the flag alone"},
      {{"--force-eviction=x"},
       "terrace: --force-eviction 'x': it is not a whole number; give a whole number"},
      {{"--io-timeout", "0"}, "terrace: --io-timeout '0': too small; give a whole number from 1 to 86400"},
      {{"--io-timeout", "2m"},
       "terrace: --io-timeout '2m': it is not a whole number; give a whole number from 1 to 86400"},
      {{"--io-depth", "257"}, "terrace: --io-depth '257': too large; give a whole number from 1 to 256"},
      {{"--stats", ""}, "terrace: --stats '': the name is empty; give a path"},
      {{"--nonsense"}, "terrace: option '--nonsense': unknown; terrace run --help lists them"},
      {{"--stats", std::string(1024, 'x')},
       "terrace: --stats 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx': longer than 1023 "
       "bytes; give a shorter path"},
  };
  for (const auto& row : table) {
    const Parsed parsed = parse(row.words);
    CHECK_FALSE(parsed.ok);
    CHECK(parsed.error == row.line);
  }
}

TEST_CASE("settings: a directory whose name ends like a size is given with a slash") {
  const Parsed parsed = parse({"--store", "/mnt/run:4/"});
  REQUIRE(parsed.ok);
  CHECK(parsed.settings.store_directory.view() == "/mnt/run:4/");
  CHECK(parsed.settings.store_capacity_bytes == 0);
  CHECK(parse({"--store", "/mnt/a:b"}).settings.store_directory.view() == "/mnt/a:b");
}

TEST_CASE("settings: the environment is read, and the command line wins over it") {
  const Parsed parsed = parse_environment(
      {"PATH=/bin", "TERRACE_DRAM=2GiB", "TERRACE_STORE=/data", "TERRACE_MIN_OBJECT=", "TERRACE_POLICY=lru",
       "TERRACE_FORCE_EVICTION=9", "TERRACE_IO_TIMEOUT=3", "TERRACE_QUIET=1", "TERRACE_JOB=/proc/1/fd/3",
       "TERRACE_DRAMATIC=1"});
  REQUIRE(parsed.ok);
  CHECK(parsed.settings.dram_bytes == 2ull << 30);
  CHECK(parsed.settings.store_directory.view() == "/data");
  CHECK(parsed.settings.min_object_bytes == 128 << 10);
  CHECK(parsed.settings.policy == 1);
  CHECK(parsed.settings.force_eviction_seed == 9);
  CHECK(parsed.settings.io_timeout_s == 3);
  CHECK(parsed.settings.quiet == 1);

  Settings settings = parsed.settings;
  std::string flag = "--dram=1GiB";
  char* words[] = {flag.data()};
  std::size_t next = 0;
  Line error;
  REQUIRE(apply_flags(words, settings, next, error).ok());
  CHECK(settings.dram_bytes == 1ull << 30);
}

TEST_CASE("settings: a bad variable is refused by its own name and changes nothing") {
  const Parsed size = parse_environment({"TERRACE_DRAM=much"});
  CHECK_FALSE(size.ok);
  CHECK(size.error ==
        "terrace: TERRACE_DRAM 'much': it does not begin with a number; write a size such as 4GiB, 512MiB, "
        "4GB or plain bytes");
  CHECK(size.settings.dram_bytes == 0);
  const Parsed flag = parse_environment({"TERRACE_QUIET=yes"});
  CHECK(flag.error == "terrace: TERRACE_QUIET 'yes': neither 1 nor 0; give 1 for on, 0 for off");
}

TEST_CASE("settings: names, flags and variables of the table are unique and follow one rule") {
  std::set<std::string_view> names;
  for (const Setting& setting : settings_table()) {
    CHECK(names.insert(setting.name).second);
    CHECK(std::string(setting.flag) == "--" + std::string(setting.name));
    std::string variable = "TERRACE_" + std::string(setting.name);
    for (char& c : variable) c = c == '-' ? '_' : char(std::toupper(c));
    CHECK(std::string(setting.environment) == variable);
    CHECK(setting.default_value <= setting.maximum);
    CHECK_FALSE(setting.help.empty());
  }
}

TEST_CASE("settings: the help names every flag") {
  const std::string help = settings_help();
  for (const Setting& setting : settings_table()) CHECK(help.find(setting.flag) != std::string::npos);
}

TEST_CASE("settings: docs/settings.md is what the table writes") {
  std::ifstream file(TERRACE_SOURCE_DIR "/docs/settings.md");
  REQUIRE_MESSAGE(file.good(), "docs/settings.md is missing: terrace help settings > docs/settings.md");
  std::stringstream text;
  text << file.rdbuf();
  CHECK_MESSAGE(text.str() == settings_markdown(), "run: terrace help settings > docs/settings.md");
}
