// Checks for programmer's errors: they write one line to descriptor 2 with a raw system call and abort. They
// hold in release too, may be used in any context (inside malloc, inside a fault), and never allocate.
#pragma once

namespace terrace {

[[noreturn]] void check_failed(const char* file, int line, const char* expression, const char* text);

}  // namespace terrace

// A macro, because a failed check must name its own file, line and expression.
#define TERRACE_CHECK(expression, text) \
  (static_cast<bool>(expression) ? void(0) : ::terrace::check_failed(__FILE__, __LINE__, #expression, text))
