#include "server/round/membership.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/from_text.h"
#include "tests/unit/common/base/status_is.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLease = absl::Seconds(10);
constexpr absl::Duration kStart = absl::Seconds(100);

class MembershipTest : public testing::Test {
 protected:
  Membership members_{2, kLease};
};

TEST_F(MembershipTest, EveryWorkerGetsASlotOfItsOwnWhileOneIsFree) {
  EXPECT_EQ(members_.Join("a", 1, false, kStart)->record.data_slot(), 0);
  EXPECT_EQ(members_.Join("b", 2, false, kStart)->record.data_slot(), 1);
  EXPECT_THAT(members_.LiveIds(), ElementsAre("a", "b"));
  EXPECT_EQ(members_.active(), 0);
  EXPECT_THAT(members_.Join("c", 3, false, kStart), StatusIs(kResourceExhausted));
  ASSERT_TRUE(members_.Leave("a", 1).ok());
  EXPECT_THAT(members_.Leave("a", 1), StatusIs(kFailedPrecondition));
  EXPECT_EQ(members_.live(), 1);
  EXPECT_EQ(members_.Join("c", 3, false, kStart)->record.data_slot(), 0);
}

TEST_F(MembershipTest, ARegionHasSlotsSideBySideAndCountsAsItsSites) {
  Membership members(8, kLease);
  ASSERT_TRUE(members.Join("a", 1, false, kStart).ok());
  EXPECT_EQ(members.Join("eu", 2, true, kStart, false, 4)->record.data_slot(), 1);
  EXPECT_EQ(members.live(), 5);
  EXPECT_THAT(members.Join("us", 3, true, kStart, false, 4),
              StatusIs(kResourceExhausted, HasSubstr("has 5; the region us asks for 4")));
  EXPECT_EQ(members.Join("us", 3, true, kStart, false, 3)->record.data_slot(), 5);
  EXPECT_THAT(members.Find("eu")->record.had_slots(), ElementsAre(1, 2, 3, 4));
  // Its slots are its own when it comes back, and those of others stay theirs.
  ASSERT_TRUE(members.Leave("eu", 1).ok());
  EXPECT_EQ(members.Join("b", 4, false, kStart)->record.data_slot(), 1);
  EXPECT_THAT(members.Join("eu", 5, true, kStart, false, 4), StatusIs(kResourceExhausted));
  members.NumberByName();
  EXPECT_EQ(members.Find("b")->record.data_slot(), 1);
  EXPECT_EQ(members.Find("us")->record.data_slot(), 2);
}

TEST_F(MembershipTest, ARegionsSlotsBeginWhereItsParentSays) {
  ASSERT_TRUE(members_.Join("b", 1, false, kStart).ok());
  members_.SetFirstSlot(6);
  members_.NumberByName();
  EXPECT_EQ(members_.Find("b")->record.data_slot(), 6);
  EXPECT_EQ(members_.Join("a", 2, false, kStart)->record.data_slot(), 7);
}

TEST_F(MembershipTest, TwoProcessesWithOneIdAreOneTooMany) {
  ASSERT_TRUE(members_.Join("a", 1, false, kStart).ok());
  EXPECT_THAT(members_.Join("a", 2, false, kStart + absl::Seconds(3)),
              StatusIs(kAlreadyExists, HasSubstr("ends in 7s")));
  EXPECT_TRUE(members_.Check("a", 1).ok());
}

TEST_F(MembershipTest, TheSameProcessTakesItsMembershipOverAfterABrokenStream) {
  ASSERT_TRUE(members_.Join("a", 1, false, kStart).ok());
  ASSERT_TRUE(members_.Ready("a", 1, 7, false).ok());
  members_.Disconnected("a", 1);
  EXPECT_FALSE(members_.Find("a")->attached);
  const Member again = *members_.Join("a", 1, false, kStart + absl::Seconds(5));
  EXPECT_EQ(again.record.incarnation(), 2u);
  EXPECT_EQ(again.record.state(), v1::Member::ACTIVE);
  EXPECT_EQ(again.record.active_from_step(), 7);
  EXPECT_TRUE(again.attached);
  EXPECT_THAT(members_.Check("a", 1), StatusIs(kAborted));
  members_.Disconnected("a", 1);  // The old stream's end arrives late.
  EXPECT_TRUE(members_.Find("a")->attached);
}

