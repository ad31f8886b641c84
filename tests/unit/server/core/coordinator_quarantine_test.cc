// The guard against contributions that are out of line.

#include "gmock/gmock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns what a worker is told that offers the object again.
bool SaysQuarantined(Coordinator& coordinator, const v1::PushHeader& header) {
  const auto held = coordinator.rounds().BeginPush(header, nullptr);
  EXPECT_TRUE(held.ok() && held->has_value()) << held.status();
  return held.ok() && held->has_value() && (*held)->quarantined();
}

struct Guarded : TwoWorkers {
  explicit Guarded(double outlier_factor)
      : TwoWorkers(absl::StrCat("membership { outlier_factor: ", outlier_factor, " }")) {}
  // Four rounds of fragment 0, after steps 2, 8, 14 and 20, make eight norms; then comes step 26.
  void TrainUntilThereIsAHistory() {
    TrainBoth(25);
    a.Train();
    b.Train();
  }
  bool Quarantined(ToyWorker& worker, int64_t round) {
    std::vector<uint8_t> object;
    v1::PushHeader header = worker.MakePush(0, round, object);
    for (const v1::Contribution& held : run.store.contributions()) {
      const bool same =
          held.header().worker_id() == header.worker_id() && held.header().round() == round;
      if (same && held.header().fragment() == 0) {
        header.set_object_hash(held.header().object_hash());
      }
    }
    return SaysQuarantined(*run.coordinator, header);
  }
};

TEST(CoordinatorQuarantineTest, AnOutlierIsHeldButNotMergedAndNobodyWaitsForIt) {
  Guarded two(10);
  two.TrainUntilThereIsAHistory();
  two.a.Diverge();
  ASSERT_TRUE(two.a.Push(0, 5).ok());
  EXPECT_TRUE(two.Quarantined(two.a, 5));
  EXPECT_FALSE(two.Quarantined(two.a, 4));
  EXPECT_THAT(two.run.status().fragments(0).quarantined(), ElementsAre("a"));
  EXPECT_THAT(two.run.status().fragments(0).contributed(), IsEmpty());
  EXPECT_EQ(two.run.events.Count("contribution_quarantined"), 1);
  const v1::Contribution held = two.run.store.contributions().back();
  EXPECT_TRUE(held.quarantined());
  EXPECT_GT(held.norm(), 10 * two.run.store.contributions().front().norm());
  EXPECT_THAT(two.a.sink().notices(),
              ElementsAre(AllOf(HasSubstr("the delta of worker a to round 5 of fragment 0"),
                                HasSubstr("(membership.outlier_factor): it is kept"))))
      << "whoever runs the site can do something about it";
  EXPECT_THAT(two.b.sink().notices(), IsEmpty());

  ASSERT_TRUE(two.b.Push(0, 5).ok());
  const v1::Round round = two.run.store.rounds().back();
  EXPECT_EQ(round.round(), 5);
  EXPECT_THAT(round.contributors(), ElementsAre("b"));
  EXPECT_THAT(round.weights(), ElementsAre(1.0));
  EXPECT_TRUE(two.a.Push(0, 5).ok()) << "it is held, so a repetition is welcome";
  EXPECT_TRUE(two.Quarantined(two.a, 5)) << "after the round, too";
  ASSERT_TRUE(two.a.Merge(0, 5).ok());
  ASSERT_TRUE(two.b.Merge(0, 5).ok());
  EXPECT_EQ(two.a.published(), two.b.published());
}

TEST(CoordinatorQuarantineTest, WhereAllAreOutOfLineTheRoundIsPublishedEmpty) {
  Guarded two(10);
  two.TrainUntilThereIsAHistory();
  two.a.Diverge();
  two.b.Diverge();
  ASSERT_TRUE(two.a.Push(0, 5).ok());
  ASSERT_TRUE(two.b.Push(0, 5).ok());
  EXPECT_THAT(two.run.store.rounds().back().contributors(), IsEmpty());
  EXPECT_TRUE(two.a.Merge(0, 5).ok());
}

TEST(CoordinatorQuarantineTest, TheVerdictAndItsGroundsSurviveTheCoordinator) {
  Guarded two(10);
  two.TrainUntilThereIsAHistory();
  two.a.Diverge();
  ASSERT_TRUE(two.a.Push(0, 5).ok());
  two.Restart();
  EXPECT_TRUE(two.Quarantined(two.a, 5)) << "of the open round";
  two.b.Diverge();
  ASSERT_TRUE(two.b.Push(0, 5).ok());
  EXPECT_TRUE(two.Quarantined(two.b, 5)) << "judged by norms of before the restart";
  two.run.Restart();
  EXPECT_TRUE(two.Quarantined(two.a, 5)) << "of a past round";
}

