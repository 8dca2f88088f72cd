#include "base/json.hpp"

#include <charconv>
#include <cmath>

#include "base/check.hpp"

namespace terrace {

namespace {

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          constexpr char kHex[] = "0123456789abcdef";
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

}  // namespace

void JsonWriter::new_line() {
  if (indent_ == 0) return;
  out_ += '\n';
  out_.append(nesting_.size() * std::size_t(indent_), ' ');
}

void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  TERRACE_CHECK(nesting_.empty() || nesting_.back() == '[', "a value in an object needs a key");
  if (nesting_.empty()) return;
  if (!first_) out_ += indent_ == 0 ? ", " : ",";
  new_line();
}

void JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  nesting_ += bracket;
  first_ = true;
}

void JsonWriter::close(char bracket) {
  TERRACE_CHECK(!nesting_.empty() && !after_key_, "nothing to close");
  nesting_.pop_back();
  if (!first_) new_line();
  out_ += bracket;
  first_ = false;
}

JsonWriter& JsonWriter::begin_object() { return open('{'), *this; }
JsonWriter& JsonWriter::end_object() { return close('}'), *this; }
JsonWriter& JsonWriter::begin_array() { return open('['), *this; }
JsonWriter& JsonWriter::end_array() { return close(']'), *this; }

JsonWriter& JsonWriter::key(std::string_view name) {
  TERRACE_CHECK(!nesting_.empty() && nesting_.back() == '{' && !after_key_, "a key outside an object");
  if (!first_) out_ += indent_ == 0 ? ", " : ",";
  new_line();
  append_quoted(out_, name);
  out_ += ": ";
  first_ = false;
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view text) {
  separate();
  out_ += text;
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  std::string quoted;
  append_quoted(quoted, text);
  return raw(quoted);
}

JsonWriter& JsonWriter::value(bool truth) { return raw(truth ? "true" : "false"); }

JsonWriter& JsonWriter::value(double number) {
  if (!std::isfinite(number)) return null();
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  return raw({digits, std::size_t(end - digits)});
}

std::string JsonWriter::finish() {
  TERRACE_CHECK(nesting_.empty() && !out_.empty(), "JSON ended with something open");
  out_ += '\n';
  return std::move(out_);
}

}  // namespace terrace
