#include "server/round/round_policy.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/round/member_table.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Arrivals = std::map<std::string, absl::Duration>;

constexpr absl::Duration kNow = absl::Seconds(100);

OpenRound RoundAt60(Arrivals arrivals, Arrivals quarantined = {}) {
  return {.fragment = 0,
          .round = 2,
          .send_step = 60,
          .arrivals = std::move(arrivals),
          .quarantined = std::move(quarantined)};
}

Decision AtStep60(Arrivals arrivals, const std::vector<Member>& members,
                  const RoundPolicy& policy = {}, absl::Duration now = kNow) {
  return Decide(now, RoundAt60(std::move(arrivals)), Table(members), policy);
}

TEST(RoundPolicyTest, WaitsForTheExpectedOnesAndSaysForWhom) {
  const Decision ahead = AtStep60({}, {Active("a", 10), Active("b", 12)});
  EXPECT_EQ(ahead.action, Decision::kWait);
  EXPECT_THAT(ahead.reason, IsEmpty()) << "the send step is ahead";
  EXPECT_THAT(ahead.missing, ElementsAre("a", "b"));
  const Decision one = AtStep60({{"a", kNow}}, {Active("a", 60), Active("b", 40)});
  EXPECT_EQ(one.action, Decision::kWait);
  EXPECT_EQ(one.reason, "waiting for b (step 40 of 60)");
  EXPECT_EQ(AtStep60({{"a", kNow}}, {Active("a", 60), Active("b", 61)}).reason,
            "waiting for b (sending)");
  EXPECT_EQ(AtStep60({{"a", kNow}, {"b", kNow}}, {Active("a", 60), Active("b", 60)}).action,
            Decision::kClose);
}

TEST(RoundPolicyTest, TheQuorumCountsARegionsSites) {
  Member region = Active("eu", 60);
  region.record.set_sites(4);
  const RoundPolicy policy = {.quorum = 5, .grace = absl::Seconds(1)};
  const Arrivals arrivals = {{"eu", kNow - absl::Seconds(2)}};
  const Decision alone = AtStep60(arrivals, {region, Active("b", 60)}, policy);
  EXPECT_EQ(alone.action, Decision::kWait);
  EXPECT_THAT(alone.reason, HasSubstr("4 of 5"));
  region.record.set_sites(5);
  EXPECT_EQ(AtStep60(arrivals, {region, Active("b", 60)}, policy).action, Decision::kClose);
}

TEST(RoundPolicyTest, ALateJoinerIsNotExpectedForRoundsSentBeforeItBegan) {
  const std::vector<Member> members = {Active("a", 60), Active("late", 60, 60)};
  EXPECT_EQ(AtStep60({{"a", kNow}}, members).action, Decision::kClose);
  OpenRound next = RoundAt60({{"a", kNow}});
  next.send_step = 61;
  EXPECT_EQ(Decide(kNow, next, Table(members), {}).action, Decision::kWait);
}

TEST(RoundPolicyTest, WorkerThatDiesAfterPushIsStillCounted) {
  EXPECT_EQ(
      AtStep60({{"a", kNow}, {"b", kNow}}, {Active("a", 60), Gone(Active("b", 60))}, {.quorum = 2})
          .action,
      Decision::kClose);
}

TEST(RoundPolicyTest, WorkerThatDiesBeforePushIsNotWaitedFor) {
  for (const v1::Member::State how : {v1::Member::LOST, v1::Member::LEFT}) {
    EXPECT_EQ(AtStep60({{"a", kNow}}, {Active("a", 60), Gone(Active("b", 40), how)}).action,
              Decision::kClose);
  }
}

TEST(RoundPolicyTest, BelowTheQuorumItWaitsForANewWorker) {
  const Decision decision =
      AtStep60({{"a", kNow}}, {Active("a", 60), Gone(Active("b", 40))}, {.quorum = 2});
  EXPECT_EQ(decision.action, Decision::kWait);
  EXPECT_EQ(decision.reason, "quorum not reached (1 of 2): waiting for another worker to join");
}

TEST(RoundPolicyTest, GraceRunsFromTheQuorumNotFromTheFirstArrival) {
  const RoundPolicy policy = {.quorum = 2, .grace = absl::Seconds(5)};
  const std::vector<Member> members = {Active("a", 60), Active("b", 60), Active("c", 30)};
  const Arrivals arrivals = {{"a", kNow - absl::Seconds(50)}, {"b", kNow - absl::Seconds(4)}};
  EXPECT_EQ(AtStep60(arrivals, members, policy).action, Decision::kWait);
  const Decision later = AtStep60(arrivals, members, policy, kNow + absl::Seconds(1));
  EXPECT_EQ(later.action, Decision::kClose);
  EXPECT_EQ(later.reason, "closed 5s after the quorum without c (step 30 of 60)");
  EXPECT_THAT(later.missing, ElementsAre("c"));
}

