#include "clients/cli/watchdog.hpp"

#include <doctest/doctest.h>

#include <initializer_list>

#include "base/clock.hpp"

using terrace::kNsPerMs;
using terrace::cli::Watchdog;

namespace {

// Ticks every 100 ms from `from_ms` to `to_ms` with one beat; the time of the first tick that said overdue,
// or 0.
std::uint64_t first_overdue_ms(Watchdog& dog, std::uint64_t from_ms, std::uint64_t to_ms,
                               std::uint64_t due_ms, char state) {
  for (std::uint64_t ms = from_ms; ms <= to_ms; ms += 100) {
    if (dog.tick(ms * kNsPerMs, 1, due_ms * kNsPerMs, state)) return ms;
  }
  return 0;
}

}  // namespace

TEST_CASE("watchdog: a pager that sleeps is late a second after its promise and not before") {
  Watchdog dog;
  const std::uint64_t ms = first_overdue_ms(dog, 1000, 5000, 1500, 'S');
  CHECK(ms > 2500);
  CHECK(ms <= 2700);
}

TEST_CASE("watchdog: one that promised nothing is never late") {
  Watchdog dog;
  CHECK(first_overdue_ms(dog, 1000, 60000, 0, 'S') == 0);
}

TEST_CASE("watchdog: one that runs or waits for the kernel is given ten seconds") {
  for (const char state : {'R', 'D'}) {
    Watchdog dog;
    const std::uint64_t ms = first_overdue_ms(dog, 1000, 30000, 1000, state);
    CHECK(ms > 11000);
    CHECK(ms <= 11200);
  }
}

TEST_CASE("watchdog: stopped time does not count") {
  Watchdog dog;
  CHECK(first_overdue_ms(dog, 1000, 60000, 1000, 'T') == 0);
  CHECK(first_overdue_ms(dog, 60100, 60900, 1000, 'S') == 0);
  CHECK(first_overdue_ms(dog, 61000, 62000, 1000, 'S') != 0);
}

TEST_CASE("watchdog: time in which the supervisor itself was stopped does not count") {
  Watchdog dog;
  CHECK(first_overdue_ms(dog, 1000, 1500, 1000, 'S') == 0);
  CHECK_FALSE(dog.tick(90'000 * kNsPerMs, 1, 1000 * kNsPerMs, 'S'));
  CHECK(first_overdue_ms(dog, 90'100, 91'000, 1000, 'S') != 0);
}

TEST_CASE("watchdog: a beat begins anew") {
  Watchdog dog;
  CHECK(first_overdue_ms(dog, 1000, 1900, 1000, 'S') == 0);
  CHECK_FALSE(dog.tick(2000 * kNsPerMs, 2, 1000 * kNsPerMs, 'S'));
  CHECK(dog.late_ns() <= 100 * kNsPerMs);
}
