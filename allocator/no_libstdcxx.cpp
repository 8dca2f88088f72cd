// What compiled C++ may ask of libstdc++ and this library must bring itself, since a program in C has none.
// Each is the end of a path that cannot be taken; it aborts with a line.
#include "base/check.hpp"

extern "C" [[noreturn]] void __cxa_pure_virtual() {
  terrace::check_failed(__FILE__, __LINE__, "pure virtual", "a pure virtual function was called");
}

namespace std {
// std::string_view's checked members.
[[noreturn]] void __throw_out_of_range_fmt(const char* text, ...) {
  terrace::check_failed(__FILE__, __LINE__, "out of range", text);
}
[[noreturn]] void __throw_out_of_range(const char* text) {
  terrace::check_failed(__FILE__, __LINE__, "out of range", text);
}
}  // namespace std
