// Workers that come late, leave, die, and lie.

#include "common/params/draws.h"
#include "gmock/gmock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status JoinCode(ToyRun& run, const v1::Join& join) {
  return run.members().Join(join, std::make_shared<RecordingSink>()).status();
}

TEST(CoordinatorMembershipTest, AJoinThatDoesNotFitNamesTheFieldAndBothValues) {
  ToyRun run;
  const auto refused = [&](auto change, auto says) {
    v1::Join join = run.MakeJoin("a", 1);
    change(join);
    EXPECT_THAT(JoinCode(run, join), StatusIs(kFailedPrecondition, says));
  };
  refused([](v1::Join& join) { join.set_data_vocabulary_size(50257); },
          AllOf(HasSubstr("data_vocabulary_size"), HasSubstr("50257"), HasSubstr("128")));
  refused([](v1::Join& join) { join.set_plan_hash(7); }, HasSubstr("plan_hash"));
  refused([](v1::Join& join) { join.set_config_hash(7); }, HasSubstr("config_hash"));
  refused([](v1::Join& join) { join.set_run_id("other"); }, HasSubstr("run_id"));
  refused([](v1::Join& join) { join.set_wire_version(99); }, HasSubstr("wire_version"));
  EXPECT_THAT(JoinCode(run, run.MakeJoin("a b", 1)), StatusIs(kInvalidArgument));
  EXPECT_EQ(run.status().workers_size(), 0);
}

