// A block device that wraps another and misbehaves by rules and a seed: for tests and for the model checker.
//
// Nouns: a *rule* names a fault and the requests that meet it. Faults at the contract (errors, wrong bytes,
// completions that come late or never) are made here; faults below it (short transfers, EINTR, EAGAIN, which
// a device must hide) reach the wrapped device as its Injector: attach() does that for devices that have
// set_injector(). The same rules and seed on the same requests give the same faults. Threads: one user at a
// time. No heap, no errno after open().
#pragma once

#include "io/block_device.hpp"
#include "io/private_mapping.hpp"
#include "io/slots.hpp"
#include "io/transfer.hpp"

namespace terrace::io {

enum class FaultKind : std::uint8_t {
  eio,          // the request fails with EIO, nothing is moved
  no_space,     // the write fails with ENOSPC, nothing is moved
  bit_flip,     // a read succeeds with one bit wrong
  stale,        // a write succeeds and moves nothing: later reads give older bytes
  misdirected,  // a read succeeds with the bytes of another place (its length before its offset, else after)
  delay,        // the completion comes `polls` polls late
  never,        // the completion never comes; nothing is moved
  short_transfer,  // below the contract: an attempt moves a part only
  interrupted,     // an attempt gives EINTR and moves nothing
  again,           // an attempt gives EAGAIN and moves nothing
  partial_again,   // an attempt moves a part, and the next one gives EAGAIN
  zero,            // an attempt gives 0 bytes
};
inline constexpr int kFaultKinds = 12;
const char* to_text(FaultKind kind);

enum class FaultOn : std::uint8_t { both, reads, writes };

struct FaultRule {
  FaultKind kind = FaultKind::eio;
  FaultOn on = FaultOn::both;
  std::uint64_t begin = 0, end = ~std::uint64_t{0};  // requests that overlap these bytes of the file
  std::uint32_t skip = 0;                            // the first so many that match go by unharmed
  std::uint32_t times = 0;                           // how often it strikes; 0: for ever
  std::uint32_t one_in = 1;                          // by chance, one in so many
  std::uint32_t polls = 3;                           // of `delay`
};

class FaultyDevice final : public BlockDevice, public Injector {
 public:
  static constexpr std::size_t kMaxRules = 16;

  FaultyDevice() = default;
  FaultyDevice(const FaultyDevice&) = delete;
  FaultyDevice& operator=(const FaultyDevice&) = delete;
  ~FaultyDevice() { close(); }

  // `inner` is open and outlives this device, which is its only user. Errors: no_memory, invalid_argument.
  Status open(BlockDevice& inner, std::span<const FaultRule> rules, std::uint64_t seed);
  void close();
  // Lets faults below the contract reach the wrapped device.
  template <typename Device>
  void attach(Device& device) {
    device.set_injector(this);
  }
  // Replaces the rules from the next request on; counts begin anew.
  Status set_rules(std::span<const FaultRule> rules);

  Status submit(const Request& request) override;
  void flush() override { inner_->flush(); }
  std::size_t poll(std::span<Completion> out) override;
  void wait(int timeout_ms) override;
  int poll_descriptor() const override { return epoll_; }
  std::uint32_t depth() const override { return slots_.depth(); }
  std::uint32_t in_flight() const override { return slots_.used(); }
  std::uint32_t alignment() const override { return inner_->alignment(); }
  const char* name() const override { return "faulty"; }

  std::uint32_t limit(const Request& request, std::uint32_t done, std::uint32_t length) override;
  long alter(const Request& request, std::uint32_t done, long raw) override;

  // How often a rule struck, and all together.
  std::uint64_t strikes(std::size_t rule) const { return states_[rule].strikes; }
  std::uint64_t strikes() const;
  // Requests whose completion was swallowed; they stay in flight.
  std::uint32_t lost() const { return lost_; }

 private:
  struct RuleState {
    std::uint64_t matches = 0, strikes = 0;
  };
  bool strikes_now(std::size_t rule, const Request& request);
  void hold(Slot& slot, int error, std::uint32_t polls);
  void show_held();

  BlockDevice* inner_ = nullptr;
  PrivateMapping memory_;
  SlotTable slots_;
  FaultRule rules_[kMaxRules];
  RuleState states_[kMaxRules];
  std::size_t rule_count_ = 0;
  std::uint64_t random_ = 1;
  std::uint32_t held_ = 0;  // completions made or kept here, to be given by a later poll
  std::uint32_t lost_ = 0;
  int epoll_ = -1, event_ = -1;  // readable when the wrapped device is, or while completions are held
  bool shown_ = false;
  struct Fate;  // what is in store for the request of a slot
  Fate* fates_ = nullptr;
};

}  // namespace terrace::io
