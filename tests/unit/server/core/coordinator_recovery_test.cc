// Coordinators that die, and those that take over from the store.

#include "common/params/draws.h"
#include "gmock/gmock.h"
#include "server/round/membership.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CoordinatorRecoveryTest, ARunOfManyDeathsEndsInTheSameBits) {
  for (const char* const codecs : {"codec_up: INT4 codec_down: INT4 error_feedback: false",
                                   "codec_up: FP32 codec_down: LM2 error_feedback: false",
                                   "codec_up: LM2 codec_down: LM2 error_feedback: true",
                                   "codec_up: SIGN1 codec_down: SIGN1 error_feedback: true",
                                   "codec_up: E3M0 codec_down: INT4 error_feedback: false"}) {
    TwoWorkers undisturbed(absl::StrCat("sync { ", codecs, " }"));
    TwoWorkers disturbed(absl::StrCat("sync { ", codecs, " }"));
    for (int step = 0; step < 24; ++step) {
      undisturbed.TrainBoth(1);
      disturbed.TrainBoth(1, [&] { disturbed.Restart(); });  // With rounds that have one of two.
      disturbed.Restart();
      if (step % 3 == 0) disturbed.run.coordinator->Maintain();
    }
    EXPECT_EQ(disturbed.run.coordinator->PublishedParameters(),
              undisturbed.run.coordinator->PublishedParameters());
    EXPECT_EQ(disturbed.a.published(), undisturbed.a.published());
    EXPECT_EQ(disturbed.run.events.Count("hash_mismatch"), 0);
    EXPECT_EQ(disturbed.run.events.Count("recovered"), 48);
  }
}

TEST(CoordinatorRecoveryTest, AnAcknowledgedDeltaSurvivesAndCountsOnce) {
  TwoWorkers two;
  two.a.Train();
  two.b.Train();
  ASSERT_TRUE(two.a.Push(0, 1).ok());
  two.run.Restart();
  EXPECT_THAT(two.run.status().fragments(0).contributed(), ElementsAre("a"));
  std::vector<uint8_t> object;
  const v1::PushHeader fenced = two.a.MakePush(0, 1, object);
  ASSERT_TRUE(two.a.Join().ok());
  EXPECT_EQ(two.a.incarnation(), 2u);
  EXPECT_THAT(two.run.rounds().BeginPush(fenced, nullptr), StatusIs(kUnavailable));
  EXPECT_TRUE(two.a.Push(0, 1).ok()) << "the same object again is held already";
  EXPECT_EQ(two.run.store.contributions().size(), 1u);
  two.a.Train();
  EXPECT_THAT(two.a.Push(0, 1), StatusIs(kAlreadyExists));
  EXPECT_TRUE(two.run.store.rounds().empty()) << "b is still a member and still expected";
  ASSERT_TRUE(two.b.Join().ok());
  ASSERT_TRUE(two.b.Push(0, 1).ok());
  ASSERT_EQ(two.run.store.rounds().size(), 1u);
  EXPECT_THAT(two.run.store.rounds()[0].contributors(), ElementsAre("a", "b"));
}

TEST(CoordinatorRecoveryTest, AnswersOfTheFormerCoordinatorAreStillThere) {
  TwoWorkers two;
  two.TrainBoth(15);
  two.Restart();
  ToyWorker late(two.run, "late", 3);
  ASSERT_TRUE(late.Enter().ok());
  EXPECT_EQ(late.published(), two.a.published());
  for (const int64_t round : {1, 2}) {
    bool answered = false;
    two.run.rounds().PullAnswer(0, round, [&](auto object) {
      answered = true;
      ASSERT_TRUE(object.ok()) << object.status();
      EXPECT_EQ(TreeHash((*object)->bytes), (*object)->header.object_hash());
      EXPECT_EQ((*object)->header.round(), round);
    });
    EXPECT_TRUE(answered);
  }
  for (ToyWorker* const worker : {&two.a, &two.b, &late}) ASSERT_TRUE(worker->Heartbeat().ok());
  two.run.coordinator->Maintain();
  EXPECT_EQ((*two.run.rounds().PullState(0))->header.round(), 3);
  EXPECT_THAT(two.run.PullAnswer(0, 1), StatusIs(kNotFound));
}