TEST(CoordinatorQuarantineTest, WithoutAGuardTheCapHoldsFromTheFirstRound) {
  Guarded two(0);
  two.a.Train();
  two.b.Train();
  two.a.Train();
  two.a.Diverge();
  ASSERT_TRUE(two.a.Push(0, 1).ok());
  EXPECT_TRUE(two.Quarantined(two.a, 1));
  ASSERT_TRUE(two.b.Push(0, 1).ok());
  EXPECT_THAT(two.run.store.rounds().back().contributors(), ElementsAre("b"));
}

v1::RejectRequest Order(const std::string& worker, int64_t round = 0, bool undo = false) {
  v1::RejectRequest order;
  order.set_worker_id(worker);
  order.set_round(round);
  order.set_undo(undo);
  order.set_reason("a test");
  return order;
}

TEST(CoordinatorQuarantineTest, ARejectedWorkerIsNeitherMergedNorWaitedForUntilTheOrderIsUndone) {
  Guarded two(0);
  two.TrainBoth(1);
  two.a.Train();
  two.b.Train();
  ASSERT_TRUE(two.a.Push(0, 1).ok());
  ASSERT_TRUE(two.run.orders().Reject(Order("a")).ok());
  EXPECT_EQ(two.run.events.Count("worker_rejected"), 1);
  EXPECT_TRUE(two.Quarantined(two.a, 1)) << "of the open round";
  EXPECT_TRUE(two.run.status().workers(0).rejected());
  ASSERT_TRUE(two.b.Push(0, 1).ok());
  EXPECT_THAT(two.run.store.rounds().back().contributors(), ElementsAre("b"));
  two.run.Restart();
  EXPECT_TRUE(two.Quarantined(two.a, 1)) << "of a past round";
  EXPECT_TRUE(two.run.status().workers(0).rejected());
  ASSERT_TRUE(two.a.Join().ok());
  ASSERT_TRUE(two.b.Join().ok());
  ASSERT_TRUE(two.a.Merge(0, 1).ok());
  ASSERT_TRUE(two.b.Merge(0, 1).ok());
  ASSERT_TRUE(two.b.Push(1, 1).ok());
  EXPECT_THAT(two.run.store.rounds().back().contributors(), ElementsAre("b")) << "not waited for";
  ASSERT_TRUE(two.a.Push(0, 2).ok());
  EXPECT_TRUE(two.Quarantined(two.a, 2));
  ASSERT_TRUE(two.run.orders().Reject(Order("a", 0, true)).ok());
  EXPECT_FALSE(two.Quarantined(two.a, 2)) << "it counts again";
  ASSERT_TRUE(two.b.Push(0, 2).ok());
  EXPECT_THAT(two.run.store.rounds().back().contributors(), ElementsAre("a", "b"));
  two.run.Restart();
  EXPECT_FALSE(two.run.status().workers(0).rejected());
}

TEST(CoordinatorQuarantineTest, OneContributionCanBeRejectedWhileItsRoundIsOpen) {
  Guarded two(0);
  two.TrainBoth(1);
  two.a.Train();
  two.b.Train();
  ASSERT_TRUE(two.a.Push(0, 1).ok());
  ASSERT_TRUE(two.run.orders().Reject(Order("a", 1)).ok());
  two.Restart();
  ASSERT_TRUE(two.b.Push(0, 1).ok());
  EXPECT_THAT(two.run.store.rounds().back().contributors(), ElementsAre("b"));
  ASSERT_TRUE(two.a.Merge(0, 1).ok());
  ASSERT_TRUE(two.b.Merge(0, 1).ok());
  ASSERT_TRUE(two.a.Push(0, 2).ok());
  ASSERT_TRUE(two.b.Push(0, 2).ok());
  EXPECT_THAT(two.run.store.rounds().back().contributors(), ElementsAre("a", "b"));
  EXPECT_THAT(two.run.orders().Reject(Order("a", 1)), StatusIs(kFailedPrecondition))
      << "what is published stays";
  EXPECT_THAT(two.run.orders().Reject(Order("nobody")), StatusIs(kNotFound));
  EXPECT_THAT(two.run.orders().Reject(Order("b", 0, true)), StatusIs(kFailedPrecondition));
}

