#include "base/granule_mask.hpp"

#include <doctest/doctest.h>

using terrace::GranuleMask;

TEST_CASE("granule_mask: find_run gives the first run that is long enough") {
  const GranuleMask mask = GranuleMask::range(3, 2) | GranuleMask::range(60, 10) | GranuleMask::range(120, 8);
  CHECK(mask.find_run(1) == 3);
  CHECK(mask.find_run(2) == 3);
  CHECK(mask.find_run(3) == 60);
  CHECK(mask.find_run(10) == 60);
  CHECK(mask.find_run(11) == 128);
  CHECK(GranuleMask::all().find_run(128) == 0);
  CHECK(GranuleMask().find_run(1) == 128);
}

TEST_CASE("granule_mask: a search for a run agrees with a walk over all bits") {
  std::uint64_t state = 1;
  for (int round = 0; round < 2000; ++round) {
    GranuleMask mask;
    for (std::uint32_t i = 0; i < 128; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      if ((state >> 33) % 10 < std::uint64_t(round % 10)) mask |= GranuleMask::range(i, 1);
    }
    for (std::uint32_t count = 1; count <= 128; ++count) {
      std::uint32_t want = 128, run = 0;
      for (std::uint32_t i = 0; i < 128 && want == 128; ++i) {
        run = mask.test(i) ? run + 1 : 0;
        if (run == count) want = i + 1 - count;
      }
      REQUIRE(mask.find_run(count) == want);
    }
    const std::uint32_t first = mask.first();
    if (first < 128) {
      std::uint32_t run = 0;
      while (first + run < 128 && mask.test(first + run)) ++run;
      REQUIRE(mask.run_at(first) == run);
    }
  }
}