TEST(CoordinatorRecoveryTest, AnswersAreKeptBackToTheOldestCheckpoint) {
  TwoWorkers two;
  two.TrainBoth(8);
  ASSERT_TRUE(two.a.Heartbeat().ok());
  ASSERT_TRUE(two.b.Heartbeat(/*checkpoint_step=*/8).ok());
  two.TrainBoth(24);
  two.run.coordinator->Maintain();
  EXPECT_EQ(two.run.PullAnswer(0, 2), absl::OkStatus());
  EXPECT_THAT(two.run.PullAnswer(0, 1), StatusIs(kNotFound)) << "the checkpoint has merged it";
}

TEST(CoordinatorRecoveryTest, AMemberThatDiedWithTheCoordinatorIsWaitedForALeaseAndSomeMore) {
  TwoWorkers two;
  two.a.Train();
  ASSERT_TRUE(two.a.Push(0, 1).ok());
  two.run.Restart();
  two.run.clock.Advance(absl::Seconds(10) + kReturnTime - absl::Seconds(1));
  ASSERT_TRUE(two.a.Join().ok()) << "it had to find out that the coordinator is back";
  two.run.coordinator->Tick();
  EXPECT_TRUE(two.run.store.rounds().empty());
  two.run.clock.Advance(absl::Seconds(1));
  two.run.coordinator->Tick();
  ASSERT_EQ(two.run.store.rounds().size(), 1u);
  EXPECT_THAT(two.run.store.rounds()[0].contributors(), ElementsAre("a"));
  two.run.Restart();
  EXPECT_EQ(two.run.status().workers(1).state(), v1::WorkerStatus::LOST);
}

TEST(CoordinatorRecoveryTest, ARunThatWasDrainedGoesOnAndIsNotTakenForFinished) {
  TwoWorkers two;
  ASSERT_TRUE(two.a.Leave(v1::Leave::DRAINED).ok());
  ASSERT_TRUE(two.b.Leave(v1::Leave::DRAINED).ok());
  EXPECT_TRUE(two.run.coordinator->Finished()) << "nobody is there to go on";
  EXPECT_FALSE(two.run.coordinator->ReachedItsEnd()) << "but whoever comes back can";
  two.run.Restart();
  EXPECT_FALSE(two.run.coordinator->Finished()) << "somebody will come: that is why it was started";
  ASSERT_TRUE(two.a.Join().ok());
  ASSERT_TRUE(two.a.Leave(v1::Leave::FAILED).ok());
  EXPECT_FALSE(two.run.coordinator->Finished()) << "who failed may be started again";
}

TEST(CoordinatorRecoveryTest, WhoIsLostBeforeTheEndDoesNotFinishTheRun) {
  TwoWorkers two;
  two.TrainBoth(4);
  ASSERT_TRUE(two.b.Leave(v1::Leave::DRAINED).ok());
  two.run.Restart();
  two.run.clock.Advance(absl::Minutes(2));
  two.run.coordinator->Tick();
  EXPECT_FALSE(two.run.coordinator->Finished());
}

TEST(CoordinatorRecoveryTest, AnAnswerThatCannotBeReadIsAsGoodAsForgotten) {
  TwoWorkers two;
  two.TrainBoth(15);
  two.run.Restart();
  ASSERT_TRUE(two.run.store.ForgetAnswers(0, 2).ok());  // Behind the coordinator's back.
  EXPECT_THAT(two.run.PullAnswer(0, 1), StatusIs(kNotFound));
  EXPECT_TRUE(two.run.coordinator->Health().ok());
}

TEST(CoordinatorRecoveryTest, WhatTheOperatorAskedForIsRemembered) {
  TwoWorkers two;
  ASSERT_TRUE(two.run.orders().Pause("maintenance of the link").ok());
  ASSERT_TRUE(two.run.orders().StopAtStep(40).ok());
  v1::InvitationList invited;
  invited.add_invitations()->set_name("berlin");
  ASSERT_TRUE(two.run.orders().KeepInvitations(invited).ok());
  two.run.Restart();
  ASSERT_EQ(two.run.orders().Invitations().invitations_size(), 1);
  EXPECT_EQ(two.run.orders().Invitations().invitations(0).name(), "berlin");
  EXPECT_TRUE(two.run.status().started());
  EXPECT_TRUE(two.run.status().paused());
  ASSERT_TRUE(two.a.Enter().ok());
  EXPECT_EQ(two.a.sink().Count(v1::Directive::PAUSE), 1);
  EXPECT_EQ(two.a.sink().Count(v1::Directive::STOP_AT_STEP), 1);
}

