#include "io/faulty_device.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/syscall.hpp"
#include "io/random.hpp"

namespace terrace::io {

struct FaultyDevice::Fate {
  bool struck;  // `kind` waits for the completion of the wrapped device
  FaultKind kind;
  std::uint32_t polls;  // of a delay
  long result;          // what the attempt under way shall give in place of its own result; 0: nothing
  bool zero, again_next;
};

namespace {

constexpr bool below_the_contract(FaultKind kind) { return kind >= FaultKind::short_transfer; }

bool can_strike(FaultKind kind, Op op) {
  switch (kind) {
    case FaultKind::no_space:
    case FaultKind::stale: return op == Op::write;
    case FaultKind::bit_flip:
    case FaultKind::misdirected: return op == Op::read;
    default: return true;
  }
}

}  // namespace

const char* to_text(FaultKind kind) {
  switch (kind) {
    case FaultKind::eio: return "eio";
    case FaultKind::no_space: return "no_space";
    case FaultKind::bit_flip: return "bit_flip";
    case FaultKind::stale: return "stale";
    case FaultKind::misdirected: return "misdirected";
    case FaultKind::delay: return "delay";
    case FaultKind::never: return "never";
    case FaultKind::short_transfer: return "short_transfer";
    case FaultKind::interrupted: return "interrupted";
    case FaultKind::again: return "again";
    case FaultKind::partial_again: return "partial_again";
    case FaultKind::zero: return "zero";
  }
  return "unknown";
}

Status FaultyDevice::open(BlockDevice& inner, std::span<const FaultRule> rules, std::uint64_t seed) {
  close();
  if (Status s = set_rules(rules); !s.ok()) return s;
  const std::uint32_t depth = inner.depth();
  const std::uint64_t slots_bytes = round_up(SlotTable::table_bytes(depth), 64);
  if (Status s = memory_.map(slots_bytes + depth * sizeof(Fate)); !s.ok()) return s;
  slots_.init(memory_.data(), depth);
  fates_ = reinterpret_cast<Fate*>(static_cast<char*>(memory_.data()) + slots_bytes);
  inner_ = &inner;
  random_ = seed;
  held_ = lost_ = 0;
  shown_ = false;
  if (inner.poll_descriptor() < 0) return Status::success();
  const long epoll = sys(SYS_epoll_create1, EPOLL_CLOEXEC);
  const long event = sys(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_ = epoll < 0 ? -1 : int(epoll);
  event_ = event < 0 ? -1 : int(event);
  for (const int fd : {inner.poll_descriptor(), event_}) {
    epoll_event e{};
    e.events = POLLIN;
    const long r = sys(SYS_epoll_ctl, epoll_, EPOLL_CTL_ADD, fd, &e);
    if (r < 0) {
      close();
      return Status::from_errno(int(-r), "the descriptors of a faulty device");
    }
  }
  return Status::success();
}

void FaultyDevice::close() {
  if (epoll_ >= 0) (void)sys(SYS_close, epoll_);
  if (event_ >= 0) (void)sys(SYS_close, event_);
  epoll_ = event_ = -1;
  inner_ = nullptr;
  slots_ = {};
  memory_.reset();
}

Status FaultyDevice::set_rules(std::span<const FaultRule> rules) {
  if (rules.size() > kMaxRules)
    return Status::failure(ErrorCode::invalid_argument, 0, "too many fault rules");
  for (const FaultRule& rule : rules)
    if (rule.one_in == 0)
      return Status::failure(ErrorCode::invalid_argument, 0, "a fault rule with one_in = 0");
  std::copy(rules.begin(), rules.end(), rules_);
  std::fill(states_, states_ + kMaxRules, RuleState{});
  rule_count_ = rules.size();
  return Status::success();
}

std::uint64_t FaultyDevice::strikes() const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < rule_count_; i++) sum += states_[i].strikes;
  return sum;
}

bool FaultyDevice::strikes_now(std::size_t i, const Request& request) {
  const FaultRule& rule = rules_[i];
  RuleState& state = states_[i];
  if (!can_strike(rule.kind, request.op)) return false;
  if (rule.on != FaultOn::both && (rule.on == FaultOn::reads) != (request.op == Op::read)) return false;
  if (request.offset >= rule.end || request.offset + request.length <= rule.begin) return false;
  if (state.matches++ < rule.skip) return false;
  if (rule.times != 0 && state.strikes >= rule.times) return false;
  if (rule.one_in > 1 && next_random(random_) % rule.one_in != 0) return false;
  state.strikes++;
  return true;
}

// The slot's completion is given by a poll from here on: at once (1) or after more polls.
void FaultyDevice::hold(Slot& slot, int error, std::uint32_t polls) {
  slot.error = error;
  slot.polls_left = polls;
  held_++;
  show_held();
}

void FaultyDevice::show_held() {
  if (event_ < 0 || shown_ == (held_ != 0)) return;
  std::uint64_t value = 1;
  (void)sys(held_ != 0 ? SYS_write : SYS_read, event_, &value, sizeof value);
  shown_ = held_ != 0;
}

