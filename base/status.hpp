// Operating errors as values: a code, the errno behind it and a static text. Never thrown across the
// library's edge, never allocated; safe inside malloc and inside a fault.
#pragma once

#include <cstdint>
#include <utility>

#include "base/check.hpp"

namespace terrace {

enum class ErrorCode : std::uint8_t {
  ok,
  invalid_argument,  // the caller's input, or a setting out of range
  not_supported,     // the kernel or the file system lacks it
  no_permission,
  no_memory,
  no_space,  // the store is full
  io_error,  // a device failed: errno says how
  corrupt,   // a checksum or a format did not hold
  busy,      // try again later
  not_found,
};

const char* to_text(ErrorCode code);

struct [[nodiscard]] Status {
  ErrorCode code = ErrorCode::ok;
  int errno_value = 0;
  const char* text = "";  // static storage

  constexpr bool ok() const { return code == ErrorCode::ok; }
  static constexpr Status success() { return {}; }
  static constexpr Status failure(ErrorCode c, int errno_value, const char* text) {
    return {c, errno_value, text};
  }
  // The code that fits an errno: ENOSPC and EDQUOT are no_space, EPERM and EACCES no_permission, and so on.
  static Status from_errno(int errno_value, const char* text);
};

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(status) {
    TERRACE_CHECK(!status.ok(), "a Result without value needs a failure");
  }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() {
    TERRACE_CHECK(ok(), "value() of a failed Result");
    return value_;
  }
  const T& value() const {
    TERRACE_CHECK(ok(), "value() of a failed Result");
    return value_;
  }

 private:
  T value_{};
  Status status_{};
};

}  // namespace terrace