TEST_F(MembershipTest, ARestartedProcessWaitsForItsFormerStreamToBreak) {
  ASSERT_TRUE(members_.Join("a", 1, false, kStart).ok());
  ASSERT_TRUE(members_.Ready("a", 1, 7, false).ok());
  EXPECT_THAT(members_.Join("a", 2, true, kStart), StatusIs(kAlreadyExists));
  members_.Disconnected("a", 1);
  const Member resumed = *members_.Join("a", 2, true, kStart);
  EXPECT_EQ(resumed.record.state(), v1::Member::ACTIVE) << "open rounds go on expecting it";
  EXPECT_EQ(resumed.record.active_from_step(), 7);
  EXPECT_EQ(resumed.record.incarnation(), 2u);
  members_.Disconnected("a", 2);
  const Member anew = *members_.Join("a", 3, false, kStart);
  EXPECT_EQ(anew.record.state(), v1::Member::JOINING);
  ASSERT_TRUE(members_.Ready("a", 3, 60, false).ok());
  EXPECT_EQ(members_.Find("a")->record.active_from_step(), 60)
      << "it knows nothing of earlier rounds";
}

TEST_F(MembershipTest, ALostWorkerThatResumesIsExpectedWhereItWas) {
  ASSERT_TRUE(members_.Join("a", 1, false, kStart).ok());
  ASSERT_TRUE(members_.Ready("a", 1, 7, false).ok());
  members_.Expire(kStart + kLease);
  ASSERT_TRUE(members_.Join("a", 2, true, kStart + kLease).ok());
  EXPECT_EQ(members_.Find("a")->record.state(), v1::Member::JOINING);
  ASSERT_TRUE(members_.Ready("a", 2, 40, false).ok());
  EXPECT_EQ(members_.Find("a")->record.active_from_step(), 7);
}

TEST_F(MembershipTest, ARestoredMemberHasALeaseToComeBackAndKeepsItsIncarnation) {
  members_.Restore(FromText<v1::Member>(R"(
                       worker_id: "a" state: ACTIVE incarnation: 4 data_slot: 1 process_nonce: 9
                       step: 33 was_ready: true)"),
                   kStart);
  EXPECT_EQ(members_.largest_step(), 33);
  EXPECT_TRUE(members_.Expire(kStart + kLease + kReturnTime - absl::Milliseconds(1)).empty());
  const Member back = *members_.Join("a", 9, false, kStart + absl::Seconds(1));
  EXPECT_EQ(back.record.incarnation(), 5u);
  EXPECT_EQ(back.record.data_slot(), 1);
  EXPECT_EQ(back.record.state(), v1::Member::ACTIVE);
}

TEST_F(MembershipTest, ARepeatedReadyKeepsTheRoundsUnderWay) {
  ASSERT_TRUE(members_.Join("a", 1, false, kStart).ok());
  ASSERT_TRUE(members_.Ready("a", 1, 10, false).ok());
  ASSERT_TRUE(members_.Ready("a", 1, 45, false).ok());
  EXPECT_EQ(members_.Find("a")->record.active_from_step(), 10);
  EXPECT_EQ(members_.largest_step(), 45);
  ASSERT_TRUE(members_.Ready("a", 1, 50, /*anew=*/true).ok());
  EXPECT_EQ(members_.Find("a")->record.active_from_step(), 50);
}

