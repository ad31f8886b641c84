#include "server/round/round_policy.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/round/member_table.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kNow = absl::Seconds(100);

OpenRound RoundAt60(std::map<std::string, absl::Duration> arrivals) {
  return {.fragment = 0, .round = 2, .send_step = 60, .arrivals = std::move(arrivals)};
}

TEST(RoundPolicyTest, WaitsSilentlyWhileTheSendStepIsAhead) {
  const Decision decision =
      Decide(kNow, RoundAt60({}), Table({Active("a", 10), Active("b", 12)}), {});
  EXPECT_EQ(decision.action, Decision::kWait);
  EXPECT_THAT(decision.reason, IsEmpty());
  EXPECT_THAT(decision.missing, ElementsAre("a", "b"));
}

TEST(RoundPolicyTest, SaysForWhomItWaits) {
  const Decision decision =
      Decide(kNow, RoundAt60({{"a", kNow}}), Table({Active("a", 60), Active("b", 40)}), {});
  EXPECT_EQ(decision.action, Decision::kWait);
  EXPECT_EQ(decision.reason, "waiting for b (step 40 of 60)");
}

TEST(RoundPolicyTest, AWorkerPastTheSendStepIsSending) {
  const Decision decision =
      Decide(kNow, RoundAt60({{"a", kNow}}), Table({Active("a", 60), Active("b", 61)}), {});
  EXPECT_EQ(decision.reason, "waiting for b (sending)");
}

TEST(RoundPolicyTest, ClosesWhenEveryExpectedWorkerContributed) {
  const Decision decision = Decide(kNow, RoundAt60({{"a", kNow}, {"b", kNow}}),
                                   Table({Active("a", 60), Active("b", 60)}), {});
  EXPECT_EQ(decision.action, Decision::kClose);
}

TEST(RoundPolicyTest, TheQuorumCountsARegionsSites) {
  Member region = Active("eu", 60);
  region.record.set_sites(4);
  const RoundPolicy policy = {.quorum = 5, .grace = absl::Seconds(1)};
  const OpenRound round = RoundAt60({{"eu", kNow - absl::Seconds(2)}});
  const Decision alone = Decide(kNow, round, Table({region, Active("b", 60)}), policy);
  EXPECT_EQ(alone.action, Decision::kWait);
  EXPECT_THAT(alone.reason, HasSubstr("4 of 5"));
  region.record.set_sites(5);
  EXPECT_EQ(Decide(kNow, round, Table({region, Active("b", 60)}), policy).action, Decision::kClose);
}

TEST(RoundPolicyTest, ALateJoinerIsNotExpectedForRoundsSentBeforeItBegan) {
  const Members members = Table({Active("a", 60), Active("late", 60, 60)});
  EXPECT_EQ(Decide(kNow, RoundAt60({{"a", kNow}}), members, {}).action, Decision::kClose);
  OpenRound next = RoundAt60({{"a", kNow}});
  next.send_step = 61;
  EXPECT_EQ(Decide(kNow, next, members, {}).action, Decision::kWait);
}

TEST(RoundPolicyTest, WorkerThatDiesAfterPushIsStillCounted) {
  Member dead = Active("b", 60);
  dead.record.set_state(v1::Member::LOST);
  const Decision decision = Decide(kNow, RoundAt60({{"a", kNow}, {"b", kNow}}),
                                   Table({Active("a", 60), dead}), {.quorum = 2});
  EXPECT_EQ(decision.action, Decision::kClose);
}

TEST(RoundPolicyTest, WorkerThatDiesBeforePushIsNotWaitedFor) {
  for (const v1::Member::State gone : {v1::Member::LOST, v1::Member::LEFT}) {
    Member member = Active("b", 40);
    member.record.set_state(gone);
    EXPECT_EQ(Decide(kNow, RoundAt60({{"a", kNow}}), Table({Active("a", 60), member}), {}).action,
              Decision::kClose);
  }
}

TEST(RoundPolicyTest, BelowTheQuorumItWaitsForANewWorker) {
  Member dead = Active("b", 40);
  dead.record.set_state(v1::Member::LOST);
  const Decision decision =
      Decide(kNow, RoundAt60({{"a", kNow}}), Table({Active("a", 60), dead}), {.quorum = 2});
  EXPECT_EQ(decision.action, Decision::kWait);
  EXPECT_EQ(decision.reason, "quorum not reached (1 of 2): waiting for another worker to join");
}

