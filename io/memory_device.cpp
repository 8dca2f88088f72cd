#include "io/memory_device.hpp"

#include <bit>
#include <cerrno>
#include <cstring>

#include "io/random.hpp"

namespace terrace::io {

Status MemoryDevice::open(const MemoryOptions& options) {
  if (options.depth == 0 || options.depth > kMaxDepth)
    return Status::failure(ErrorCode::invalid_argument, 0, "queue depth out of range");
  if (!std::has_single_bit(options.alignment))
    return Status::failure(ErrorCode::invalid_argument, 0, "alignment is no power of two");
  const std::uint64_t slots_bytes = SlotTable::table_bytes(options.depth);
  if (Status s = table_.map(slots_bytes + options.depth * sizeof(std::uint16_t)); !s.ok()) return s;
  own_bytes_.reset();
  if (options.bytes == nullptr && options.size_bytes != 0)
    if (Status s = own_bytes_.map(options.size_bytes); !s.ok()) return s;
  bytes_ = static_cast<char*>(options.bytes != nullptr ? options.bytes : own_bytes_.data());
  size_bytes_ = options.size_bytes;
  slots_.init(table_.data(), options.depth);
  order_ = reinterpret_cast<std::uint16_t*>(static_cast<char*>(table_.data()) + slots_bytes);
  alignment_ = options.alignment;
  latency_polls_ = options.latency_polls;
  random_ = options.seed;
  counters_ = {};
  return Status::success();
}

Status MemoryDevice::submit(const Request& request) {
  if (!well_formed(request, alignment_))
    return Status::failure(ErrorCode::invalid_argument, 0, "request breaks the device's contract");
  const std::uint32_t at = slots_.used();
  Slot* slot = slots_.take(request);
  if (slot == nullptr) return Status::failure(ErrorCode::busy, 0, "queue full");
  counters_.requests++;
  order_[at] = std::uint16_t(slots_.index(*slot));
  if (latency_polls_ != 0)
    slot->polls_left = 1 + std::uint32_t(next_random(random_) % latency_polls_);
  else
    serve(*slot);
  return Status::success();
}

void MemoryDevice::serve(Slot& slot) {
  slot.error = run_transfer(slot.transfer, alignment_, injector_, counters_,
                            [this](const Transfer& t, std::uint32_t length) -> long {
                              if (t.offset() >= size_bytes_) return 0;
                              const std::uint64_t room = size_bytes_ - t.offset();
                              if (length > room) length = std::uint32_t(room);
                              if (t.request.op == Op::read)
                                std::memcpy(t.buffer(), bytes_ + t.offset(), length);
                              else
                                std::memcpy(bytes_ + t.offset(), t.buffer(), length);
                              return long(length);
                            });
}

std::size_t MemoryDevice::poll(std::span<Completion> out) {
  std::size_t n = 0;
  std::uint32_t kept = 0;
  const std::uint32_t count = slots_.used();
  for (std::uint32_t i = 0; i < count; i++) {
    Slot& slot = slots_.at(order_[i]);
    if (slot.polls_left > 1 || n == out.size()) {
      if (slot.polls_left > 1) slot.polls_left--;
      order_[kept++] = order_[i];
      continue;
    }
    if (slot.polls_left == 1) serve(slot);
    out[n++] = {slot.transfer.request.id, slot.error};
    slots_.give_back(slot);
  }
  return n;
}

}  // namespace terrace::io
