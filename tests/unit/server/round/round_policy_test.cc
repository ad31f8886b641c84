#include "server/round/round_policy.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Members = std::map<std::string, Member>;

constexpr absl::Duration kNow = absl::Seconds(100);

Member Active(const std::string& id, int64_t from_step, int64_t step) {
  Member member;
  member.id = id;
  member.state = MemberState::kActive;
  member.active_from_step = from_step;
  member.step = step;
  return member;
}

Members Table(std::initializer_list<Member> list) {
  Members members;
  for (const Member& member : list) members[member.id] = member;
  return members;
}

OpenRound RoundAt60(std::map<std::string, absl::Duration> arrivals) {
  return {.fragment = 0, .round = 2, .send_step = 60, .arrivals = std::move(arrivals)};
}

TEST(RoundPolicyTest, WaitsSilentlyWhileTheSendStepIsAhead) {
  const Decision decision =
      Decide(kNow, RoundAt60({}), Table({Active("a", 0, 10), Active("b", 0, 12)}), {});
  EXPECT_EQ(decision.action, Decision::kWait);
  EXPECT_THAT(decision.reason, IsEmpty());
  EXPECT_THAT(decision.missing, ElementsAre("a", "b"));
}

TEST(RoundPolicyTest, SaysForWhomItWaits) {
  const Decision decision =
      Decide(kNow, RoundAt60({{"a", kNow}}), Table({Active("a", 0, 60), Active("b", 0, 40)}), {});
  EXPECT_EQ(decision.action, Decision::kWait);
  EXPECT_EQ(decision.reason, "waiting for b (step 40 of 60)");
}

TEST(RoundPolicyTest, AWorkerPastTheSendStepIsSending) {
  const Decision decision =
      Decide(kNow, RoundAt60({{"a", kNow}}), Table({Active("a", 0, 60), Active("b", 0, 61)}), {});
  EXPECT_EQ(decision.reason, "waiting for b (sending)");
}

TEST(RoundPolicyTest, ClosesWhenEveryExpectedWorkerContributed) {
  const Decision decision = Decide(kNow, RoundAt60({{"a", kNow}, {"b", kNow}}),
                                   Table({Active("a", 0, 60), Active("b", 0, 60)}), {});
  EXPECT_EQ(decision.action, Decision::kClose);
}

TEST(RoundPolicyTest, ALateJoinerIsNotExpectedForRoundsSentBeforeItBegan) {
  const Members members = Table({Active("a", 0, 60), Active("late", 60, 60)});
  EXPECT_EQ(Decide(kNow, RoundAt60({{"a", kNow}}), members, {}).action, Decision::kClose);
  OpenRound next = RoundAt60({{"a", kNow}});
  next.send_step = 61;
  EXPECT_EQ(Decide(kNow, next, members, {}).action, Decision::kWait);
}

TEST(RoundPolicyTest, WorkerThatDiesAfterPushIsStillCounted) {
  Member dead = Active("b", 0, 60);
  dead.state = MemberState::kLost;
  const Decision decision = Decide(kNow, RoundAt60({{"a", kNow}, {"b", kNow}}),
                                   Table({Active("a", 0, 60), dead}), {.quorum = 2});
  EXPECT_EQ(decision.action, Decision::kClose);
}

TEST(RoundPolicyTest, WorkerThatDiesBeforePushIsNotWaitedFor) {
  for (const MemberState gone : {MemberState::kLost, MemberState::kLeft}) {
    Member member = Active("b", 0, 40);
    member.state = gone;
    EXPECT_EQ(
        Decide(kNow, RoundAt60({{"a", kNow}}), Table({Active("a", 0, 60), member}), {}).action,
        Decision::kClose);
  }
}

TEST(RoundPolicyTest, BelowTheQuorumItWaitsForANewWorker) {
  Member dead = Active("b", 0, 40);
  dead.state = MemberState::kLost;
  const Decision decision =
      Decide(kNow, RoundAt60({{"a", kNow}}), Table({Active("a", 0, 60), dead}), {.quorum = 2});
  EXPECT_EQ(decision.action, Decision::kWait);
  EXPECT_EQ(decision.reason, "quorum not reached (1 of 2): waiting for another worker to join");
}

TEST(RoundPolicyTest, GraceRunsFromTheQuorumNotFromTheFirstArrival) {
  const RoundPolicy policy = {.quorum = 2, .grace = absl::Seconds(5)};
  const Members members = Table({Active("a", 0, 60), Active("b", 0, 60), Active("c", 0, 30)});
  const OpenRound round =
      RoundAt60({{"a", kNow - absl::Seconds(50)}, {"b", kNow - absl::Seconds(4)}});
  EXPECT_EQ(Decide(kNow, round, members, policy).action, Decision::kWait);
  const Decision later = Decide(kNow + absl::Seconds(1), round, members, policy);
  EXPECT_EQ(later.action, Decision::kClose);
  EXPECT_EQ(later.reason, "closed 5s after the quorum without c (step 30 of 60)");
  EXPECT_THAT(later.missing, ElementsAre("c"));
}

TEST(RoundPolicyTest, WithoutGraceItWaitsForALiveWorkerForEver) {
  const Members members = Table({Active("a", 0, 60), Active("b", 0, 30)});
  EXPECT_EQ(Decide(kNow + absl::Hours(1000), RoundAt60({{"a", kNow}}), members, {}).action,
            Decision::kWait);
}

TEST(RoundPolicyTest, ARoundThatNobodyCanSendAnyMoreIsPublishedEmpty) {
  Member dead = Active("a", 0, 59);
  dead.state = MemberState::kLost;
  const Decision decision = Decide(kNow, RoundAt60({}), Table({dead, Active("late", 65, 65)}), {});
  EXPECT_EQ(decision.action, Decision::kCloseEmpty);
  EXPECT_THAT(decision.reason, HasSubstr("step 60"));
}

TEST(RoundPolicyTest, NobodyThereClosesNothing) {
  EXPECT_EQ(Decide(kNow, RoundAt60({}), {}, {}).action, Decision::kWait);
  Member joining;
  joining.id = "a";
  EXPECT_EQ(Decide(kNow, RoundAt60({}), Table({joining}), {}).action, Decision::kWait);
}

TEST(RoundPolicyTest, ANewWorkerStartsWhereTheOthersAre) {
  EXPECT_EQ(StartStep({RoundAt60({})}, Table({Active("a", 0, 50)}), 50, {}), 50);
  EXPECT_EQ(StartStep({RoundAt60({{"a", kNow}})}, Table({Active("a", 0, 62)}), 62, {}), 62);
}

TEST(RoundPolicyTest, ANewWorkerStartsEarlierIfAnOpenRoundNeedsIt) {
  Member dead = Active("b", 0, 55);
  dead.state = MemberState::kLost;
  EXPECT_EQ(
      StartStep({RoundAt60({{"a", kNow}})}, Table({Active("a", 0, 62), dead}), 62, {.quorum = 2}),
      59);
  EXPECT_EQ(StartStep({RoundAt60({})}, Table({dead}), 75, {}), 59) << "everybody died";
}

}  // namespace
}  // namespace causeway::server
