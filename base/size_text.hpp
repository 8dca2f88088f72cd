// Sizes as people write them, and back.
//
// `4GiB`, `512MiB`, `4G` (binary), `4GB` (decimal), `1.5GiB`, plain bytes; letters in either case.
// Any thread, any context: no heap, no locale, no errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.hpp"

namespace terrace {

// Bytes of a written size. Errors: invalid_argument (empty, no number, unknown unit, a fraction without a
// unit, more than 64 bits hold); the text says which.
Result<std::uint64_t> parse_size(std::string_view text);

// Digits only, up to 64 bits. Errors: invalid_argument.
Result<std::uint64_t> parse_number(std::string_view text);

// Text in the object itself, so that it can live on any stack.
class SizeText {
 public:
  // The shortest form that is exact (`4GiB`, `100003`) for exact(), and one decimal of the largest fitting
  // binary unit
  // (`3.4GiB`) for rounded(). parse_size reads both.
  static SizeText exact(std::uint64_t bytes);
  static SizeText rounded(std::uint64_t bytes);
  std::string_view view() const { return {chars_, size_}; }
  operator std::string_view() const { return view(); }

 private:
  void append(std::string_view text);
  void append_number(std::uint64_t value);
  char chars_[32];
  std::size_t size_ = 0;
};

}  // namespace terrace
