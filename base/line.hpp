// One line of text in a fixed buffer: how the library speaks where stdio and the heap are out of reach
// (inside malloc, in the pager). Text beyond the capacity is cut, never overrun.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace terrace {

class Line {
 public:
  Line& text(std::string_view s);
  Line& number(std::int64_t value);
  Line& hex(std::uint64_t value);
  // ` key=value`: the form of log lines.
  Line& field(std::string_view key, std::string_view value);
  Line& field(std::string_view key, std::int64_t value);
  // The name of an errno and its number: `EIO (5)`.
  Line& error(int errno_value);

  std::string_view view() const { return {buffer_, size_}; }
  // Writes the line and a newline to a descriptor with one raw write; a failure is ignored (there is nobody
  // to tell).
  void write_to(int descriptor) const;

 private:
  static constexpr std::size_t kCapacity = 500;
  char buffer_[kCapacity + 1];
  std::size_t size_ = 0;
};

// `EIO`, `ENOSPC`, ...; "E?" for one that has no name here.
const char* errno_name(int errno_value);

}  // namespace terrace
