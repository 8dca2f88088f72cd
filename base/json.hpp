// A writer of JSON: objects, arrays and values in the order in which they are given, on one line or indented.
//
// Invariant: what was written so far is a prefix of valid JSON; finish() checks that every object and array
// is closed. For programs, never for the preload: it uses the heap. One thread at a time.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

class JsonWriter {
 public:
  // `indent_spaces` 0 writes everything on one line.
  explicit JsonWriter(int indent_spaces = 0) : indent_(indent_spaces) {}

  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  // The name of the next value; only inside an object.
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(bool truth);
  JsonWriter& value(double number);  // null when it is not finite: JSON has no such number
  template <std::integral Integer>
  requires(!std::same_as<Integer, bool>) JsonWriter& value(Integer number) {
    return raw(std::to_string(number));
  }
  JsonWriter& null() { return raw("null"); }

  template <typename Value>
  JsonWriter& field(std::string_view name, Value v) {
    return key(name).value(v);
  }

  // The text, with a newline at its end.
  std::string finish();

 private:
  JsonWriter& raw(std::string_view text);
  void open(char bracket);
  void close(char bracket);
  void separate();
  void new_line();

  std::string out_;
  std::string nesting_;  // one of { [ for each open level
  bool first_ = true;    // nothing was written in this level yet
  bool after_key_ = false;
  int indent_;
};

}  // namespace terrace
