#include "base/settings_help.hpp"

#include "base/settings.hpp"
#include "base/size_text.hpp"

namespace terrace {

namespace {

std::string text_of(std::string_view view) { return std::string(view); }

std::string flag_text(const Setting& setting) {
  std::string text(setting.flag);
  if (setting.kind == SettingKind::seed) return text + "[=" + text_of(setting.value_name) + "]";
  if (!setting.value_name.empty()) text += " " + text_of(setting.value_name);
  return text;
}

std::string default_of(const Setting& setting) {
  if (!setting.default_text.empty()) return text_of(setting.default_text);
  if (setting.kind == SettingKind::size) return text_of(SizeText::exact(setting.default_value));
  if (setting.kind == SettingKind::choice) return text_of(choice_name(setting, setting.default_value));
  return std::to_string(setting.default_value);
}

std::string range_of(const Setting& setting) {
  switch (setting.kind) {
    case SettingKind::size:
    case SettingKind::store:
      return text_of(SizeText::exact(setting.minimum)) + " to " + text_of(SizeText::exact(setting.maximum));
    case SettingKind::number:
      return std::to_string(setting.minimum) + " to " + std::to_string(setting.maximum);
    case SettingKind::choice: return text_of(setting.choices);
    case SettingKind::flag: return "1 or 0";
    case SettingKind::seed: return "a whole number";
    case SettingKind::text: return "a path";
  }
  return "";
}

std::string escaped(std::string text) {  // a bar would end the cell of a Markdown table
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

}  // namespace

std::string settings_help() {
  std::string out;
  for (const Setting& setting : settings_table()) {
    std::string left = "  " + flag_text(setting);
    left.resize(left.size() < 27 ? 27 : left.size() + 1, ' ');
    out += left + text_of(setting.help) + "\n" + std::string(27, ' ');
    if (setting.kind == SettingKind::choice) out += "one of " + text_of(setting.choices) + "; ";
    out += "default: " + default_of(setting) + "; " + text_of(setting.environment) + "\n";
  }
  return out;
}

std::string settings_markdown() {
  std::string out =
      "# Settings\n\n"
      "<!-- Written by `terrace help settings` from the table in base/settings.cpp; a test compares the two. "
      "-->\n\n"
      "Flags go before the command of `terrace run`. The environment variables hold for `terrace run` and "
      "for the preload\n"
      "and link-time libraries alike. The command line wins over the environment. Sizes are written `4GiB`, "
      "`512MiB`, `1.5G`\n"
      "(binary), `4GB` (decimal) or as plain bytes.\n\n"
      "| flag | variable | default | range | what it does |\n|---|---|---|---|---|\n";
  for (const Setting& setting : settings_table()) {
    out += "| `" + escaped(flag_text(setting)) + "` | `" + text_of(setting.environment) + "` | " +
           default_of(setting) + " | " + escaped(range_of(setting)) + " | " + text_of(setting.help) + " |\n";
  }
  out +=
      "\nThe range of `--store` is that of its SIZE. A store is refused on tmpfs, which is memory itself.\n";
  return out;
}

}  // namespace terrace
