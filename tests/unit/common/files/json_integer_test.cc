#include "common/files/json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace causeway {
namespace {

using nlohmann::json;

template <typename T>
bool Reads(const std::string& text, T expected) {
  T out = 42;
  return ReadInteger(json::parse(text), out) && out == expected;
}

template <typename T>
bool Refuses(const std::string& text) {
  T out = 42;
  return !ReadInteger(json::parse(text), out) && out == 42;
}

TEST(JsonInteger, WhatTheTypeHoldsIsRead) {
  EXPECT_TRUE(Reads<int>("0", 0));
  EXPECT_TRUE(Reads<int>("-2147483648", std::numeric_limits<int>::min()));
  EXPECT_TRUE(Reads<int64_t>("9223372036854775807", std::numeric_limits<int64_t>::max()));
  EXPECT_TRUE(Reads<int64_t>("-9223372036854775808", std::numeric_limits<int64_t>::min()));
  EXPECT_TRUE(Reads<uint64_t>("18446744073709551615", std::numeric_limits<uint64_t>::max()));
}

// A fuzzer's finding: converting 1e300 is undefined.
TEST(JsonInteger, WhatTheTypeDoesNotHoldIsRefused) {
  EXPECT_TRUE(Refuses<int>("2147483648"));
  EXPECT_TRUE(Refuses<int>("4294967297"));
  EXPECT_TRUE(Refuses<int64_t>("9223372036854775808"));
  EXPECT_TRUE(Refuses<uint64_t>("-1"));
  EXPECT_TRUE(Refuses<int64_t>("1e300"));
  EXPECT_TRUE(Refuses<uint64_t>("-1e300"));
}

TEST(JsonInteger, WhatIsNoIntegerIsRefused) {
  for (const char* text : {"1.0", "3.5", "true", "null", "\"1\"", "[1]", "{}"}) {
    EXPECT_TRUE(Refuses<int64_t>(text)) << text;
  }
}

}  // namespace
}  // namespace causeway