TEST(CoordinatorRecoveryTest, AStepThatNobodyCanHaveReachedIsRefusedAndNotKept) {
  TwoWorkers two;
  two.TrainBoth(7);
  ToyWorker liar(two.run, "liar", 3);
  ASSERT_TRUE(liar.Join().ok());
  EXPECT_THAT(liar.Ready(50), StatusIs(kInvalidArgument));
  EXPECT_THAT(two.a.ReportSpeed(50, 1), StatusIs(kInvalidArgument));
  two.run.Restart();
  EXPECT_LE(two.run.status().run_step(), 7);
  EXPECT_TRUE(two.run.orders().StopAtStep(40).ok());
}

TEST(CoordinatorRecoveryTest, ACoordinatorThatServesAnOldCopyIsFoundOut) {
  TwoWorkers two;
  EXPECT_GT(two.a.welcome().epoch(), 0);
  two.a.Train();
  two.b.Train();
  std::vector<uint8_t> object;
  v1::PushHeader header = two.a.MakePush(0, 1, object);
  header.set_base_hash(1);
  EXPECT_THAT(two.run.rounds().BeginPush(header, nullptr),
              StatusIs(kFailedPrecondition, HasSubstr("old copy of its run directory")));
  header.set_base_hash(two.run.store.identity().initial_hashes(0));
  header.set_epoch(two.a.welcome().epoch() + 1);
  EXPECT_THAT(two.run.rounds().BeginPush(header, nullptr),
              StatusIs(kFailedPrecondition, HasSubstr("epoch")));
  header.set_epoch(two.a.welcome().epoch());
  EXPECT_TRUE(two.run.rounds().BeginPush(header, nullptr).ok());
  v1::Join join = two.run.MakeJoin("a", 1);
  join.set_seen_epoch(two.a.welcome().epoch() + 1);
  EXPECT_THAT(two.run.members().Join(join, std::make_shared<RecordingSink>()),
              StatusIs(kFailedPrecondition));
  const int64_t before = two.a.welcome().epoch();
  two.run.Restart();
  ASSERT_TRUE(two.a.Join().ok());
  EXPECT_GT(two.a.welcome().epoch(), before);
  header = two.a.MakePush(0, 1, object);
  header.set_epoch(before);
  EXPECT_TRUE(two.run.rounds().BeginPush(header, nullptr).ok()) << "as good as its own";
}

TEST(CoordinatorRecoveryTest, WhichPartsOfTheDataAWorkerHadIsRemembered) {
  // The workers had other parts before the run began, as they came: b was first.
  ToyRun run;
  ToyWorker b(run, "b", 2);
  ToyWorker a(run, "a", 1);
  ASSERT_TRUE(b.Join().ok());
  ASSERT_TRUE(a.Join().ok());
  EXPECT_EQ(b.welcome().data_slot(), 0);
  ASSERT_TRUE(b.Ready(0).ok());
  ASSERT_TRUE(a.Ready(0).ok());  // The run starts: numbered by name, b has part 1.
  run.Restart();
  ASSERT_TRUE(b.Join().ok());
  EXPECT_EQ(b.welcome().data_slot(), 1);
  ASSERT_TRUE(a.Join().ok());
  ASSERT_TRUE(b.PullStates().ok());
  while (b.step() < 2) b.Train();
  const auto claims = [](auto& header, auto&) {
    DrawsToProto({{.slot = 0, .begin = 0, .end = 8}, {.slot = 1, .begin = 0, .end = 8}},
                 header.mutable_draws());
  };
  ASSERT_EQ(b.Contribute(0, 1, claims).status(), absl::OkStatus());
  EXPECT_EQ(run.events.Count("draws_ignored"), 0);
}

TEST(CoordinatorRecoveryTest, ARoundThatComesOutOtherwiseIsRefused) {
  TwoWorkers two;
  two.TrainBoth(4);
  auto recovered = two.run.store.Recover().value();
  v1::Round& round = recovered->rounds[0];
  round.set_answer_hash(round.answer_hash() ^ 1);
  EXPECT_THAT(two.run.MakeCoordinator(*recovered),
              StatusIs(kDataLoss, HasSubstr("version 1 of fragment 0")));
}