Status FaultyDevice::submit(const Request& request) {
  if (!well_formed(request, alignment()))
    return Status::failure(ErrorCode::invalid_argument, 0, "request breaks the device's contract");
  Slot* slot = slots_.take(request);
  if (slot == nullptr) return Status::failure(ErrorCode::busy, 0, "queue full");
  Fate& fate = fates_[slots_.index(*slot)];
  fate = {};
  Request passed = request;
  passed.id = slots_.new_tag(*slot);
  for (std::size_t i = 0; i < rule_count_; i++) {
    if (below_the_contract(rules_[i].kind) || !strikes_now(i, request)) continue;
    switch (rules_[i].kind) {
      case FaultKind::eio: return hold(*slot, EIO, 1), Status::success();
      case FaultKind::no_space: return hold(*slot, ENOSPC, 1), Status::success();
      case FaultKind::stale: return hold(*slot, 0, 1), Status::success();
      case FaultKind::never: return lost_++, Status::success();
      case FaultKind::misdirected:
        passed.offset = request.offset >= request.length ? request.offset - request.length
                                                         : request.offset + request.length;
        break;
      default: break;
    }
    fate.struck = true;
    fate.kind = rules_[i].kind;
    fate.polls = rules_[i].polls;
    break;
  }
  const Status status = inner_->submit(passed);
  if (!status.ok()) slots_.give_back(*slot);
  return status;
}

std::size_t FaultyDevice::poll(std::span<Completion> out) {
  std::size_t n = 0;
  for (std::uint32_t i = 0; held_ != 0 && i < slots_.depth() && n < out.size(); i++) {
    Slot& slot = slots_.at(i);
    if (!slot.used || slot.polls_left == 0 || --slot.polls_left != 0) continue;
    out[n++] = {slot.transfer.request.id, slot.error};
    slots_.give_back(slot);
    held_--;
  }
  while (n < out.size()) {
    Completion given[32];
    const std::size_t got = inner_->poll(std::span(given).first(std::min(std::size(given), out.size() - n)));
    if (got == 0) break;
    for (std::size_t i = 0; i < got; i++) {
      Slot* slot = slots_.find(given[i].id);
      TERRACE_CHECK(slot != nullptr, "the wrapped device completes what it was given, once");
      const Request& request = slot->transfer.request;
      const Fate& fate = fates_[slots_.index(*slot)];
      if (fate.struck && fate.kind == FaultKind::delay) {
        hold(*slot, given[i].errno_value, fate.polls + 1);
        continue;
      }
      if (fate.struck && fate.kind == FaultKind::bit_flip && given[i].errno_value == 0) {
        const std::uint64_t bit = next_random(random_) % (std::uint64_t(request.length) * 8);
        static_cast<unsigned char*>(request.buffer)[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
      }
      out[n++] = {request.id, given[i].errno_value};
      slots_.give_back(*slot);
    }
  }
  show_held();
  return n;
}

void FaultyDevice::wait(int timeout_ms) {
  if (held_ != 0 || inner_->in_flight() != 0) return inner_->wait(held_ != 0 ? 0 : timeout_ms);
  if (in_flight() == 0 || timeout_ms <= 0) return;
  // Only lost requests are in flight: they are waited for as one waits for a disk that has gone.
  timespec t{timeout_ms / 1000, (timeout_ms % 1000) * 1'000'000L};
  (void)sys(SYS_ppoll, nullptr, 0, &t, nullptr, 0);
}

std::uint32_t FaultyDevice::limit(const Request& request, std::uint32_t, std::uint32_t length) {
  Slot* slot = slots_.find(request.id);
  if (slot == nullptr) return length;
  Fate& fate = fates_[slots_.index(*slot)];
  const std::uint32_t unit = alignment();
  fate.result = 0;
  fate.zero = false;
  if (fate.again_next) {
    fate.again_next = false;
    fate.result = -EAGAIN;
    return std::min(unit, length);
  }
  for (std::size_t i = 0; i < rule_count_; i++) {
    const FaultKind kind = rules_[i].kind;
    const bool partial = kind == FaultKind::short_transfer || kind == FaultKind::partial_again;
    if (!below_the_contract(kind) || (partial && length <= unit) || !strikes_now(i, request)) continue;
    if (partial) {
      fate.again_next = kind == FaultKind::partial_again;
      const std::uint32_t units = (length + unit - 1) / unit;
      return unit * (1 + std::uint32_t(next_random(random_) % (units - 1)));
    }
    // One unit is moved although the result denies it: the rest is really missing until the device tries
    // again.
    fate.result = kind == FaultKind::interrupted ? -EINTR : kind == FaultKind::again ? -EAGAIN : 0;
    fate.zero = kind == FaultKind::zero;
    return std::min(unit, length);
  }
  return length;
}

long FaultyDevice::alter(const Request& request, std::uint32_t, long raw) {
  Slot* slot = slots_.find(request.id);
  if (slot == nullptr) return raw;
  const Fate& fate = fates_[slots_.index(*slot)];
  return fate.zero ? 0 : fate.result != 0 ? fate.result : raw;
}

}  // namespace terrace::io