TEST(RoundPolicyTest, GraceRunsFromTheQuorumNotFromTheFirstArrival) {
  const RoundPolicy policy = {.quorum = 2, .grace = absl::Seconds(5)};
  const Members members = Table({Active("a", 60), Active("b", 60), Active("c", 30)});
  const OpenRound round =
      RoundAt60({{"a", kNow - absl::Seconds(50)}, {"b", kNow - absl::Seconds(4)}});
  EXPECT_EQ(Decide(kNow, round, members, policy).action, Decision::kWait);
  const Decision later = Decide(kNow + absl::Seconds(1), round, members, policy);
  EXPECT_EQ(later.action, Decision::kClose);
  EXPECT_EQ(later.reason, "closed 5s after the quorum without c (step 30 of 60)");
  EXPECT_THAT(later.missing, ElementsAre("c"));
}

TEST(RoundPolicyTest, WithoutGraceItWaitsForALiveWorkerForEver) {
  const Members members = Table({Active("a", 60), Active("b", 30)});
  EXPECT_EQ(Decide(kNow + absl::Hours(1000), RoundAt60({{"a", kNow}}), members, {}).action,
            Decision::kWait);
}

TEST(RoundPolicyTest, ARoundThatNobodyCanSendAnyMoreIsPublishedEmpty) {
  Member dead = Active("a", 59);
  dead.record.set_state(v1::Member::LOST);
  const Decision decision = Decide(kNow, RoundAt60({}), Table({dead, Active("late", 65, 65)}), {});
  EXPECT_EQ(decision.action, Decision::kCloseEmpty);
  EXPECT_THAT(decision.reason, HasSubstr("step 60"));
}

TEST(RoundPolicyTest, NobodyThereClosesNothing) {
  EXPECT_EQ(Decide(kNow, RoundAt60({}), {}, {}).action, Decision::kWait);
  Member joining;
  joining.record.set_worker_id("a");
  EXPECT_EQ(Decide(kNow, RoundAt60({}), Table({joining}), {}).action, Decision::kWait);
}

// H = 30, tau = 5, one second per step: what is sent after step 60 is needed after step 65.
constexpr RoundPolicy kAdaptive = {
    .quorum = 1, .grace = absl::Seconds(20), .adaptive = true, .overlap_steps = 5};

Member AtSpeed(const std::string& id, int64_t step, double step_seconds,
               absl::Duration reported_at = kNow - absl::Hours(1)) {
  Member member = Active(id, step);
  member.progress.inner_step_time = absl::Seconds(step_seconds);
  member.progress.reported_at = reported_at;
  return member;
}

TEST(RoundPolicyTest, AdaptiveGraceSpendsTheSlackOfTheOverlap) {
  const Members members = Table({AtSpeed("a", 40, 1), AtSpeed("b", 40, 1)});
  const OpenRound round = RoundAt60({{"a", kNow}});
  const Decision early = Decide(kNow + absl::Seconds(4), round, members, kAdaptive);
  EXPECT_EQ(early.action, Decision::kWait);
  EXPECT_EQ(early.wait_until, kNow + absl::Seconds(5) - kDecisionMargin);
  EXPECT_EQ(early.reason,
            "waiting for b (step 40 of 60) for at most 850ms more: then a needs the answer");
  const Decision late = Decide(early.wait_until, round, members, kAdaptive);
  EXPECT_EQ(late.action, Decision::kClose);
  EXPECT_EQ(late.reason,
            "closed 4.85s after the quorum, when a needed it, without b (step 40 of 60)");
}

TEST(RoundPolicyTest, AdaptiveGraceLeavesTimeForMergeAndDownlink) {
  Member a = AtSpeed("a", 40, 1);
  a.progress.download_bytes_per_s = 1e6;
  OpenRound round = RoundAt60({{"a", kNow}});
  round.merge_time = absl::Milliseconds(300);
  round.answer_bytes = 2'000'000;
  const Decision decision = Decide(kNow, round, Table({a, AtSpeed("b", 40, 1)}), kAdaptive);
  EXPECT_EQ(decision.wait_until, kNow + absl::Milliseconds(2700) - kDecisionMargin);
}

