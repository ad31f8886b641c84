#include "server/service/session_service.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/unit/common/base/from_text.h"

namespace causeway::server {
namespace {

constexpr size_t kPlenty = size_t{1} << 20;

v1::CoordinatorMessage Outcome(int64_t round, int contributors = 0) {
  v1::CoordinatorMessage message;
  message.mutable_round_outcome()->set_round(round);
  for (int i = 0; i < contributors; ++i) {
    message.mutable_round_outcome()->add_contributors("a-worker-of-a-large-run-" +
                                                      std::to_string(i));
  }
  return message;
}

v1::CoordinatorMessage Roster(const std::string& id) {
  return FromText<v1::CoordinatorMessage>("roster { worker_ids: '" + id + "' }");
}

TEST(SessionOutboxTest, MessagesLeaveInTheOrderInWhichTheyCame) {
  SessionOutbox outbox(kPlenty);
  EXPECT_TRUE(outbox.Add(Outcome(1)));
  EXPECT_TRUE(outbox.Add(Outcome(2)));
  outbox.AddFirst(FromText<v1::CoordinatorMessage>("welcome {}"));
  EXPECT_TRUE(outbox.Take().has_welcome());
  EXPECT_EQ(outbox.Take().round_outcome().round(), 1);
  EXPECT_TRUE(outbox.Add(Outcome(3)));
  EXPECT_EQ(outbox.Take().round_outcome().round(), 2);
  EXPECT_EQ(outbox.Take().round_outcome().round(), 3);
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.bytes(), 0u);
}

TEST(SessionOutboxTest, WhatWaitsIsBoundedByItsBytesNotItsNumber) {
  const size_t small = Outcome(1).SpaceUsedLong();
  const size_t large = Outcome(1, 1000).SpaceUsedLong();
  ASSERT_GT(large, 100 * small);
  SessionOutbox outbox(2 * large + small);
  EXPECT_TRUE(outbox.Add(Outcome(1, 1000)));
  EXPECT_TRUE(outbox.Add(Outcome(2, 1000)));
  EXPECT_FALSE(outbox.Add(Outcome(3, 1000)));
  EXPECT_TRUE(outbox.Add(Outcome(4))) << "a refusal leaves the rest as it was";
  EXPECT_FALSE(outbox.Add(Outcome(5)));
  EXPECT_LE(outbox.bytes(), 2 * large + small);
  outbox.Take();
  EXPECT_TRUE(outbox.Add(Outcome(6, 1000)));
}

TEST(SessionOutboxTest, TheLastRosterAndTheLastRenewalSayItAll) {
  SessionOutbox outbox(kPlenty);
  size_t after_two = 0;
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(outbox.Add(Roster(std::to_string(100'000 + i))));
    v1::CoordinatorMessage renewed;
    renewed.mutable_lease_renewed()->set_coordinator_unix_ms(100'000 + i);
    ASSERT_TRUE(outbox.Add(renewed));
    if (i == 0) after_two = outbox.bytes();
  }
  EXPECT_EQ(outbox.bytes(), after_two);
  EXPECT_EQ(outbox.Take().roster().worker_ids(0), "109999");
  EXPECT_EQ(outbox.Take().lease_renewed().coordinator_unix_ms(), 109'999);
  EXPECT_TRUE(outbox.empty());
}

TEST(SessionOutboxTest, WhatWasTakenStaysWhenTheRestIsDropped) {
  SessionOutbox outbox(kPlenty);
  EXPECT_TRUE(outbox.Add(Roster("a")));
  const v1::CoordinatorMessage& taken = outbox.Take();
  EXPECT_TRUE(outbox.Add(Roster("b")));
  outbox.Clear();
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.bytes(), 0u);
  EXPECT_EQ(taken.roster().worker_ids(0), "a");
}

}  // namespace
}  // namespace causeway::server
