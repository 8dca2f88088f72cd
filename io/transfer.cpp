#include "io/transfer.hpp"

#include <cerrno>

namespace terrace::io {

namespace {
// EINTR and EAGAIN in a row after which the device is believed: at 2 to 30 us a try this is 20 to 300 ms, far
// beyond what a full queue or a signal explains, far below the caller's limit on I/O.
constexpr std::uint32_t kMaxFruitless = 10'000;
}  // namespace

Verdict Transfer::judge(long raw, DeviceCounters& counters, int& error) {
  if (raw == -EINTR || raw == -EAGAIN) {
    counters.retried++;
    if (++fruitless < kMaxFruitless) return Verdict::resume;
    error = int(-raw);
    counters.errors++;
    return Verdict::failed;
  }
  fruitless = 0;
  const bool too_much = raw > 0 && std::uint64_t(raw) > std::uint64_t(request.length) - start;
  if (raw < 0 || too_much || start + std::uint32_t(raw) <= done) {
    error = raw < 0 ? int(-raw) : EIO;
    counters.errors++;
    return Verdict::failed;
  }
  done = start + std::uint32_t(raw);
  if (done == request.length) return Verdict::finished;
  counters.resumed_short++;
  return Verdict::resume;
}

bool well_formed(const Request& request, std::uint32_t alignment) {
  const std::uint64_t bits =
      std::uint64_t(reinterpret_cast<std::uintptr_t>(request.buffer)) | request.offset | request.length;
  return request.length != 0 && request.buffer != nullptr && bits % alignment == 0 &&
         request.length <= kMaxRequestBytes && request.offset <= ~std::uint64_t{0} / 2 - request.length &&
         (request.op == Op::read || request.op == Op::write);
}

}  // namespace terrace::io
