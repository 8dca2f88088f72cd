#include "base/line.hpp"

#include <cerrno>
#include <cstring>

#include "base/check.hpp"
#include "base/syscall.hpp"

namespace terrace {

Line& Line::text(std::string_view s) {
  const std::size_t room = kCapacity - size_;
  const std::size_t n = s.size() < room ? s.size() : room;
  std::memcpy(buffer_ + size_, s.data(), n);
  size_ += n;
  return *this;
}

Line& Line::number(std::int64_t value) {
  char digits[24];
  std::size_t at = sizeof digits;
  std::uint64_t rest = value < 0 ? 0 - std::uint64_t(value) : std::uint64_t(value);
  do digits[--at] = char('0' + rest % 10);
  while ((rest /= 10) != 0);
  if (value < 0) digits[--at] = '-';
  return text({digits + at, sizeof digits - at});
}

Line& Line::hex(std::uint64_t value) {
  char digits[16];
  std::size_t at = sizeof digits;
  do digits[--at] = "0123456789abcdef"[value & 15];
  while ((value >>= 4) != 0);
  return text("0x").text({digits + at, sizeof digits - at});
}

Line& Line::field(std::string_view key, std::string_view value) {
  return text(" ").text(key).text("=").text(value);
}
Line& Line::field(std::string_view key, std::int64_t value) {
  return text(" ").text(key).text("=").number(value);
}
Line& Line::error(int errno_value) {
  return text(errno_name(errno_value)).text(" (").number(errno_value).text(")");
}

void Line::write_to(int descriptor) const {
  char out[kCapacity + 1];
  std::memcpy(out, buffer_, size_);
  out[size_] = '\n';
  (void)sys(SYS_write, descriptor, out, size_ + 1);
}

const char* errno_name(int errno_value) {
  switch (errno_value) {
    case 0: return "ok";
    case EPERM: return "EPERM";
    case ENOENT: return "ENOENT";
    case EINTR: return "EINTR";
    case EIO: return "EIO";
    case EAGAIN: return "EAGAIN";
    case ENOMEM: return "ENOMEM";
    case EACCES: return "EACCES";
    case EFAULT: return "EFAULT";
    case EBUSY: return "EBUSY";
    case EEXIST: return "EEXIST";
    case ENODEV: return "ENODEV";
    case ENOTDIR: return "ENOTDIR";
    case EINVAL: return "EINVAL";
    case EMFILE: return "EMFILE";
    case EFBIG: return "EFBIG";
    case ENOSPC: return "ENOSPC";
    case EROFS: return "EROFS";
    case EPIPE: return "EPIPE";
    case ENOSYS: return "ENOSYS";
    case EOPNOTSUPP: return "EOPNOTSUPP";
    case ETIMEDOUT: return "ETIMEDOUT";
    case EDQUOT: return "EDQUOT";
    case EBADMSG: return "EBADMSG";
    case ESRCH: return "ESRCH";
    default: return "E?";
  }
}

void check_failed(const char* file, int line, const char* expression, const char* text) {
  Line out;
  out.text("terrace: check failed: ")
      .text(text)
      .field("at", file)
      .text(":")
      .number(line)
      .field("expression", expression);
  out.write_to(2);
  __builtin_trap();
}

}  // namespace terrace
