// Runs that are computed again from what their store kept.
#include "server/core/replay.h"

#include <string>

#include "common/params/initialize.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

class ReplayTest : public ::testing::Test {
 protected:
  ReplayTest() {
    for (ToyWorker* const worker : {&a_, &b_}) EXPECT_TRUE(worker->Enter().ok());
    for (int i = 0; i < 20; ++i) {
      for (ToyWorker* const worker : {&a_, &b_}) {
        worker->Train();
        EXPECT_TRUE(worker->SendDue().ok());
      }
      for (ToyWorker* const worker : {&a_, &b_}) EXPECT_TRUE(worker->MergeDue().ok());
    }
    recovered_ = run_.store.Recover().value().value();
    options_.store = &run_.store;
    options_.run = &recovered_;
    const FragmentPlan& plan = run_.coordinator->plan();
    options_.initial_parameters.resize(static_cast<size_t>(plan.arena_size()));
    InitializeParameters(plan, 1, options_.initial_parameters);
  }

  ToyRun run_;
  ToyWorker a_{run_, "a", 1};
  ToyWorker b_{run_, "b", 2};
  RecoveredRun recovered_;
  ReplayOptions options_;
};

TEST_F(ReplayTest, EveryRoundComesOutWithItsHashes) {
  int64_t calls = 0;
  options_.progress = [&](int64_t done, int64_t all) {
    EXPECT_EQ(done, ++calls);
    EXPECT_EQ(all, 10);
  };
  const absl::StatusOr<ReplayResult> result = Replay(options_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->rounds, 10);
  EXPECT_EQ(calls, 10);
  EXPECT_EQ(result->parameters, run_.coordinator->PublishedParameters());
}

TEST_F(ReplayTest, WithoutOneWorkerOnlyTheOthersDeltasStep) {
  options_.without = {"nobody"};
  const absl::StatusOr<ReplayResult> same = Replay(options_);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_LT(same->relative_difference, 1e-6);
  options_.without = {"a"};
  const absl::StatusOr<ReplayResult> other = Replay(options_);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_GT(other->relative_difference, 1e-4);
  options_.without = {"a", "b"};
  const absl::StatusOr<ReplayResult> nobody = Replay(options_);
  ASSERT_TRUE(nobody.ok()) << nobody.status();
  EXPECT_EQ(nobody->parameters, options_.initial_parameters) << "nothing has stepped";
}

TEST_F(ReplayTest, TheSameOptimizerBesideItselfGivesTheSameTheta) {
  options_.outer = recovered_.identity.config.outer();
  const absl::StatusOr<ReplayResult> same = Replay(options_);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->relative_difference, 0);
  options_.outer->set_learning_rate(0.1);
  const absl::StatusOr<ReplayResult> slower = Replay(options_);
  ASSERT_TRUE(slower.ok()) << slower.status();
  EXPECT_GT(slower->relative_difference, 0);
  EXPECT_NE(slower->parameters, same->parameters);
}

TEST_F(ReplayTest, ARoundThatComesOutOtherwiseIsNamed) {
  recovered_.rounds[4].published_hash ^= 1;
  const absl::Status status = Replay(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              HasSubstr(absl::StrCat("version ", recovered_.rounds[4].round, " of fragment ",
                                     recovered_.rounds[4].fragment)));
}

TEST_F(ReplayTest, OtherInitialValuesAreNoticed) {
  options_.initial_parameters[0] += 1;
  EXPECT_EQ(Replay(options_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ReplayTest, AMissingDeltaSaysHowToKeepThem) {
  recovered_.rounds[0].contributors[0] = "nobody";
  const absl::Status status = Replay(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("--retain_deltas"));
}

TEST_F(ReplayTest, AnOptimizerForGradientsIsRefused) {
  options_.outer = recovered_.identity.config.outer();
  options_.outer->set_optimizer(v1::OuterConfig::ADAMW);
  EXPECT_EQ(Replay(options_).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace causeway::server
