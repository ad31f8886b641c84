// Runs that are computed again from what their store kept.
#include "server/core/replay.h"

#include "gmock/gmock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

// `run` and `recovered` outlive what is returned.
ReplayOptions OptionsOf(ToyRun& run, const RecoveredRun& recovered) {
  ReplayOptions options;
  options.store = &run.store;
  options.run = &recovered;
  options.initial_parameters = InitialOf(run.coordinator->plan(), 1);
  return options;
}

class ReplayTest : public ::testing::Test {
 protected:
  ReplayTest() {
    two_.TrainBoth(20);
    recovered_ = two_.run.store.Recover().value().value();
    options_ = OptionsOf(two_.run, recovered_);
  }

  TwoWorkers two_{"sync { codec_up: LM2 codec_down: LM2 error_feedback: true }"};
  RecoveredRun recovered_;
  ReplayOptions options_;
};

TEST_F(ReplayTest, EveryRoundComesOutWithItsHashes) {
  int64_t calls = 0;
  options_.progress = [&](int64_t done, int64_t all) {
    EXPECT_EQ(done, ++calls);
    EXPECT_EQ(all, 10);
  };
  const auto result = Replay(options_).value();
  EXPECT_EQ(result.rounds, 10);
  EXPECT_EQ(calls, 10);
  EXPECT_EQ(result.parameters, two_.run.coordinator->PublishedParameters());
}

TEST_F(ReplayTest, WithoutOneWorkerOnlyTheOthersDeltasStep) {
  options_.without = {"nobody"};
  const auto same = Replay(options_).value();
  EXPECT_LT(same.relative_difference, 1e-6);
  options_.without = {"a"};
  const auto other = Replay(options_).value();
  EXPECT_GT(other.relative_difference, 1e-4);
  options_.without = {"a", "b"};
  const auto nobody = Replay(options_).value();
  EXPECT_EQ(nobody.parameters, options_.initial_parameters) << "nothing has stepped";
}

TEST_F(ReplayTest, TheSameOptimizerBesideItselfGivesTheSameTheta) {
  options_.outer = recovered_.identity.config().outer();
  const auto same = Replay(options_).value();
  EXPECT_EQ(same.relative_difference, 0);
  options_.outer->set_learning_rate(0.1);
  const auto slower = Replay(options_).value();
  EXPECT_GT(slower.relative_difference, 0);
  EXPECT_NE(slower.parameters, same.parameters);
}

// Five sites, one of them four times as long as the others. What a successor of the coordinator and
// a replay make of the deltas is what the run made of them.
TEST(ReplayOfRobustMerges, ClippingAndTrimmingComeOutAgain) {
  ToyRun run(R"(
      outer { merge: TRIMMED_MEAN clip_factor: 1 } membership { start_workers: 5 max_workers: 5 })");
  std::vector<std::unique_ptr<ToyWorker>> workers;
  for (const char* const id : {"a", "b", "c", "d", "e"}) {
    workers.push_back(std::make_unique<ToyWorker>(run, id, workers.size() + 1));
    ASSERT_TRUE(workers.back()->Enter().ok());
  }
  for (int i = 0; i < 20; ++i) {
    for (const auto& worker : workers) {
      worker->Train(worker == workers[2] ? 4 : 1);
      ASSERT_TRUE(worker->SendDue().ok());
    }
    for (const auto& worker : workers) ASSERT_TRUE(worker->MergeDue().ok());
  }
  const std::vector<float> published = run.coordinator->PublishedParameters();
  run.Restart();
  EXPECT_EQ(run.coordinator->PublishedParameters(), published);

  const RecoveredRun recovered = run.store.Recover().value().value();
  ReplayOptions options = OptionsOf(run, recovered);
  const auto replayed = Replay(options).value();
  EXPECT_EQ(replayed.parameters, published);

  options.outer = recovered.identity.config().outer();
  const auto same = Replay(options).value();
  EXPECT_EQ(same.relative_difference, 0);
  options.outer->set_merge(v1::OuterConfig::MEAN);
  const auto untrimmed = Replay(options).value();
  EXPECT_GT(untrimmed.relative_difference, 0);
  options.outer->set_clip_factor(0);
  const auto unclipped = Replay(options).value();
  EXPECT_GT(unclipped.relative_difference, untrimmed.relative_difference);
  // Four are left, which are not trimmed.
  options.outer.reset();
  options.without = {"c"};
  const auto without = Replay(options).value();
  EXPECT_GT(without.relative_difference, 0);
}

TEST_F(ReplayTest, WhatCannotBeComputedAgainIsNamed) {
  const auto refused = [this](auto change, auto code, const std::string& words = "") {
    RecoveredRun run = recovered_;
    ReplayOptions options = options_;
    options.run = &run;
    change(run, options);
    EXPECT_THAT(Replay(options), StatusIs(code, HasSubstr(words)));
  };
  const v1::Round& fifth = recovered_.rounds[4];
  refused([&](auto& run, auto&) { run.rounds[4].set_published_hash(fifth.published_hash() ^ 1); },
          kDataLoss, absl::StrCat("version ", fifth.round(), " of fragment ", fifth.fragment()));
  refused([](auto&, auto& options) { options.initial_parameters[0] += 1; }, kDataLoss);
  refused([](auto& run, auto&) { run.rounds[0].set_contributors(0, "nobody"); }, kNotFound,
          "--retain_deltas");
  refused(
      [](auto& run, auto& options) {
        options.outer = run.identity.config().outer();
        options.outer->set_optimizer(v1::OuterConfig::ADAMW);
      },
      kInvalidArgument);
}

}  // namespace
}  // namespace causeway::server