TEST(CoordinatorRecoveryTest, AnotherConfigurationOrOtherInitialValuesAreRefused) {
  TwoWorkers two;
  const auto refused = [&](auto change, absl::StatusCode code) {
    auto recovered = two.run.store.Recover().value();
    change(recovered->identity);
    EXPECT_THAT(two.run.MakeCoordinator(*recovered), StatusIs(code));
  };
  refused([](auto& run) { run.set_initial_hashes(1, run.initial_hashes(1) ^ 1); }, kDataLoss);
  refused([](auto& run) { run.set_config_hash(1); }, kFailedPrecondition);
  refused([](auto& run) { run.set_plan_hash(1); }, kFailedPrecondition);
}

// Fragments 0, 1 and 2 with 3, 5 and 4 rounds that no snapshot has.
class DueSnapshotsTest : public ::testing::Test {
 protected:
  DueSnapshotsTest() {
    const std::vector<std::pair<int, int>> lacking = {{0, 3}, {1, 5}, {2, 4}};
    for (const auto& [fragment, rounds] : lacking) {
      for (int64_t round = 1; round <= rounds; ++round) {
        EXPECT_TRUE(two_.a.Push(fragment, round).ok());
        EXPECT_TRUE(two_.b.Push(fragment, round).ok());
      }
    }
    two_.run.store.on_snapshot = [this](int fragment) {
      two_.run.clock.Advance(time_);
      if (fragment == full_for_) return absl::ResourceExhaustedError("the disk is full");
      saved_.push_back(fragment);
      return absl::OkStatus();
    };
  }
  // Returns those that were saved.
  std::vector<int> Maintain() {
    saved_.clear();
    more_due_ = two_.run.coordinator->Maintain();
    EXPECT_TRUE(two_.run.coordinator->Health().ok());
    return saved_;
  }

  TwoWorkers two_;
  absl::Duration time_;  // It takes to save one.
  int full_for_ = -1;
  std::vector<int> saved_;
  bool more_due_ = false;
};

TEST_F(DueSnapshotsTest, TheFragmentThatLacksMostIsSavedFirstAndNoneAfterASecond) {
  time_ = absl::Milliseconds(600);
  EXPECT_THAT(Maintain(), ElementsAre(1, 2));
  EXPECT_TRUE(more_due_);
  EXPECT_THAT(Maintain(), ElementsAre(0));
  EXPECT_FALSE(more_due_);
  EXPECT_THAT(Maintain(), ElementsAre());
}

TEST_F(DueSnapshotsTest, OneThatFindsNoRoomDoesNotKeepTheOthersFromTheirs) {
  full_for_ = 1;
  time_ = absl::Milliseconds(600);  // The one that is refused takes its time, too.
  EXPECT_THAT(Maintain(), ElementsAre(2));
  EXPECT_EQ(two_.run.events.Count("snapshot_refused"), 1);
  EXPECT_THAT(Maintain(), ElementsAre(0));
  EXPECT_THAT(Maintain(), ElementsAre());
  EXPECT_EQ(two_.run.events.Count("snapshot_refused"), 1) << "it is the same one";
  full_for_ = -1;
  EXPECT_THAT(Maintain(), ElementsAre(1));
}

TEST(CoordinatorRecoveryTest, FragmentsRecoverSideBySideAndWhoHasASnapshotNeedsNoInitialValues) {
  ThreadPool pool(2);  // Fewer than the three fragments.
  TwoWorkers two;
  two.TrainBoth(10);
  two.run.merge_pool = &pool;
  two.Restart();
  two.TrainBoth(10);
  two.run.coordinator->Maintain();
  ASSERT_EQ(two.run.store.snapshots().size(), 3u);
  two.TrainBoth(8);  // Rounds that are merged again.
  const std::vector<float> before = two.run.coordinator->PublishedParameters();
  two.run.snapshots_have_to_do = true;
  two.Restart();
  EXPECT_EQ(two.run.coordinator->PublishedParameters(), before);
  two.TrainBoth(12);
  EXPECT_NE(two.run.coordinator->PublishedParameters(), before) << "it goes on";
}

}  // namespace
}  // namespace causeway::server
