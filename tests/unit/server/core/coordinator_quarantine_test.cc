// The guard against contributions that are out of line.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct TwoWorkers {
  explicit TwoWorkers(double outlier_factor)
      : run([&](v1::RunConfig& config) {
          config.mutable_membership()->set_outlier_factor(outlier_factor);
        }) {
    EXPECT_TRUE(a.Enter().ok());
    EXPECT_TRUE(b.Enter().ok());
  }
  void TrainBoth(int steps) {
    for (int i = 0; i < steps; ++i) {
      for (ToyWorker* const worker : {&a, &b}) {
        worker->Train();
        ASSERT_TRUE(worker->SendDue().ok());
      }
      for (ToyWorker* const worker : {&a, &b}) ASSERT_TRUE(worker->MergeDue().ok());
    }
  }
  // Four rounds of fragment 0, after steps 2, 8, 14 and 20, make eight norms; then comes step 26.
  void TrainUntilThereIsAHistory() {
    TrainBoth(25);
    a.Train();
    b.Train();
  }
  bool Quarantined(const ToyWorker& worker, int64_t round) {
    std::vector<uint8_t> object;
    v1::PushHeader header = worker.MakePush(0, round, object);
    return run.coordinator->IsQuarantined(header);
  }

  ToyRun run;
  ToyWorker a{run, "a", 1};
  ToyWorker b{run, "b", 2};
};

TEST(CoordinatorQuarantineTest, AnOutlierIsHeldButNotMergedAndNobodyWaitsForIt) {
  TwoWorkers two(10);
  two.TrainUntilThereIsAHistory();
  two.a.Diverge();
  ASSERT_TRUE(two.a.Push(0, 5).ok());
  EXPECT_TRUE(two.Quarantined(two.a, 5));
  EXPECT_FALSE(two.Quarantined(two.a, 4));
  EXPECT_THAT(two.run.coordinator->GetStatus().fragments(0).quarantined(), ElementsAre("a"));
  EXPECT_THAT(two.run.coordinator->GetStatus().fragments(0).contributed(), IsEmpty());
  EXPECT_EQ(two.run.events.Count("contribution_quarantined"), 1);
  const ContributionRecord held = two.run.store.contributions().back();
  EXPECT_TRUE(held.quarantined);
  EXPECT_GT(held.norm, 10 * two.run.store.contributions().front().norm);

  ASSERT_TRUE(two.b.Push(0, 5).ok());
  const RoundRecord round = two.run.store.rounds().back();
  EXPECT_EQ(round.round, 5);
  EXPECT_THAT(round.contributors, ElementsAre("b"));
  EXPECT_THAT(round.weights, ElementsAre(1.0));
  EXPECT_TRUE(two.a.Push(0, 5).ok()) << "it is held, so a repetition is welcome";
  EXPECT_TRUE(two.Quarantined(two.a, 5)) << "after the round, too";
  ASSERT_TRUE(two.a.Merge(0, 5).ok());
  ASSERT_TRUE(two.b.Merge(0, 5).ok());
  EXPECT_EQ(two.a.published(), two.b.published());
}

TEST(CoordinatorQuarantineTest, WhereAllAreOutOfLineTheRoundIsPublishedEmpty) {
  TwoWorkers two(10);
  two.TrainUntilThereIsAHistory();
  two.a.Diverge();
  two.b.Diverge();
  ASSERT_TRUE(two.a.Push(0, 5).ok());
  ASSERT_TRUE(two.b.Push(0, 5).ok());
  EXPECT_THAT(two.run.store.rounds().back().contributors, IsEmpty());
  EXPECT_TRUE(two.a.Merge(0, 5).ok());
}

TEST(CoordinatorQuarantineTest, TheVerdictAndItsGroundsSurviveTheCoordinator) {
  TwoWorkers two(10);
  two.TrainUntilThereIsAHistory();
  two.a.Diverge();
  ASSERT_TRUE(two.a.Push(0, 5).ok());
  two.run.Restart();
  ASSERT_TRUE(two.a.Join().ok());
  ASSERT_TRUE(two.b.Join().ok());
  EXPECT_TRUE(two.Quarantined(two.a, 5)) << "of the open round";
  two.b.Diverge();
  ASSERT_TRUE(two.b.Push(0, 5).ok());
  EXPECT_TRUE(two.Quarantined(two.b, 5)) << "judged by norms of before the restart";
  two.run.Restart();
  EXPECT_TRUE(two.Quarantined(two.a, 5)) << "of a past round";
}

TEST(CoordinatorQuarantineTest, WithoutAGuardNothingIsJudged) {
  TwoWorkers two(0);
  two.TrainUntilThereIsAHistory();
  two.a.Diverge();
  ASSERT_TRUE(two.a.Push(0, 5).ok());
  EXPECT_FALSE(two.Quarantined(two.a, 5));
  EXPECT_EQ(two.run.store.contributions().back().norm, 0);
}

TEST(CoordinatorQuarantineTest, TheGuardDoesNotChangeAnHonestRun) {
  TwoWorkers guarded(3);
  TwoWorkers free(0);
  guarded.TrainBoth(40);
  free.TrainBoth(40);
  EXPECT_EQ(guarded.run.events.Count("contribution_quarantined"), 0);
  EXPECT_EQ(guarded.run.coordinator->PublishedParameters(),
            free.run.coordinator->PublishedParameters());
}

}  // namespace
}  // namespace causeway::server
