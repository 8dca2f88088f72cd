#include "base/status.hpp"

#include <cerrno>

namespace terrace {

const char* to_text(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok: return "ok";
    case ErrorCode::invalid_argument: return "invalid argument";
    case ErrorCode::not_supported: return "not supported";
    case ErrorCode::no_permission: return "no permission";
    case ErrorCode::no_memory: return "no memory";
    case ErrorCode::no_space: return "no space";
    case ErrorCode::io_error: return "I/O error";
    case ErrorCode::corrupt: return "corrupt";
    case ErrorCode::busy: return "busy";
    case ErrorCode::not_found: return "not found";
  }
  return "unknown";
}

Status Status::from_errno(int errno_value, const char* text) {
  ErrorCode code = ErrorCode::io_error;
  switch (errno_value) {
    case EINVAL:
    case ENAMETOOLONG:
    case ENOTDIR: code = ErrorCode::invalid_argument; break;
    case EPERM:
    case EACCES:
    case EROFS: code = ErrorCode::no_permission; break;
    case ENOMEM: code = ErrorCode::no_memory; break;
    case ENOSPC:
    case EDQUOT:
    case EFBIG: code = ErrorCode::no_space; break;
    case ENOSYS:
    case EOPNOTSUPP: code = ErrorCode::not_supported; break;
    case EAGAIN:
    case EBUSY: code = ErrorCode::busy; break;
    case ENOENT: code = ErrorCode::not_found; break;
    default: break;
  }
  return {code, errno_value, text};
}

}  // namespace terrace