TEST(RoundPolicyTest, AdaptiveGraceEndsWithTheFirstContributorThatNeedsTheAnswer) {
  const Members members = Table({AtSpeed("a", 40, 1), AtSpeed("b", 40, 0.2), AtSpeed("c", 40, 1)});
  const Decision decision = Decide(
      kNow, RoundAt60({{"a", kNow}, {"b", kNow - absl::Milliseconds(100)}}), members, kAdaptive);
  EXPECT_EQ(decision.wait_until, kNow + absl::Milliseconds(900) - kDecisionMargin);
  EXPECT_THAT(decision.reason, HasSubstr("then b needs"));
}

TEST(RoundPolicyTest, OfFourNobodyEndsAnAdaptiveWindowAlone) {
  const Members members = Table(
      {AtSpeed("a", 40, 1), AtSpeed("b", 40, 1), AtSpeed("c", 40, 1), AtSpeed("liar", 40, 1e-6)});
  const Decision first = Decide(kNow, RoundAt60({{"liar", kNow}}), members, kAdaptive);
  EXPECT_EQ(first.wait_until, kNow + absl::Seconds(20)) << "it is less than half of them";
  const Decision two = Decide(kNow, RoundAt60({{"liar", kNow}, {"a", kNow}}), members, kAdaptive);
  EXPECT_EQ(two.wait_until, kNow + absl::Seconds(20));
  const Decision three =
      Decide(kNow, RoundAt60({{"liar", kNow}, {"a", kNow}, {"b", kNow}}), members, kAdaptive);
  EXPECT_EQ(three.wait_until, kNow + absl::Seconds(5) - kDecisionMargin);
  EXPECT_THAT(three.reason, HasSubstr("then a needs"));
}

TEST(RoundPolicyTest, NobodyWaitsForAMemberThatIsKeptOut) {
  Member kept_out = AtSpeed("b", 40, 1);
  kept_out.rejected = true;
  const Decision decision =
      Decide(kNow, RoundAt60({{"a", kNow}}), Table({AtSpeed("a", 60, 1), kept_out}), {});
  EXPECT_EQ(decision.action, Decision::kClose);
}

TEST(RoundPolicyTest, WhereEverybodyIsKeptOutRoundsWaitAndAreNotPublishedEmptyOneAfterTheOther) {
  Member kept_out = AtSpeed("a", 60, 1);
  kept_out.rejected = true;
  EXPECT_EQ(Decide(kNow, RoundAt60({}), Table({kept_out}), {}).action, Decision::kWait);
  OpenRound held = RoundAt60({});
  held.quarantined["a"] = kNow;
  EXPECT_EQ(Decide(kNow, held, Table({kept_out}), {}).action, Decision::kWait);
}

TEST(RoundPolicyTest, AHeartbeatSinceTheContributionSaysMoreThanItsArrival) {
  const Member a = AtSpeed("a", 63, 1, kNow);  // The upload took a while.
  const Decision decision =
      Decide(kNow, RoundAt60({{"a", kNow}}), Table({a, AtSpeed("b", 40, 1)}), kAdaptive);
  EXPECT_EQ(decision.wait_until, kNow + absl::Seconds(2) - kDecisionMargin);
}

TEST(RoundPolicyTest, AWorkerAtPaceTwoPassesTwoStepsInTheTimeOfOne) {
  Member a = AtSpeed("a", 40, 2);
  a.progress.pace_milli = 2000;
  const Decision decision =
      Decide(kNow, RoundAt60({{"a", kNow}}), Table({a, AtSpeed("b", 40, 1)}), kAdaptive);
  EXPECT_EQ(decision.wait_until, kNow + absl::Seconds(5) - kDecisionMargin);
}

TEST(RoundPolicyTest, AdaptiveGraceNeverGoesBeyondTheBound) {
  const Members members = Table({AtSpeed("a", 40, 100), AtSpeed("b", 40, 1)});
  const OpenRound round = RoundAt60({{"a", kNow}});
  EXPECT_EQ(Decide(kNow, round, members, kAdaptive).wait_until, kNow + absl::Seconds(20));
  const Decision late = Decide(kNow + absl::Seconds(20), round, members, kAdaptive);
  EXPECT_EQ(late.reason, "closed 20s after the quorum without b (step 40 of 60)");
}

