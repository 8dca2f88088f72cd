#include "base/json.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

using terrace::JsonWriter;

TEST_CASE("json: what is written, a reader reads back") {
  for (const int indent : {0, 2}) {
    JsonWriter writer(indent);
    writer.begin_object()
        .field("name", "a\"b\\c\n\x01 \xc3\xa9")
        .field("big", ~std::uint64_t{0})
        .field("low", -5);
    writer.field("half", 0.5).field("yes", true).key("none").null();
    writer.field("infinite", std::numeric_limits<double>::infinity());
    writer.key("list").begin_array().value(1).value(2).begin_object().end_object().end_array();
    writer.key("empty").begin_array().end_array().end_object();
    const auto read = nlohmann::json::parse(writer.finish());
    CHECK(read["name"] == "a\"b\\c\n\x01 \xc3\xa9");
    CHECK(read["big"] == ~std::uint64_t{0});
    CHECK(read["low"] == -5);
    CHECK(read["half"] == 0.5);
    CHECK(read["yes"] == true);
    CHECK(read["none"].is_null());
    CHECK(read["infinite"].is_null());
    CHECK(read["list"].size() == 3);
    CHECK(read["list"][1] == 2);
    CHECK(read["empty"].empty());
  }
}

TEST_CASE("json: without indent everything is on one line") {
  JsonWriter writer;
  writer.begin_object().field("a", 1).field("b", "c").end_object();
  CHECK(writer.finish() == "{\"a\": 1, \"b\": \"c\"}\n");
}
