#include "runtime/residency.hpp"

#include <atomic>

#include "base/check.hpp"

namespace terrace::runtime {
namespace {

struct Row {
  Residency from;
  Cause cause;
  Residency next;
};

constexpr Row kTable[] = {
    {Residency::empty, Cause::populate, Residency::mapped},
    {Residency::mapped, Cause::stage, Residency::staged_dirty},
    {Residency::staged_dirty, Cause::rescue, Residency::mapped},
    {Residency::staged_dirty, Cause::same_hash, Residency::staged_clean},
    {Residency::staged_dirty, Cause::write_begin, Residency::writing},
    {Residency::writing, Cause::write_done, Residency::staged_clean},
    {Residency::writing, Cause::write_failed, Residency::staged_dirty},
    {Residency::staged_clean, Cause::rescue, Residency::mapped},
    {Residency::staged_clean, Cause::drop, Residency::stored},
    {Residency::stored, Cause::read_begin, Residency::reading},
    {Residency::reading, Cause::read_done, Residency::staged_clean},
    {Residency::reading, Cause::read_failed, Residency::stored},
};

// Written by one pager at a time: a load and a store, no locked instruction.
std::atomic<std::uint64_t> taken[kResidencyCount][kCauseCount];

}  // namespace

Transition transition(Residency from, Cause cause) {
  for (const Row& row : kTable)
    if (row.from == from && row.cause == cause) return {true, row.next};
  return {false, from};
}

Residency next_residency(Residency from, Cause cause) {
  const Transition t = transition(from, cause);
  TERRACE_CHECK(t.allowed, "a block changes its residency along the table only");
  auto& counter = taken[std::uint32_t(from)][std::uint32_t(cause)];
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return t.next;
}

std::uint64_t transitions_taken(Residency from, Cause cause) {
  return taken[std::uint32_t(from)][std::uint32_t(cause)].load(std::memory_order_relaxed);
}

const char* to_text(Residency state) {
  constexpr const char* kNames[kResidencyCount] = {"empty",        "mapped", "staged_dirty", "writing",
                                                   "staged_clean", "stored", "reading"};
  return kNames[std::uint32_t(state)];
}

const char* to_text(Cause cause) {
  constexpr const char* kNames[kCauseCount] = {"populate",    "stage",      "rescue",       "same_hash",
                                               "write_begin", "write_done", "write_failed", "drop",
                                               "read_begin",  "read_done",  "read_failed"};
  return kNames[std::uint32_t(cause)];
}

}  // namespace terrace::runtime