TEST_F(MembershipTest, ALostWorkerComesBackToItsOwnSlot) {
  Membership members(3, kLease);
  ASSERT_TRUE(members.Join("a", 1, false, kStart).ok());
  ASSERT_TRUE(members.Join("b", 2, false, kStart).ok());
  members.Expire(kStart + kLease);
  EXPECT_EQ(members.Join("c", 3, false, kStart + kLease)->record.data_slot(), 2)
      << "a slot nobody ever had";
  const Member back = *members.Join("b", 9, false, kStart + kLease);
  EXPECT_EQ(back.record.data_slot(), 1);
  EXPECT_EQ(back.record.incarnation(), 2u);
  EXPECT_EQ(back.record.state(), v1::Member::JOINING);
}

TEST_F(MembershipTest, ASlotThatWasGivenAwayIsNotGivenTwice) {
  ASSERT_TRUE(members_.Join("a", 1, false, kStart).ok());
  ASSERT_TRUE(members_.Join("b", 2, false, kStart).ok());
  members_.Expire(kStart + kLease);
  EXPECT_EQ(members_.Join("c", 3, false, kStart + kLease)->record.data_slot(), 0);
  EXPECT_EQ(members_.Join("a", 4, false, kStart + kLease)->record.data_slot(), 1);
}

TEST_F(MembershipTest, StrangersAreToldSo) {
  EXPECT_THAT(members_.Ready("x", 1, 0, false), StatusIs(kPermissionDenied));
  EXPECT_THAT(members_.Check("x", 1), StatusIs(kPermissionDenied));
}

TEST_F(MembershipTest, WhatAWorkerTrainedAndWasToldOutlivesItsProcess) {
  Membership membership(2, absl::Seconds(10));
  const Member first = membership.Join("a", 1, false, absl::ZeroDuration()).value();
  Progress progress;
  progress.tokens = 70;
  progress.inner_step_time = absl::Seconds(3);
  progress.pace_milli = 2000;
  ASSERT_TRUE(
      membership.Heartbeat("a", first.record.incarnation(), 5, absl::Seconds(1), progress).ok());
  EXPECT_EQ(membership.Find("a")->progress.reported_at, absl::Seconds(1));
  EXPECT_EQ(membership.Find("a")->progress.step_time(), absl::Milliseconds(1500));
  membership.OrderPace("a", 3000, 60);
  membership.OrderPace("nobody", 3000, 60);
  membership.Expire(absl::Seconds(20));
  const Member second = membership.Join("a", 2, false, absl::Seconds(21)).value();
  EXPECT_EQ(second.progress.tokens, 70);
  EXPECT_EQ(second.progress.inner_step_time, absl::ZeroDuration()) << "to be measured again";
  EXPECT_EQ(second.record.ordered_pace_milli(), 3000);
  EXPECT_EQ(second.record.ordered_from_step(), 60);
}

TEST_F(MembershipTest, WhoJoinsAgainAndAgainIsAskedToWait) {
  int joined = 0;
  while (members_.Join("a", 1, false, kStart).ok()) ASSERT_LT(++joined, 1000);
  EXPECT_EQ(joined, kJoinsAtOnce + 1) << "the first, which makes it known, and a reserve";
  const absl::Status refused = members_.Join("a", 1, false, kStart).status();
  EXPECT_THAT(refused, StatusIs(kResourceExhausted)) << "so that it tries again";
  EXPECT_NE(refused.message().find("it may in 5s"), absl::string_view::npos) << refused;
  EXPECT_EQ(members_.Find("a")->record.incarnation(), static_cast<uint64_t>(joined))
      << "nothing changed";
  EXPECT_TRUE(members_.Join("b", 2, false, kStart).ok()) << "nobody else is meant";
  EXPECT_TRUE(members_.Join("a", 1, false, kStart + kJoinInterval).ok());
  EXPECT_FALSE(members_.Join("a", 1, false, kStart + kJoinInterval).ok());
  EXPECT_TRUE(members_.Join("a", 1, false, kStart + absl::Hours(1)).ok());
}

}  // namespace
}  // namespace causeway::server
