// SPDX-License-Identifier: Apache-2.0
#include "files/parse_json.h"

#include <gtest/gtest.h>

#include <string>

namespace sherd {
namespace {

using Parsed = ParsedJson<nlohmann::json>;

Parsed parsed(const std::string& text, const JsonLimits& limits = {}) {
  return parse_json<nlohmann::json>(text, limits);
}

std::string nested(size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

TEST(ParseJson, ReturnsTheValue) {
  const auto result = parsed(R"({"a": [1, 2], "b": {"c": null}})");
  ASSERT_EQ(result.problem, Parsed::Problem::none);
  EXPECT_TRUE(result.is_object());
  EXPECT_EQ(result.value["a"][1], 2);
  EXPECT_FALSE(result.repeated_key);
}

TEST(ParseJson, RefusesMoreLevelsThanTheLimit) {
  EXPECT_EQ(parsed(nested(4), {.levels = 4}).problem, Parsed::Problem::none);
  EXPECT_EQ(parsed(nested(5), {.levels = 4}).problem, Parsed::Problem::too_deep);
  const auto deepest = parsed(nested(1'000'000));
  EXPECT_EQ(deepest.problem, Parsed::Problem::too_deep);
  EXPECT_TRUE(deepest.value.is_null());
}

TEST(ParseJson, RefusesMoreValuesThanTheLimit) {
  EXPECT_EQ(parsed("[1, 2]", {.values = 100}).problem, Parsed::Problem::none);
  std::string many = "[0";
  for (int i = 0; i < 200; ++i) many += ",0";
  EXPECT_EQ(parsed(many + "]", {.values = 100}).problem, Parsed::Problem::too_many_values);
}

TEST(ParseJson, SaysWhyATextIsNotJson) {
  for (const char* text : {"", "{", "[1,", "nothing", "\"\xff\""}) {
    const auto result = parsed(text);
    EXPECT_EQ(result.problem, Parsed::Problem::not_json) << text;
    EXPECT_FALSE(result.parser_message.empty()) << text;
    EXPECT_FALSE(result.is_object());
  }
}

TEST(ParseJson, NamesAKeyThatTheOutermostObjectHasTwice) {
  EXPECT_EQ(parsed(R"({"a": 1, "b": 2, "a": 3})").repeated_key, "a");
  EXPECT_FALSE(parsed(R"({"a": {"b": 1}, "b": 2})").repeated_key);
}

TEST(ParseJson, AFileThatCannotBeReadIsNotJson) {
  const auto result = read_json<nlohmann::json>("/no/such/file");
  EXPECT_EQ(result.problem, Parsed::Problem::not_json);
}

}  // namespace
}  // namespace sherd
