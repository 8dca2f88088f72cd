#include "base/size_text.hpp"

#include <cstring>

#include "base/types.hpp"

namespace terrace {

namespace {

constexpr std::uint64_t kMax = ~std::uint64_t{0};

Status refused(const char* text) { return Status::failure(ErrorCode::invalid_argument, 0, text); }

bool is_digit(char c) { return c >= '0' && c <= '9'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }

// Bytes of a unit: "" and "b" are 1, "k", "ki" and "kib" 1024, "kb" 1000; 0 when it is none.
std::uint64_t unit_bytes(std::string_view unit) {
  if (unit.empty()) return 1;
  const char first = lower(unit[0]);
  if (first == 'b') return unit.size() == 1 ? 1 : 0;
  constexpr std::string_view kLetters = "kmgt";
  const std::size_t power = kLetters.find(first);
  if (power == std::string_view::npos || unit.size() > 3) return 0;
  std::uint64_t base = 1024;
  if (unit.size() == 2) {
    if (lower(unit[1]) == 'b')
      base = 1000;
    else if (lower(unit[1]) != 'i')
      return 0;
  } else if (unit.size() == 3 && (lower(unit[1]) != 'i' || lower(unit[2]) != 'b')) {
    return 0;
  }
  std::uint64_t bytes = 1;
  for (std::size_t i = 0; i <= power; ++i) bytes *= base;
  return bytes;
}

// Reads digits from `text` at `at`; false when they do not fit into 64 bits.
bool read_digits(std::string_view text, std::size_t& at, std::uint64_t& value) {
  value = 0;
  for (; at < text.size() && is_digit(text[at]); ++at) {
    const auto digit = std::uint64_t(text[at] - '0');
    if (value > (kMax - digit) / 10) return false;
    value = value * 10 + digit;
  }
  return true;
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  if (text.empty()) return refused("it is empty");
  std::size_t at = 0;
  std::uint64_t whole = 0;
  if (!is_digit(text[0])) return refused("it does not begin with a number");
  if (!read_digits(text, at, whole)) return refused("it is more than 64 bits hold");
  // A fraction of up to 6 digits: times the largest unit (2^40) it still fits into 64 bits.
  std::uint64_t fraction = 0, scale = 1;
  const bool has_fraction = at < text.size() && text[at] == '.';
  if (has_fraction) {
    const std::size_t begin = ++at;
    if (!read_digits(text, at, fraction) || at == begin || at - begin > 6)
      return refused("its fraction has not 1 to 6 digits");
    for (std::size_t i = begin; i < at; ++i) scale *= 10;
  }
  const std::uint64_t unit = unit_bytes(text.substr(at));
  if (unit == 0) return refused("its unit is none of K, M, G, T (binary), KiB..TiB, KB..TB (decimal), B");
  if (has_fraction && unit == 1) return refused("a fraction needs a unit, as in 1.5GiB");
  if (whole > kMax / unit) return refused("it is more than 64 bits hold");
  const std::uint64_t part = fraction * unit / scale;
  if (whole * unit > kMax - part) return refused("it is more than 64 bits hold");
  return whole * unit + part;
}

Result<std::uint64_t> parse_number(std::string_view text) {
  std::size_t at = 0;
  std::uint64_t value = 0;
  if (text.empty()) return refused("it is empty");
  if (!read_digits(text, at, value)) return refused("it is more than 64 bits hold");
  if (at != text.size()) return refused("it is not a whole number");
  return value;
}

void SizeText::append(std::string_view text) {
  std::memcpy(chars_ + size_, text.data(), text.size());
  size_ += text.size();
}

void SizeText::append_number(std::uint64_t value) {
  char digits[20];
  std::size_t at = sizeof digits;
  do digits[--at] = char('0' + value % 10);
  while ((value /= 10) != 0);
  append({digits + at, sizeof digits - at});
}

namespace {
constexpr std::string_view kUnits[] = {"", "KiB", "MiB", "GiB", "TiB"};
constexpr std::uint64_t kUnitBytes[] = {1, kKiB, kMiB, kGiB, kTiB};
}  // namespace

SizeText SizeText::exact(std::uint64_t bytes) {
  SizeText text;
  int unit = 4;
  while (unit > 0 && (bytes == 0 || bytes % kUnitBytes[unit] != 0)) --unit;
  text.append_number(bytes / kUnitBytes[unit]);
  text.append(kUnits[unit]);
  return text;
}

SizeText SizeText::rounded(std::uint64_t bytes) {
  SizeText text;
  int unit = 4;
  while (unit > 0 && bytes < kUnitBytes[unit]) --unit;
  std::uint64_t whole = bytes / kUnitBytes[unit];
  std::uint64_t tenths =
      unit == 0 ? 0 : (bytes % kUnitBytes[unit] * 10 + kUnitBytes[unit] / 2) / kUnitBytes[unit];
  if (tenths == 10) {
    ++whole;
    tenths = 0;
  }
  if (whole == 1024 && unit < 4) {  // 1023.97 KiB is 1 MiB once rounded
    whole = 1;
    ++unit;
  }
  text.append_number(whole);
  if (tenths != 0) {
    text.append(".");
    text.append_number(tenths);
  }
  text.append(unit == 0 ? "B" : kUnits[unit]);
  return text;
}

}  // namespace terrace
