#include <gtest/gtest.h>
#include <cstdint>
#include <limits>

#include "causeway/v1/admin.pb.h"
#include "common/files/json.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

TEST(MessageToJson, IntegersAreNumbersHashesAreHexadecimalAndEnumeratorsHaveNames) {
  v1::RunStatus status;
  status.set_tokens(int64_t{1} << 53);
  v1::WorkerStatus& worker = *status.add_workers();
  worker.set_worker_id("site-a");
  worker.set_state(v1::WorkerStatus::LOST);
  worker.set_incarnation(std::numeric_limits<uint64_t>::max());
  v1::FragmentStatus& fragment = *status.add_fragments();
  fragment.set_published_hash(0xabc);
  fragment.add_contributed("site-a");
  fragment.add_contributed("site-b");
  const nlohmann::json written = MessageToJson(status);
  EXPECT_EQ(written["tokens"], 9007199254740992);
  EXPECT_EQ(written["workers"][0]["state"], "LOST");
  EXPECT_EQ(written["workers"][0]["incarnation"], std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(written["fragments"][0]["published_hash"], "0000000000000abc");
  EXPECT_EQ(written["fragments"][0]["contributed"], (nlohmann::json{"site-a", "site-b"}));
}

TEST(MessageToJson, WhatIsNotSetIsThereWithItsDefault) {
  const nlohmann::json written = MessageToJson(v1::RunStatus());
  EXPECT_EQ(written["run_id"], "");
  EXPECT_EQ(written["paused"], false);
  EXPECT_EQ(written["workers"], nlohmann::json::array());
  EXPECT_TRUE(written["config"].is_null());
}

TEST(MessageToJson, ANumberThatJsonCannotSayIsNull) {
  v1::WorkerStatus worker;
  worker.set_train_loss(std::numeric_limits<double>::quiet_NaN());
  worker.set_tokens_per_second(std::numeric_limits<double>::infinity());
  worker.set_pace(1.5);
  const nlohmann::json written = MessageToJson(worker);
  EXPECT_TRUE(written["train_loss"].is_null());
  EXPECT_TRUE(written["tokens_per_second"].is_null());
  EXPECT_EQ(written["pace"], 1.5);
}

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
