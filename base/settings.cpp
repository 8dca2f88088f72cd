#include "base/settings.hpp"

#include <cstring>

#include "base/size_text.hpp"
#include "base/types.hpp"

namespace terrace {

namespace {

constexpr Setting kSettings[] = {
    {.name = "dram",
     .flag = "--dram",
     .environment = "TERRACE_DRAM",
     .kind = SettingKind::size,
     .value_name = "SIZE",
     .default_text = "the memory cgroup's limit / 1.1, else 80 % of the machine",
     .minimum = 16 * kMiB,
     .maximum = 1024 * kTiB,
     .help = "memory that the whole job may use",
     .number = &Settings::dram_bytes},
    {.name = "store",
     .flag = "--store",
     .environment = "TERRACE_STORE",
     .kind = SettingKind::store,
     .value_name = "DIR[:SIZE]",
     .default_text = "the working directory, if it lies on a disk with room",
     .minimum = 16 * kMiB,
     .maximum = 1024 * kTiB,
     .help = "where blocks go that do not fit, and the most they may take",
     .second = &Settings::store_capacity_bytes,
     .text = &Settings::store_directory},
    {.name = "min-object",
     .flag = "--min-object",
     .environment = "TERRACE_MIN_OBJECT",
     .kind = SettingKind::size,
     .value_name = "SIZE",
     .default_value = 128 * kKiB,
     .minimum = 64 * kKiB,
     .maximum = kGiB,
     .help = "smallest allocation that Terrace manages; smaller ones are libc's",
     .number = &Settings::min_object_bytes},
    {.name = "policy",
     .flag = "--policy",
     .environment = "TERRACE_POLICY",
     .kind = SettingKind::choice,
     .value_name = "NAME",
     .default_value = 0,
     .choices = "stream|lru",
     .help = "who leaves and who is read ahead: stream follows sequences and learned successors",
     .number = &Settings::policy},
    {.name = "stats",
     .flag = "--stats",
     .environment = "TERRACE_STATS",
     .kind = SettingKind::text,
     .value_name = "FILE|-",
     .default_text = "none",
     .help = "write what happened as one JSON object to a file or, for -, to standard output",
     .text = &Settings::stats_file},
    {.name = "quiet",
     .flag = "--quiet",
     .environment = "TERRACE_QUIET",
     .kind = SettingKind::flag,
     .default_text = "off",
     .maximum = 1,
     .help = "no summary at the end",
     .number = &Settings::quiet},
    {.name = "force-eviction",
     .flag = "--force-eviction",
     .environment = "TERRACE_FORCE_EVICTION",
     .kind = SettingKind::seed,
     .value_name = "SEED",
     .default_text = "off",
     .maximum = ~std::uint64_t{0},
     .help = "for tests: the smallest budget that works, and every movable block goes to the store at seeded "
             "intervals",
     .number = &Settings::force_eviction,
     .second = &Settings::force_eviction_seed},
    {.name = "io-timeout",
     .flag = "--io-timeout",
     .environment = "TERRACE_IO_TIMEOUT",
     .kind = SettingKind::number,
     .value_name = "SECONDS",
     .default_value = 120,
     .minimum = 1,
     .maximum = 86400,
     .help = "a store request that takes longer ends the job",
     .number = &Settings::io_timeout_s},
    {.name = "io-depth",
     .flag = "--io-depth",
     .environment = "TERRACE_IO_DEPTH",
     .kind = SettingKind::number,
     .value_name = "N",
     .default_value = 32,
     .minimum = 1,
     .maximum = 256,
     .help = "requests in flight at the store",
     .number = &Settings::io_depth},
};

Status refuse(Line& error, std::string_view origin, std::string_view value, std::string_view why,
              std::string_view remedy) {
  error.text("terrace: ").text(origin).text(" '").text(value).text("': ").text(why).text("; ").text(remedy);
  return Status::failure(ErrorCode::invalid_argument, 0, "a setting was refused");
}

constexpr std::string_view kSizeRemedy = "write a size such as 4GiB, 512MiB, 4GB or plain bytes";

// A size within the setting's range.
Status read_size(const Setting& setting, std::string_view origin, std::string_view whole,
                 std::string_view text, std::uint64_t& bytes, Line& error) {
  const Result<std::uint64_t> parsed = parse_size(text);
  if (!parsed.ok()) return refuse(error, origin, whole, parsed.status().text, kSizeRemedy);
  bytes = parsed.value();
  if (bytes >= setting.minimum && bytes <= setting.maximum) return Status::success();
  Line range;
  range.text("give ")
      .text(SizeText::exact(setting.minimum))
      .text(" to ")
      .text(SizeText::exact(setting.maximum));
  return refuse(error, origin, whole, bytes < setting.minimum ? "too small" : "too large", range.view());
}

Status read_number(const Setting& setting, std::string_view origin, std::string_view text,
                   std::uint64_t& value, Line& error) {
  Line range;
  range.text("give a whole number");
  if (setting.kind == SettingKind::number) {
    range.text(" from ")
        .number(std::int64_t(setting.minimum))
        .text(" to ")
        .number(std::int64_t(setting.maximum));
  }
  const Result<std::uint64_t> parsed = parse_number(text);
  if (!parsed.ok()) return refuse(error, origin, text, parsed.status().text, range.view());
  value = parsed.value();
  if (value >= setting.minimum && value <= setting.maximum) return Status::success();
  return refuse(error, origin, text, value < setting.minimum ? "too small" : "too large", range.view());
}

Status read_choice(const Setting& setting, std::string_view origin, std::string_view text,
                   std::uint64_t& value, Line& error) {
  std::string_view rest = setting.choices;
  for (std::uint64_t index = 0; !rest.empty(); ++index) {
    const std::size_t end = rest.find('|');
    if (rest.substr(0, end) == text) return value = index, Status::success();
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  }
  Line remedy;
  remedy.text("choose one of ").text(setting.choices);
  return refuse(error, origin, text, "no such choice", remedy.view());
}

Status read_text(std::string_view origin, std::string_view text, std::string_view whole, PathText& out,
                 Line& error) {
  if (text.empty()) return refuse(error, origin, whole, "the name is empty", "give a path");
  if (text.size() >= sizeof out.chars)
    return refuse(error, origin, whole.substr(0, 60), "longer than 1023 bytes", "give a shorter path");
  std::memcpy(out.chars, text.data(), text.size());
  out.chars[text.size()] = 0;
  return Status::success();
}

// DIR or DIR:SIZE. What follows the last colon is a size when it begins with a digit and holds no slash, so a
// directory whose own name ends so can be given with a slash at its end.
Status read_store(const Setting& setting, std::string_view origin, std::string_view value,
                  PathText& directory, std::uint64_t& capacity_bytes, Line& error) {
  const std::size_t colon = value.rfind(':');
  std::string_view path = value;
  capacity_bytes = 0;
  if (colon != std::string_view::npos) {
    const std::string_view tail = value.substr(colon + 1);
    if (!tail.empty() && tail[0] >= '0' && tail[0] <= '9' && tail.find('/') == std::string_view::npos) {
      const Status status = read_size(setting, origin, value, tail, capacity_bytes, error);
      if (!status.ok()) return status;
      path = value.substr(0, colon);
    }
  }
  return read_text(origin, path, value, directory, error);
}

bool takes_value(const Setting& setting) {
  return setting.kind != SettingKind::flag && setting.kind != SettingKind::seed;
}

}  // namespace

std::span<const Setting> settings_table() { return kSettings; }

Settings default_settings() {
  Settings settings;
  for (const Setting& setting : kSettings) {
    if (setting.number != nullptr) settings.*setting.number = setting.default_value;
  }
  return settings;
}

Status apply_setting(const Setting& setting, std::string_view origin, std::string_view value,
                     Settings& settings, Line& error) {
  std::uint64_t number = 0, second = 0;
  PathText path;
  Status status;
  switch (setting.kind) {
    case SettingKind::size: status = read_size(setting, origin, value, value, number, error); break;
    case SettingKind::number: status = read_number(setting, origin, value, number, error); break;
    case SettingKind::choice: status = read_choice(setting, origin, value, number, error); break;
    case SettingKind::flag:
      if (value != "0" && value != "1")
        return refuse(error, origin, value, "neither 1 nor 0", "give 1 for on, 0 for off");
      number = value == "1";
      break;
    case SettingKind::seed:
      number = 1;
      status = read_number(setting, origin, value, second, error);
      break;
    case SettingKind::text: status = read_text(origin, value, value, path, error); break;
    case SettingKind::store: status = read_store(setting, origin, value, path, second, error); break;
  }
  if (!status.ok()) return status;
  if (setting.number != nullptr) settings.*setting.number = number;
  if (setting.second != nullptr) settings.*setting.second = second;
  if (setting.text != nullptr) std::memcpy((settings.*setting.text).chars, path.chars, sizeof path.chars);
  return Status::success();
}

Status apply_environment(const char* const* environment, Settings& settings, Line& error) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (!entry.starts_with("TERRACE_")) continue;  // most entries: no search
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos || equals + 1 == entry.size()) continue;
    for (const Setting& setting : kSettings) {
      if (entry.substr(0, equals) != setting.environment) continue;
      const Status status =
          apply_setting(setting, setting.environment, entry.substr(equals + 1), settings, error);
      if (!status.ok()) return status;
    }
  }
  return Status::success();
}