TEST(RoundPolicyTest, WithoutGraceItWaitsForALiveWorkerForEver) {
  EXPECT_EQ(
      AtStep60({{"a", kNow}}, {Active("a", 60), Active("b", 30)}, {}, kNow + absl::Hours(1000))
          .action,
      Decision::kWait);
}

TEST(RoundPolicyTest, ARoundThatNobodyCanSendAnyMoreIsPublishedEmpty) {
  const Decision decision = AtStep60({}, {Gone(Active("a", 59)), Active("late", 65, 65)});
  EXPECT_EQ(decision.action, Decision::kCloseEmpty);
  EXPECT_THAT(decision.reason, HasSubstr("step 60"));
}

TEST(RoundPolicyTest, NobodyThereClosesNothing) {
  EXPECT_EQ(AtStep60({}, {}).action, Decision::kWait);
  EXPECT_EQ(AtStep60({}, {Gone(Active("a", 0), v1::Member::JOINING)}).action, Decision::kWait);
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

// How long after kNow the round closes whatever comes, with the margin that is always kept.
absl::Duration WindowOf(Arrivals arrivals, const std::vector<Member>& members) {
  return AtStep60(std::move(arrivals), members, kAdaptive).wait_until - kNow + kDecisionMargin;
}

TEST(RoundPolicyTest, AdaptiveGraceSpendsTheSlackOfTheOverlap) {
  const std::vector<Member> members = {AtSpeed("a", 40, 1), AtSpeed("b", 40, 1)};
  const Decision early = AtStep60({{"a", kNow}}, members, kAdaptive, kNow + absl::Seconds(4));
  EXPECT_EQ(early.action, Decision::kWait);
  EXPECT_EQ(early.wait_until, kNow + absl::Seconds(5) - kDecisionMargin);
  EXPECT_EQ(early.reason,
            "waiting for b (step 40 of 60) for at most 850ms more: then a needs the answer");
  const Decision late = AtStep60({{"a", kNow}}, members, kAdaptive, early.wait_until);
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
  const Decision decision =
      AtStep60({{"a", kNow}, {"b", kNow - absl::Milliseconds(100)}},
               {AtSpeed("a", 40, 1), AtSpeed("b", 40, 0.2), AtSpeed("c", 40, 1)}, kAdaptive);
  EXPECT_EQ(decision.wait_until, kNow + absl::Milliseconds(900) - kDecisionMargin);
  EXPECT_THAT(decision.reason, HasSubstr("then b needs"));
}

TEST(RoundPolicyTest, OfFourNobodyEndsAnAdaptiveWindowAlone) {
  const std::vector<Member> members = {AtSpeed("a", 40, 1), AtSpeed("b", 40, 1),
                                       AtSpeed("c", 40, 1), AtSpeed("liar", 40, 1e-6)};
  const absl::Duration bound = absl::Seconds(20) + kDecisionMargin;
  EXPECT_EQ(WindowOf({{"liar", kNow}}, members), bound) << "it is less than half of them";
  EXPECT_EQ(WindowOf({{"liar", kNow}, {"a", kNow}}, members), bound);
  const Decision three = AtStep60({{"liar", kNow}, {"a", kNow}, {"b", kNow}}, members, kAdaptive);
  EXPECT_EQ(three.wait_until, kNow + absl::Seconds(5) - kDecisionMargin);
  EXPECT_THAT(three.reason, HasSubstr("then a needs"));
}

TEST(RoundPolicyTest, NobodyWaitsForAMemberThatIsKeptOutAndRoundsOfThoseAloneDoNotCloseEmpty) {
  Member kept_out = AtSpeed("b", 60, 1);
  kept_out.rejected = true;
  EXPECT_EQ(AtStep60({{"a", kNow}}, {AtSpeed("a", 60, 1), kept_out}).action, Decision::kClose);
  EXPECT_EQ(AtStep60({}, {kept_out}).action, Decision::kWait);
  EXPECT_EQ(Decide(kNow, RoundAt60({}, {{"b", kNow}}), Table({kept_out}), {}).action,
            Decision::kWait);
}

TEST(RoundPolicyTest, AHeartbeatSinceTheContributionSaysMoreThanItsArrival) {
  // The upload of a took a while.
  EXPECT_EQ(WindowOf({{"a", kNow}}, {AtSpeed("a", 63, 1, kNow), AtSpeed("b", 40, 1)}),
            absl::Seconds(2));
}

TEST(RoundPolicyTest, AWorkerAtPaceTwoPassesTwoStepsInTheTimeOfOne) {
  Member a = AtSpeed("a", 40, 2);
  a.progress.pace_milli = 2000;
  EXPECT_EQ(WindowOf({{"a", kNow}}, {a, AtSpeed("b", 40, 1)}), absl::Seconds(5));
}

TEST(RoundPolicyTest, AdaptiveGraceNeverGoesBeyondTheBound) {
  const std::vector<Member> members = {AtSpeed("a", 40, 100), AtSpeed("b", 40, 1)};
  EXPECT_EQ(AtStep60({{"a", kNow}}, members, kAdaptive).wait_until, kNow + absl::Seconds(20));
  EXPECT_EQ(AtStep60({{"a", kNow}}, members, kAdaptive, kNow + absl::Seconds(20)).reason,
            "closed 20s after the quorum without b (step 40 of 60)");
}

TEST(RoundPolicyTest, WithoutKnownSpeedsOrAContributorLeftOnlyTheBoundHolds) {
  for (const Member& a : {Active("a", 60), Gone(AtSpeed("a", 60, 1), v1::Member::LEFT)}) {
    EXPECT_EQ(WindowOf({{"a", kNow}}, {a, AtSpeed("b", 40, 1)}),
              absl::Seconds(20) + kDecisionMargin);
  }
}

TEST(RoundPolicyTest, WithoutOverlapTheQuorumIsEnough) {
  RoundPolicy policy = kAdaptive;
  policy.overlap_steps = 0;
  policy.quorum = 2;
  const std::vector<Member> members = {AtSpeed("a", 60, 1), AtSpeed("b", 60, 1),
                                       AtSpeed("c", 40, 1)};
  EXPECT_EQ(AtStep60({{"a", kNow}}, members, policy).action, Decision::kWait);
  EXPECT_EQ(AtStep60({{"a", kNow}, {"b", kNow}}, members, policy).action, Decision::kClose);
}

TEST(RoundPolicyTest, AQuarantinedContributionIsNeitherWaitedForNorCounted) {
  const Decision decision = Decide(kNow, RoundAt60({{"a", kNow}}, {{"b", kNow}}),
                                   Table({Active("a", 60), Active("b", 60)}), {.quorum = 2});
  EXPECT_EQ(decision.action, Decision::kClose) << "both have been heard";
  EXPECT_EQ(decision.reason, "every expected worker contributed (1)");
}

TEST(RoundPolicyTest, WhenAllIsQuarantinedTheRoundIsPublishedEmpty) {
  const OpenRound round = RoundAt60({}, {{"b", kNow}});
  const Decision waits = Decide(kNow, round, Table({Active("a", 60), Active("b", 60)}), {});
  EXPECT_EQ(waits.action, Decision::kWait) << "there is hope";
  const Decision decision = Decide(kNow, round, Table({Active("b", 60)}), {});
  EXPECT_EQ(decision.action, Decision::kCloseEmpty);
  EXPECT_EQ(decision.reason, "every contribution is quarantined");
}

TEST(RoundPolicyTest, BeyondTheStopOnlyWhoWasFurtherAlreadyIsExpected) {
  const RoundPolicy policy{.quorum = 3, .stop_step = 50};
  const std::vector<Member> members = {Active("a", 62), Active("b", 50), Active("c", 61)};
  EXPECT_EQ(AtStep60({}, members, policy).action, Decision::kWait)
      << "nothing is there to close with";
  const Decision decision = AtStep60({{"a", kNow}}, members, policy);
  EXPECT_EQ(decision.action, Decision::kWait);
  EXPECT_THAT(decision.missing, ElementsAre("c"));
  EXPECT_EQ(AtStep60({{"a", kNow}, {"c", kNow}}, members, policy).action, Decision::kClose)
      << "the quorum cannot be reached any more";
}

TEST(RoundPolicyTest, ANewWorkerStartsWhereTheOthersAreOrEarlierIfAnOpenRoundNeedsIt) {
  EXPECT_EQ(StartStep({RoundAt60({})}, Table({Active("a", 50)}), 50, {}), 50);
  EXPECT_EQ(StartStep({RoundAt60({{"a", kNow}})}, Table({Active("a", 62)}), 62, {}), 62);
  const Member dead = Gone(Active("b", 55));
  EXPECT_EQ(
      StartStep({RoundAt60({{"a", kNow}})}, Table({Active("a", 62), dead}), 62, {.quorum = 2}), 59);
  EXPECT_EQ(StartStep({RoundAt60({})}, Table({dead}), 75, {}), 59) << "everybody died";
}

}  // namespace
}  // namespace causeway::server