TEST(RoundPolicyTest, WithoutKnownSpeedsOrAContributorLeftOnlyTheBoundHolds) {
  Member gone = AtSpeed("a", 60, 1);
  gone.record.set_state(v1::Member::LEFT);
  for (const Member& a : {Active("a", 60), gone}) {
    EXPECT_EQ(Decide(kNow, RoundAt60({{"a", kNow}}), Table({a, AtSpeed("b", 40, 1)}), kAdaptive)
                  .wait_until,
              kNow + absl::Seconds(20));
  }
}

TEST(RoundPolicyTest, WithoutOverlapTheQuorumIsEnough) {
  RoundPolicy policy = kAdaptive;
  policy.overlap_steps = 0;
  policy.quorum = 2;
  const Members members = Table({AtSpeed("a", 60, 1), AtSpeed("b", 60, 1), AtSpeed("c", 40, 1)});
  EXPECT_EQ(Decide(kNow, RoundAt60({{"a", kNow}}), members, policy).action, Decision::kWait);
  EXPECT_EQ(Decide(kNow, RoundAt60({{"a", kNow}, {"b", kNow}}), members, policy).action,
            Decision::kClose);
}

TEST(RoundPolicyTest, AQuarantinedContributionIsNeitherWaitedForNorCounted) {
  OpenRound round = RoundAt60({{"a", kNow}});
  round.quarantined["b"] = kNow;
  const Members members = Table({Active("a", 60), Active("b", 60)});
  const Decision decision = Decide(kNow, round, members, {.quorum = 2});
  EXPECT_EQ(decision.action, Decision::kClose) << "both have been heard";
  EXPECT_EQ(decision.reason, "every expected worker contributed (1)");
}

TEST(RoundPolicyTest, WhenAllIsQuarantinedTheRoundIsPublishedEmpty) {
  OpenRound round = RoundAt60({});
  round.quarantined["b"] = kNow;
  const Decision waits = Decide(kNow, round, Table({Active("a", 60), Active("b", 60)}), {});
  EXPECT_EQ(waits.action, Decision::kWait) << "there is hope";
  const Decision decision = Decide(kNow, round, Table({Active("b", 60)}), {});
  EXPECT_EQ(decision.action, Decision::kCloseEmpty);
  EXPECT_EQ(decision.reason, "every contribution is quarantined");
}

TEST(RoundPolicyTest, BeyondTheStopOnlyWhoWasFurtherAlreadyIsExpected) {
  const RoundPolicy policy{.quorum = 3, .stop_step = 50};
  const Members members = Table({Active("a", 62), Active("b", 50), Active("c", 61)});
  Decision decision = Decide(kNow, RoundAt60({}), members, policy);
  EXPECT_EQ(decision.action, Decision::kWait) << "nothing is there to close with";
  decision = Decide(kNow, RoundAt60({{"a", kNow}}), members, policy);
  EXPECT_EQ(decision.action, Decision::kWait);
  EXPECT_THAT(decision.missing, ElementsAre("c"));
  decision = Decide(kNow, RoundAt60({{"a", kNow}, {"c", kNow}}), members, policy);
  EXPECT_EQ(decision.action, Decision::kClose) << "the quorum cannot be reached any more";
}

TEST(RoundPolicyTest, ANewWorkerStartsWhereTheOthersAre) {
  EXPECT_EQ(StartStep({RoundAt60({})}, Table({Active("a", 50)}), 50, {}), 50);
  EXPECT_EQ(StartStep({RoundAt60({{"a", kNow}})}, Table({Active("a", 62)}), 62, {}), 62);
}

TEST(RoundPolicyTest, ANewWorkerStartsEarlierIfAnOpenRoundNeedsIt) {
  Member dead = Active("b", 55);
  dead.record.set_state(v1::Member::LOST);
  EXPECT_EQ(
      StartStep({RoundAt60({{"a", kNow}})}, Table({Active("a", 62), dead}), 62, {.quorum = 2}), 59);
  EXPECT_EQ(StartStep({RoundAt60({})}, Table({dead}), 75, {}), 59) << "everybody died";
}

}  // namespace
}  // namespace causeway::server
