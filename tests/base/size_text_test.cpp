#include "base/size_text.hpp"

#include <doctest/doctest.h>

#include <string>

using terrace::parse_number;
using terrace::parse_size;
using terrace::SizeText;

TEST_CASE("size_text: sizes are read as people write them") {
  const struct {
    const char* text;
    std::uint64_t bytes;
  } table[] = {
      {"0", 0},
      {"4096", 4096},
      {"12B", 12},
      {"4GiB", 4ull << 30},
      {"512MiB", 512ull << 20},
      {"4G", 4ull << 30},
      {"4Gi", 4ull << 30},
      {"4GB", 4'000'000'000},
      {"4gib", 4ull << 30},
      {"64k", 65536},
      {"64kB", 64000},
      {"2T", 2ull << 40},
      {"2TB", 2'000'000'000'000},
      {"1.5GiB", 3ull << 29},
      {"0.5k", 512},
      {"1.25MB", 1'250'000},
      {"18446744073709551615", ~0ull},
      {"16777215TiB", 16777215ull << 40},
  };
  for (const auto& row : table) {
    CAPTURE(row.text);
    const auto got = parse_size(row.text);
    REQUIRE(got.ok());
    CHECK(got.value() == row.bytes);
  }
}

TEST_CASE("size_text: rubbish and overflow are refused with the reason") {
  const struct {
    const char* text;
    const char* reason;
  } table[] = {
      {"", "empty"},
      {"GiB", "begin with a number"},
      {"-1", "begin with a number"},
      {" 4", "begin with a number"},
      {"4 GiB", "unit"},
      {"4X", "unit"},
      {"4GiBs", "unit"},
      {"4Gx", "unit"},
      {"4Gib!", "unit"},
      {"4bb", "unit"},
      {"0x10", "unit"},
      {"1.5", "fraction needs a unit"},
      {"1.G", "fraction"},
      {"1.1234567G", "fraction"},
      {"1.5B", "fraction needs a unit"},
      {"18446744073709551616", "64 bits"},
      {"16777216TiB", "64 bits"},
      {"99999999999999999999999G", "64 bits"},
      {"16777215.999999TiB", ""},
  };
  for (const auto& row : table) {
    CAPTURE(row.text);
    const auto got = parse_size(row.text);
    if (*row.reason == 0) {
      CHECK(got.ok());
      continue;
    }
    REQUIRE_FALSE(got.ok());
    CHECK(got.status().code == terrace::ErrorCode::invalid_argument);
    CHECK(std::string(got.status().text).find(row.reason) != std::string::npos);
  }
}

TEST_CASE("size_text: plain numbers take digits only") {
  CHECK(parse_number("120").value() == 120);
  CHECK(parse_number("18446744073709551615").value() == ~0ull);
  for (const char* text : {"", "x", "12x", "-1", "1.5", " 1", "18446744073709551616"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_number(text).ok());
  }
}

TEST_CASE("size_text: what is written is read back") {
  for (const std::uint64_t bytes :
       {0ull, 1ull, 1023ull, 1024ull, 1025ull, 128ull << 10, 3ull << 30, 1ull << 40, 5ull << 50, ~0ull}) {
    CHECK(parse_size(SizeText::exact(bytes).view()).value() == bytes);
  }
  CHECK(SizeText::exact(128 << 10).view() == "128KiB");
  CHECK(SizeText::exact(100003).view() == "100003");
  CHECK(SizeText::rounded(0).view() == "0B");
  CHECK(SizeText::rounded(512).view() == "512B");
  CHECK(SizeText::rounded(3ull << 29).view() == "1.5GiB");
  CHECK(SizeText::rounded(4ull << 30).view() == "4GiB");
  CHECK(SizeText::rounded((1ull << 30) - 1).view() == "1GiB");
  CHECK(SizeText::rounded((1ull << 20) * 3 + 1).view() == "3MiB");
  CHECK(parse_size(SizeText::rounded(~0ull).view()).ok() ==
        false);  // 16777216TiB: one more than 64 bits hold
}
