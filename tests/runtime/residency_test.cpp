#include "runtime/residency.hpp"

#include <doctest/doctest.h>

#include <set>
#include <tuple>

using namespace terrace::runtime;

TEST_CASE("residency: exactly the pairs of the design are allowed, over all states and causes") {
  using R = Residency;
  using C = Cause;
  const std::set<std::tuple<R, C, R>> design = {
      {R::empty, C::populate, R::mapped},
      {R::mapped, C::stage, R::staged_dirty},
      {R::staged_dirty, C::rescue, R::mapped},
      {R::staged_dirty, C::same_hash, R::staged_clean},
      {R::staged_dirty, C::write_begin, R::writing},
      {R::writing, C::write_done, R::staged_clean},
      {R::writing, C::write_failed, R::staged_dirty},
      {R::staged_clean, C::rescue, R::mapped},
      {R::staged_clean, C::drop, R::stored},
      {R::stored, C::read_begin, R::reading},
      {R::reading, C::read_done, R::staged_clean},
      {R::reading, C::read_failed, R::stored},
  };
  std::size_t allowed = 0;
  for (std::uint32_t s = 0; s < kResidencyCount; ++s) {
    for (std::uint32_t c = 0; c < kCauseCount; ++c) {
      const Transition t = transition(R(s), C(c));
      if (!t.allowed) continue;
      ++allowed;
      CAPTURE(to_text(R(s)));
      CAPTURE(to_text(C(c)));
      CHECK(design.count({R(s), C(c), t.next}) == 1);
    }
  }
  CHECK(allowed == design.size());
}

TEST_CASE("residency: every state can be left, and every state but empty can be reached") {
  for (std::uint32_t s = 0; s < kResidencyCount; ++s) {
    bool left = false, reached = Residency(s) == Residency::empty;
    for (std::uint32_t c = 0; c < kCauseCount; ++c) {
      left |= transition(Residency(s), Cause(c)).allowed;
      for (std::uint32_t from = 0; from < kResidencyCount; ++from) {
        const Transition t = transition(Residency(from), Cause(c));
        reached |= t.allowed && t.next == Residency(s);
      }
    }
    CHECK(left);
    CHECK(reached);
  }
}