TEST(CoordinatorMembershipTest, TrainingStartsWhenEnoughWorkersAreReady) {
  ToyRun run;
  ToyWorker a(run, "a", 1);
  ToyWorker b(run, "b", 2);
  ToyWorker c(run, "c", 3);
  ASSERT_TRUE(a.Enter().ok());
  ASSERT_TRUE(b.Join().ok());
  EXPECT_EQ(a.sink().Count(v1::Directive::START), 0);
  ASSERT_TRUE(b.Ready(0).ok());
  EXPECT_EQ(a.sink().Count(v1::Directive::START), 1);
  EXPECT_EQ(b.sink().Count(v1::Directive::START), 1);
  ASSERT_TRUE(c.Enter().ok());
  EXPECT_TRUE(c.welcome().started());
  EXPECT_EQ(c.sink().Count(v1::Directive::START), 1);
  EXPECT_EQ(a.sink().Count(v1::Directive::START), 1);
  EXPECT_THAT(a.sink().roster(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(run.events.Count("training_started"), 1);
}

TEST(CoordinatorMembershipTest, ADeadWorkerIsNotWaitedForBeyondItsLease) {
  TwoWorkers two;
  auto& [run, a, b] = two;
  ASSERT_TRUE(a.Push(0, 1).ok());
  run.clock.Advance(absl::Seconds(9));
  ASSERT_TRUE(a.Heartbeat().ok());
  run.coordinator->Tick();
  EXPECT_TRUE(run.store.rounds().empty());
  EXPECT_THAT(run.status().fragments(0).waiting_for(), HasSubstr("b"));
  run.clock.Advance(absl::Seconds(1));
  run.coordinator->Tick();
  ASSERT_EQ(run.store.rounds().size(), 1u);
  EXPECT_THAT(run.store.rounds()[0].contributors(), ElementsAre("a"));
  EXPECT_EQ(run.events.Count("worker_lost"), 1);
  EXPECT_EQ(b.sink().closed(), 1);
  EXPECT_THAT(a.sink().roster(), ElementsAre("a"));
  EXPECT_TRUE(a.Merge(0, 1).ok());
  EXPECT_THAT(b.Heartbeat(), StatusIs(kUnavailable));
  ASSERT_TRUE(b.Enter().ok()) << "it may come back";
  EXPECT_EQ(b.welcome().data_slot(), 1);
}

TEST(CoordinatorMembershipTest, ALateWorkerFetchesTheStateAndTakesPartFromThereOn) {
  ToyRun run("membership { start_workers: 1 }");
  ToyWorker a(run, "a", 1);
  ASSERT_TRUE(a.Enter().ok());
  for (int i = 0; i < 9; ++i) TrainStep({&a});
  ASSERT_TRUE(a.Heartbeat().ok());
  ToyWorker late(run, "late", 2);
  ASSERT_TRUE(late.Enter().ok());
  EXPECT_EQ(late.welcome().run_step(), 9);
  EXPECT_THAT(late.welcome().published_versions(), ElementsAre(2, 1, 1));
  EXPECT_EQ(late.published(), a.published());
  for (int i = 0; i < 12; ++i) TrainStep({&a, &late});
  EXPECT_EQ(late.published(), a.published());
  EXPECT_THAT(run.store.rounds().back().contributors(), ElementsAre("a", "late"));
}

TEST(CoordinatorMembershipTest, AWorkerThatLeavesIsNotExpectedAnyMore) {
  TwoWorkers two;
  auto& [run, a, b] = two;
  ASSERT_TRUE(a.Push(0, 1).ok());
  ASSERT_TRUE(b.Push(1, 1).ok());
  ASSERT_TRUE(b.Leave(v1::Leave::DRAINED).ok());
  b.Cut();
  run.coordinator->Tick();
  EXPECT_EQ(run.store.rounds().size(), 1u) << "fragment 0, without b";
  ASSERT_TRUE(a.Push(1, 1).ok());
  EXPECT_THAT(run.store.rounds().back().contributors(), ElementsAre("a", "b"))
      << "what it contributed counts";
  EXPECT_EQ(run.events.Count("worker_left"), 1);
  EXPECT_EQ(run.events.Count("worker_disconnected"), 0);
}

TEST(CoordinatorMembershipTest, AWorkerThatAttachesAgainIsBackAndNotAtItsFirstStep) {
  TwoWorkers two;
  two.TrainBoth(3);
  ASSERT_TRUE(two.a.Heartbeat().ok());
  two.a.Cut();
  ASSERT_TRUE(two.a.Join().ok());
  ASSERT_TRUE(two.a.Ready(0, /*anew=*/true).ok()) << "as it said first";
  EXPECT_THAT(two.run.events.Messages("worker_ready"),
              ElementsAre("worker a is ready at step 0", "worker b is ready at step 0",
                          "worker a is back; it had reported step 3"));
}

TEST(CoordinatorMembershipTest, AWorkerThatReturnsWithACheckpointIsWaitedForUnlessItStartsAnew) {
  TwoWorkers two;
  auto& [run, a, b] = two;
  for (int i = 0; i < 3; ++i) a.Train();
  ASSERT_TRUE(a.Heartbeat().ok());
  b.Cut();
  ToyWorker again(run, "b", 3);
  ASSERT_TRUE(again.Join(1).ok());
  EXPECT_TRUE(again.welcome().resumes()) << "however old its checkpoint is";
  ASSERT_TRUE(a.Push(0, 1).ok());
  EXPECT_TRUE(run.store.rounds().empty()) << "the checkpoint will send it";
  ASSERT_TRUE(again.Ready(3, /*anew=*/true).ok());
  run.coordinator->Tick();
  EXPECT_EQ(run.store.rounds().size(), 1u) << "it will not send what comes before its step";
}

TEST(CoordinatorMembershipTest, TheStartEndsAPauseForWhoeverMissedItsEnd) {
  ToyRun run;
  ToyWorker a(run, "a", 1);
  ToyWorker b(run, "b", 2);
  ASSERT_TRUE(a.Join().ok());
  ASSERT_TRUE(run.orders().Pause("a test").ok());
  EXPECT_EQ(a.sink().Count(v1::Directive::PAUSE), 1);
  a.Cut();
  ASSERT_TRUE(run.orders().Resume().ok());
  ASSERT_TRUE(a.Join().ok());
  ASSERT_TRUE(a.Ready(0).ok());  // Training has not started: nothing is said yet.
  ASSERT_TRUE(b.Enter().ok());
  EXPECT_EQ(a.sink().Count(v1::Directive::START), 1);
  EXPECT_EQ(a.sink().Count(v1::Directive::RESUME), 1);
}

TEST(CoordinatorMembershipTest, RoundsThatDiedWithTheirOnlySenderDoNotStopTheRun) {
  ToyRun run("membership { start_workers: 1 } sync { overlap_steps: 3 }");
  ToyWorker a(run, "a", 1);
  ASSERT_TRUE(a.Enter().ok());
  a.Train();
  ASSERT_TRUE(a.Heartbeat().ok());
  ToyWorker b(run, "b", 2);
  ASSERT_TRUE(b.Enter().ok());
  ASSERT_TRUE(b.Ready(1).ok());
  for (int i = 0; i < 4; ++i) a.Train();
  ASSERT_TRUE(a.Heartbeat().ok());  // Step 5: beyond the sends at 2 and 4, none of them made.
  ToyWorker c(run, "c", 3);
  ASSERT_TRUE(c.Enter().ok());
  EXPECT_EQ(c.welcome().run_step(), 5);
  ASSERT_TRUE(b.Leave(v1::Leave::DRAINED).ok());
  run.clock.Advance(absl::Seconds(9));
  ASSERT_TRUE(c.Heartbeat().ok());
  run.clock.Advance(absl::Seconds(1));
  run.coordinator->Tick();  // a is lost.
  EXPECT_EQ(run.store.rounds().size(), 2u) << "both published empty";
  while (c.step() < 8) {
    c.Train();
    ASSERT_EQ(c.SendDue(), absl::OkStatus());
  }
  EXPECT_THAT(run.store.rounds().back().contributors(), ElementsAre("c"));
  EXPECT_EQ(run.store.rounds().back().round(), 2);
}

TEST(CoordinatorMembershipTest, WhatAWorkerSaysOfItsLinkIsShownAndSummarized) {
  ToyRun run("membership { start_workers: 1 }");
  ToyWorker a(run, "a", 1);
  ASSERT_TRUE(a.Enter().ok());
  ASSERT_TRUE(
      a.Say("heartbeat { checkpoint_step: -1 link { rtt_seconds: 0.125 resent_chunks: 3 } }").ok());
  EXPECT_EQ(run.status().workers(0).link().rtt_seconds(), 0.125);
  ASSERT_TRUE(run.coordinator->Shutdown().ok());
  const nlohmann::json link = run.store.summary()["workers"]["a"]["link"];
  EXPECT_EQ(link["rtt_seconds"], 0.125);
  EXPECT_EQ(link["resent_chunks"], 3);
}

TEST(CoordinatorMembershipTest, AHeartbeatIsAnsweredByWhereTheRunIsAndWhomItWaitsFor) {
  TwoWorkers two;
  auto& [run, a, b] = two;
  a.Train();
  a.Train();
  ASSERT_TRUE(a.Push(0, 1).ok());
  ToyWorker joiner(run, "joiner", 3);
  ASSERT_TRUE(joiner.Join().ok());
  EXPECT_EQ(joiner.welcome().run_step(), 0);
  ASSERT_TRUE(a.Heartbeat().ok());
  EXPECT_EQ(a.sink().renewed().waits_for(), "") << "it does not say that it waits";
  ASSERT_TRUE(a.Say("heartbeat { step: 2 checkpoint_step: -1 steps_before_wait: 0 }").ok());
  EXPECT_THAT(a.sink().renewed().waits_for(), HasSubstr("waiting for b (step 0 of 2)"));
  const std::string fetches = "heartbeat { checkpoint_step: -1 }";
  ASSERT_TRUE(joiner.Say(fetches).ok());
  EXPECT_EQ(joiner.sink().renewed().run_step(), 2) << "not where it was at the welcome";
  // With a step in 2 s, a will be at its next heartbeat where it waits for the round that is open.
  ASSERT_TRUE(a.ReportSpeed(2, 2).ok());
  run.clock.Advance(absl::Seconds(2));
  ASSERT_TRUE(joiner.Say(fetches).ok());
  EXPECT_EQ(joiner.sink().renewed().run_step(), 3);
  run.clock.Advance(absl::Seconds(6));
  ASSERT_TRUE(joiner.Say(fetches).ok());
  EXPECT_EQ(joiner.sink().renewed().run_step(), 3) << "nobody gets beyond before it is published";
  EXPECT_EQ(joiner.sink().renewed().waits_for(), "");
}

TEST(CoordinatorMembershipTest, ADifferentPublishedCopyIsFoundOutAndItsWorkerExpelled) {
  TwoWorkers two;
  auto& [run, a, b] = two;
  ASSERT_TRUE(a.Push(0, 1).ok());
  ASSERT_TRUE(b.Push(0, 1).ok());
  ASSERT_TRUE(a.Merge(0, 1).ok());
  EXPECT_THAT(run.members().Handle("b", 1, AppliedOf(0, 1, 1)), StatusIs(kDataLoss));
  EXPECT_EQ(run.events.Count("hash_mismatch"), 1);
  EXPECT_THAT(a.sink().roster(), ElementsAre("a"));
  EXPECT_THAT(run.members().Handle("a", 1, AppliedOf(0, 2, 1)), StatusIs(kOutOfRange));
  ASSERT_TRUE(run.coordinator->Shutdown().ok());
  EXPECT_EQ(run.store.summary()["hash_checks"], 2);
  EXPECT_EQ(run.store.summary()["hash_mismatches"], 1);
}

TEST(CoordinatorMembershipTest, TheRunIsFinishedWhenTheLastWorkerLeft) {
  ToyRun run;
  ToyWorker a(run, "a", 1);
  ToyWorker b(run, "b", 2);
  EXPECT_FALSE(run.coordinator->Finished());
  ASSERT_TRUE(a.Enter().ok());
  ASSERT_TRUE(b.Enter().ok());
  ASSERT_TRUE(a.Leave(v1::Leave::FINISHED).ok());
  EXPECT_FALSE(run.coordinator->Finished());
  run.clock.Advance(absl::Seconds(10));
  run.coordinator->Tick();  // b dies.
  EXPECT_TRUE(run.coordinator->Finished());
  EXPECT_TRUE(run.coordinator->ReachedItsEnd());
  EXPECT_TRUE(run.status().finished());
  EXPECT_EQ(run.events.Count("run_finished"), 1);
}

TEST(CoordinatorMembershipTest, DirectivesReachTheWorkersAndThoseThatComeLater) {
  TwoWorkers two;
  auto& [run, a, b] = two;
  ASSERT_TRUE(run.orders().Pause("maintenance").ok());
  EXPECT_TRUE(run.status().paused());
  ASSERT_TRUE(run.orders().StopAtStep(40).ok());
  ToyWorker c(run, "c", 3);
  ASSERT_TRUE(c.Enter().ok());
  for (const ToyWorker* const worker : {&a, &b, &c}) {
    EXPECT_EQ(worker->sink().Count(v1::Directive::PAUSE), 1) << worker->id();
    EXPECT_EQ(worker->sink().Count(v1::Directive::STOP_AT_STEP), 1) << worker->id();
  }
  ASSERT_TRUE(run.orders().Resume().ok());
  EXPECT_EQ(a.sink().Count(v1::Directive::RESUME), 1);
  EXPECT_THAT(run.orders().Drain("x"), StatusIs(kNotFound));
  ASSERT_TRUE(run.orders().Drain("b").ok());
  EXPECT_EQ(a.sink().Count(v1::Directive::DRAIN), 0);
  EXPECT_EQ(b.sink().Count(v1::Directive::DRAIN), 1);
  EXPECT_THAT(run.orders().StopAtStep(0), StatusIs(kInvalidArgument));
  for (int i = 0; i < 3; ++i) a.Train();
  ASSERT_TRUE(a.Heartbeat().ok());
  EXPECT_THAT(run.orders().StopAtStep(2), StatusIs(kFailedPrecondition));
  EXPECT_THAT(run.orders().StopAtStep(1'000'000),
              StatusIs(kFailedPrecondition, HasSubstr("cannot go on to 1000000")));
}

TEST(CoordinatorMembershipTest, AWorkerThatWasAwayWhenItWasAskedToDrainIsToldEvenByASuccessor) {
  TwoWorkers two;
  auto& [run, a, b] = two;
  a.Cut();
  ASSERT_TRUE(run.orders().Drain("a").ok());
  run.Restart();
  ASSERT_TRUE(a.Enter().ok());
  EXPECT_EQ(a.sink().Count(v1::Directive::DRAIN), 1);
  ASSERT_TRUE(b.Enter().ok());
  EXPECT_EQ(b.sink().Count(v1::Directive::DRAIN), 0);
  ASSERT_TRUE(a.Leave(v1::Leave::DRAINED).ok());
  ToyWorker again(run, "a", 3);
  ASSERT_TRUE(again.Enter().ok());
  EXPECT_EQ(again.sink().Count(v1::Directive::DRAIN), 0) << "another process was asked";
}

TEST(CoordinatorMembershipTest, AWorkerThatWasLostWhenItWasAskedToDrainIsToldWhenItIsBack) {
  TwoWorkers two;
  auto& [run, a, b] = two;
  a.Cut();
  run.clock.Advance(absl::Seconds(9));
  ASSERT_TRUE(b.Heartbeat().ok());
  run.clock.Advance(absl::Seconds(2));
  run.coordinator->Tick();
  ASSERT_EQ(run.status().workers(0).state(), v1::WorkerStatus::LOST);
  ASSERT_TRUE(run.orders().Drain("").ok());
  EXPECT_EQ(b.sink().Count(v1::Directive::DRAIN), 1);
  ASSERT_TRUE(a.Enter().ok());
  EXPECT_EQ(a.sink().Count(v1::Directive::DRAIN), 1);
}

TEST(CoordinatorMembershipTest, WhatALeavingWorkerContributedIsInTheFinalState) {
  TwoWorkers two;
  auto& [run, a, b] = two;
  a.Train();
  ASSERT_TRUE(a.Push(0, 1).ok());
  ASSERT_TRUE(b.Leave(v1::Leave::DRAINED).ok());
  ASSERT_TRUE(a.Leave(v1::Leave::DRAINED).ok());
  ASSERT_TRUE(run.coordinator->Shutdown().ok());  // Before the next Tick.
  ASSERT_EQ(run.store.rounds().size(), 1u);
  EXPECT_THAT(run.store.rounds()[0].contributors(), ElementsAre("a"));
  EXPECT_EQ(run.store.snapshots()[0].version, 1);
}

TEST(CoordinatorMembershipTest, NonsenseOnASessionIsRefused) {
  ToyRun run;
  ToyWorker a(run, "a", 1);
  ASSERT_TRUE(a.Join().ok());
  for (const char* const message :
       {"", "join {}", "heartbeat { step: 1152921504606846976 }", "heartbeat { tokens: -1 }",
        "heartbeat { tokens: 9223372036854775807 }", "ready { step: -1 }"}) {
    EXPECT_THAT(a.Say(message), StatusIs(kInvalidArgument)) << message;
  }
}

// The first draw of whoever joins as `next` after a delta of a that claims `claims`.
int64_t NextDrawOf(ToyWorker TwoWorkers::*next, const std::vector<DrawRange>& claims, int ignored) {
  TwoWorkers two;
  while (two.a.step() < 2) two.a.Train();
  EXPECT_EQ(two.a
                .Contribute(0, 1,
                            [&](auto& header, auto&) {
                              DrawsToProto(claims, header.mutable_draws());
                              EXPECT_TRUE(two.run.rounds().BeginPush(header, nullptr).ok());
                            })
                .status(),
            absl::OkStatus());
  EXPECT_EQ(two.run.events.Count("draws_ignored"), ignored);
  EXPECT_TRUE((two.*next).Join().ok());
  return (two.*next).welcome().next_draw();
}

TEST(CoordinatorMembershipTest, AWorkerThatClaimsPartsOfTheDataThatItNeverHadIsNotBelieved) {
  const DrawRange own{.slot = 0, .begin = 0, .end = 64};
  EXPECT_EQ(NextDrawOf(&TwoWorkers::b, {own}, 0), 0) << "its own";
  EXPECT_EQ(NextDrawOf(&TwoWorkers::b, {own, {.slot = 1, .begin = 0, .end = 9}}, 1), 0);
  EXPECT_EQ(NextDrawOf(&TwoWorkers::b, {{.slot = kOwnData, .begin = 0, .end = 64}}, 0), 0);
}

TEST(CoordinatorMembershipTest, AWorkerThatClaimsMoreThanItCanHaveTrainedIsBelievedNoFurther) {
  const int64_t batch = TwoWorkers().run.coordinator->config().train().batch_sequences();
  const auto steps_of_successor = [&](int64_t begin, int64_t end, int ignored) {
    const DrawRange claim{.slot = 0, .begin = begin, .end = end};
    return NextDrawOf(&TwoWorkers::a, {claim}, ignored) / batch;
  };
  EXPECT_EQ(steps_of_successor(0, 2 * batch, 0), 2);
  // A part's first steps: those of the round, and the reserve of 3 H + 2 tau + 8 steps.
  constexpr int64_t kMost = 2 + 3 * 6 + 2 * 1 + 8;
  EXPECT_EQ(steps_of_successor(0, kMost * batch, 0), kMost);
  EXPECT_EQ(steps_of_successor(0, kMost * batch + 1, 1), kMost);
  EXPECT_EQ(steps_of_successor(0, kMaxDraw, 1), kMost);
  EXPECT_EQ(steps_of_successor(kMaxDraw - 1, kMaxDraw, 1), 0) << "nothing is left of it";
}

TEST(CoordinatorMembershipTest, WhatAWorkerSaysOfItsAnswersIsShownAsFarAsTheScheduleAllowsIt) {
  TwoWorkers two;
  const auto say = [&](const std::string& answers) {
    const std::string speed = "checkpoint_step: -1 inner_step_seconds: 0.5 pace_milli: 2000 ";
    EXPECT_TRUE(two.a.Say(absl::StrCat("heartbeat { ", speed, answers, " }")).ok());
    return two.run.status().workers(0);
  };
  v1::WorkerStatus a = say("late_answers: 2 steps_before_wait: 4");
  EXPECT_EQ(a.late_answers(), 2);
  EXPECT_EQ(a.steps_before_wait(), 4);
  EXPECT_EQ(a.step_seconds(), 0.25);
  a = say("steps_before_wait: 0");
  EXPECT_TRUE(a.has_steps_before_wait()) << "it waits";
  EXPECT_EQ(a.steps_before_wait(), 0);
  a = say("late_answers: -1 steps_before_wait: -1");
  EXPECT_EQ(a.late_answers(), 0);
  EXPECT_EQ(a.steps_before_wait(), 0);
  a = say("late_answers: 2147483647 steps_before_wait: 9223372036854775807");
  EXPECT_EQ(a.late_answers(), 3) << "one for every fragment";
  EXPECT_EQ(a.steps_before_wait(), 12) << "two periods";
  EXPECT_FALSE(say("").has_steps_before_wait());
}

}  // namespace
}  // namespace causeway::server