TEST(CoordinatorQuarantineTest, WhatWouldOverflowIsLeftOutAndTheRoundMergedWithoutIt) {
  const std::string anything_goes =
      "sync { codec_up: FP32 } membership { norm_cap: 1e30 } outer { learning_rate: 10 }";
  TwoWorkers with(anything_goes);
  TwoWorkers without(anything_goes);
  for (TwoWorkers* const two : {&with, &without}) {
    two->a.Train();
    two->b.Train();
  }
  v1::PushHeader header;
  const float huge = std::numeric_limits<float>::max() / 2;
  ASSERT_EQ(with.a
                .Contribute(0, 1,
                            [&](auto& sent, auto& object) {
                              for (size_t i = 0; i + sizeof(huge) <= object.size();
                                   i += sizeof(huge)) {
                                std::memcpy(object.data() + i, &huge, sizeof(huge));
                              }
                              sent.set_object_hash(TreeHash(object));
                              header = sent;
                            })
                .status(),
            absl::OkStatus());
  ASSERT_TRUE(with.b.Push(0, 1).ok());
  ASSERT_TRUE(with.run.coordinator->Health().ok()) << with.run.coordinator->Health();
  EXPECT_THAT(with.run.store.rounds().back().contributors(), ElementsAre("b"));
  EXPECT_EQ(with.run.events.Count("contribution_quarantined"), 1);
  ASSERT_TRUE(without.run.orders().Reject(Order("a")).ok());
  ASSERT_TRUE(without.b.Push(0, 1).ok());
  EXPECT_EQ(with.run.coordinator->PublishedParameters(),
            without.run.coordinator->PublishedParameters());
  with.run.Restart();
  EXPECT_TRUE(SaysQuarantined(*with.run.coordinator, header)) << "the successor knows it, too";
}

TEST(CoordinatorQuarantineTest, WhoeverSendsWhatOverflowsLastIsToldSo) {
  TwoWorkers two("sync { codec_up: BF16 } outer { learning_rate: 10 }");
  two.a.Train();
  two.b.Train();
  ASSERT_TRUE(two.a.Push(0, 1).ok());
  const auto accepted = two.b.Contribute(0, 1, [](auto&, auto& object) {
    std::fill(object.begin(), object.end(), uint8_t{0x7f});  // The largest finite bf16.
  });
  EXPECT_TRUE(accepted.value().quarantined());
  EXPECT_THAT(two.run.store.rounds().back().contributors(), ElementsAre("a"));
}

TEST(CoordinatorQuarantineTest, ClaimedTokensCountAsFarAsTheyCanHaveBeenTrained) {
  Guarded two(0);
  two.a.Train();
  two.b.Train();
  two.a.Train();
  two.b.Train();
  for (ToyWorker* const worker : {&two.a, &two.b}) {
    const int64_t tokens = worker == &two.a ? int64_t{1} << 48 : 2 * 64;
    const auto says = [&](auto& header, auto&) { header.set_tokens(tokens); };
    ASSERT_TRUE(worker->Contribute(0, 1, says).ok());
    two.run.rounds().MergeDue(0);
  }
  EXPECT_THAT(two.run.store.rounds().back().weights(), ElementsAre(0.5, 0.5));
  EXPECT_EQ(two.run.events.Count("tokens_cut"), 1);
}

// Nobody knows what a step trains in a run of tensors: sites are held against each other there.
TEST(CoordinatorQuarantineTest, WhoLeftItsTokensAtOneIsToldWhatBecomesOfTheOthers) {
  TwoWorkers two(R"(
      tensors { tensor { name: "layers.0.weight" shape: [8, 8] }
                tensor { name: "layers.1.weight" shape: [8, 8] } }
      sync { fragments: 1 })");
  for (ToyWorker* const worker : {&two.a, &two.b}) {
    for (int step = 0; step < 6; ++step) worker->Train();
  }
  for (ToyWorker* const worker : {&two.a, &two.b}) {
    const int64_t tokens = worker == &two.a ? 6 * 4096 : 6;
    const auto says = [&](auto& header, auto&) { header.set_tokens(tokens); };
    ASSERT_TRUE(worker->Contribute(0, 1, says).ok());
    two.run.rounds().MergeDue(0);
  }
  EXPECT_EQ(two.run.events.Count("tokens_cut"), 1);
  EXPECT_THAT(two.a.sink().notices(),
              ElementsAre(AllOf(HasSubstr("stands for 24576 tokens: it counts for 48"),
                                HasSubstr("worker b says 6"))));
  EXPECT_THAT(two.b.sink().notices(), ElementsAre(HasSubstr("tokens_per_step")));
}

}  // namespace
}  // namespace causeway::server