Status apply_flags(std::span<char* const> arguments, Settings& settings, std::size_t& next, Line& error) {
  bool store_given = false;
  for (next = 0; next < arguments.size(); ++next) {
    const std::string_view word = arguments[next];
    if (word == "--") return ++next, Status::success();
    if (word.size() < 2 || word[0] != '-') return Status::success();
    const std::size_t equals = word.find('=');
    const std::string_view flag = word.substr(0, equals);
    const Setting* found = nullptr;
    for (const Setting& setting : kSettings) {
      if (setting.flag == flag) found = &setting;
    }
    if (found == nullptr) return refuse(error, "option", flag, "unknown", "terrace run --help lists them");
    std::string_view value;
    if (equals != std::string_view::npos) {
      value = word.substr(equals + 1);
      if (found->kind == SettingKind::flag)
        return refuse(error, flag, value, "it takes no value", "give the flag alone");
    } else if (takes_value(*found)) {
      if (next + 1 == arguments.size()) {
        Line remedy;
        remedy.text("give ").text(flag).text(" ").text(found->value_name);
        return refuse(error, "option", flag, "its value is missing", remedy.view());
      }
      value = arguments[++next];
    } else {
      value = "1";  // on; for force-eviction also the seed
    }
    if (found->kind == SettingKind::store) {
      if (store_given)
        return refuse(error, flag, value, "a second store is not supported in this version",
                      "give one --store");
      store_given = true;
    }
    const Status status = apply_setting(*found, flag, value, settings, error);
    if (!status.ok()) return status;
  }
  return Status::success();
}

std::string_view choice_name(const Setting& setting, std::uint64_t value) {
  std::string_view rest = setting.choices;
  for (; value > 0; --value) {
    const std::size_t end = rest.find('|');
    if (end == std::string_view::npos) return "";
    rest = rest.substr(end + 1);
  }
  return rest.substr(0, rest.find('|'));
}

const Setting* find_setting(std::string_view name) {
  for (const Setting& setting : kSettings) {
    if (setting.name == name) return &setting;
  }
  return nullptr;
}

}  // namespace terrace
