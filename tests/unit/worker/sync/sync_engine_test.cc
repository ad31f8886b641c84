#include "worker/sync/sync_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <limits>
#include <thread>

#include "tests/unit/common/base/status_is.h"
#include "tests/unit/worker/sync/engine_site.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SyncEngineTest, StartsFromThePublishedState) {
  Site site("fragments: 2 steps_between_syncs: 6");
  EXPECT_EQ(site.engine_->Fetch(0).value(), 0);
  EXPECT_EQ(site.local_, site.initial_);
  EXPECT_TRUE(std::ranges::equal(site.engine_->published().value(), site.initial_));
  EXPECT_TRUE(site.exchange_->HasApplied({0, 0}));
}

TEST(SyncEngineTest, MergesTauStepsAfterSending) {
  StartedSite site("fragments: 2 steps_between_syncs: 6 overlap_steps: 2");
  site.Run(1, 13);
  // Three fragments: offsets 2, 4, 6.
  EXPECT_THAT(site.merges_,
              ElementsAre(Site::Merge{4, {0, 1}}, Site::Merge{6, {1, 1}}, Site::Merge{8, {2, 1}},
                          Site::Merge{10, {0, 2}}, Site::Merge{12, {1, 2}}));
  EXPECT_EQ(site.engine_->version(0), 2);
}

TEST(SyncEngineTest, AJoinerKeepsWhatItTrainedSinceItJoined) {
  // It comes at step 5; the others sent round 1 after step 4 and merge it after step 7.
  Site site("fragments: 1 steps_between_syncs: 4 overlap_steps: 3 keep_in_flight: 1");
  ASSERT_EQ(site.engine_->Fetch(5).value(), 5);
  const std::vector<float> fetched = site.local_;
  site.exchange_->PublishFromElsewhere({0, 1}, 0.5F);
  site.Run(6, 6);
  std::vector<float> expected = site.local_;
  Site::Move(7, expected);
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = static_cast<float>(double{site.exchange_->published()[i]} +
                                     (double{expected[i]} - double{fetched[i]}));
  }
  ASSERT_TRUE(site.Step(7).ok());
  EXPECT_EQ(site.local_, expected);
}

TEST(SyncEngineTest, SeveralFragmentsFlyAtOnceAndTrainingDoesNotWaitForThem) {
  // Four fragments, one sent every two steps, each merged five steps later.
  StartedSite site("fragments: 3 steps_between_syncs: 8 overlap_steps: 5");
  for (const int fragment : {0, 1, 2}) site.exchange_->Hold({fragment, 1});
  site.Run(1, 6);  // Sends 0, 1 and 2; the first merge is due after step 7.
  for (const int fragment : {0, 1, 2}) site.exchange_->AwaitPush({fragment, 1});
  EXPECT_EQ(site.exchange_->pushes().size(), 3u);
  EXPECT_TRUE(site.merges_.empty());
  site.exchange_->Release({0, 1});
  site.Run(7, 7);
  EXPECT_THAT(site.merges_, ElementsAre(Site::Merge{7, {0, 1}}));
}

TEST(SyncEngineTest, ADueAnswerIsWaitedFor) {
  StartedSite site("fragments: 1 steps_between_syncs: 2 overlap_steps: 1");
  site.exchange_->Hold({0, 1});
  site.Run(1, 2);
  std::atomic<bool> returned = false;
  std::thread trainer([&] {
    EXPECT_TRUE(site.Step(3).ok());
    returned = true;
  });
  site.exchange_->AwaitPush({0, 1});
  EXPECT_FALSE(returned);
  site.clock_.Advance(absl::Seconds(5));
  site.exchange_->Release({0, 1});
  trainer.join();
  EXPECT_THAT(site.merges_, ElementsAre(Site::Merge{3, {0, 1}}));
}

TEST(SyncEngineTest, ADeltaThatMissedItsRoundTravelsWithTheNext) {
  StartedSite site("fragments: 1 steps_between_syncs: 3 codec_up: FP32");
  site.exchange_->CloseWithout({0, 1});
  site.Run(1, 2);
  std::vector<float> at_send = site.local_;
  Site::Move(3, at_send);
  site.Run(3, 3);
  EXPECT_THAT(site.late_, ElementsAre(SyncEvent{0, 1}));
  EXPECT_EQ(site.local_, site.initial_);  // The round moved nothing, and alpha is 0.
  std::vector<float> second = site.initial_;
  for (int64_t step = 4; step <= 6; ++step) Site::Move(step, second);
  site.Run(4, 6);
  const std::vector<double> delta = site.exchange_->delta({0, 2});
  for (size_t i = 0; i < delta.size(); ++i) {
    const double both =
        (double{site.initial_[i]} - at_send[i]) + (double{site.initial_[i]} - second[i]);
    ASSERT_NEAR(delta[i], both, 1e-6) << i;
  }
  EXPECT_EQ(site.exchange_->pushes()[1].tokens, 60);
  EXPECT_EQ(site.engine_->rounds_late(), 1);
}

// A worker that was killed and continues from an older checkpoint may train a little differently.
TEST(SyncEngineTest, WhatWasContributedBeforeARestartStandsAndIsNotSentTwice) {
  StartedSite site("fragments: 1 steps_between_syncs: 3 codec_up: FP32");
  site.exchange_->ContributedBefore({0, 1});
  site.Run(1, 3);
  EXPECT_THAT(site.merges_, ElementsAre(Site::Merge{3, {0, 1}}));
  EXPECT_TRUE(site.late_.empty());
  EXPECT_TRUE(site.engine_->Save().value().residual.empty());
  site.Run(4, 6);
  EXPECT_EQ(site.exchange_->pushes()[1].tokens, 30);
}

TEST(SyncEngineTest, AnAnswerThatIsGoneIsReplacedByTheState) {
  StartedSite site("fragments: 1 steps_between_syncs: 3");
  site.exchange_->Forget({0, 1});
  site.Run(1, 3);
  EXPECT_TRUE(std::ranges::equal(site.engine_->published().value(), site.exchange_->published()));
  EXPECT_EQ(site.engine_->version(0), 1);
}

TEST(SyncEngineTest, ACopyThatDivergesEndsTheTrainingBeforeTheNextStepCounts) {
  for (const bool saves : {false, true}) {
    StartedSite site("fragments: 1 steps_between_syncs: 3");
    site.exchange_->Corrupt({0, 1});
    site.Run(1, 3);
    if (saves) {
      EXPECT_THAT(site.engine_->Save(), StatusIs(kDataLoss)) << "no checkpoint is written of it";
    } else {
      EXPECT_THAT(site.Step(4), StatusIs(kDataLoss, HasSubstr("round 1 of fragment 0")));
    }
    EXPECT_FALSE(site.exchange_->HasApplied({0, 1}));
  }
}

TEST(SyncEngineTest, AWeightThatIsNotFiniteIsNeverSent) {
  StartedSite site("fragments: 1 steps_between_syncs: 2 codec_up: INT4");
  site.Run(1, 1);
  site.local_[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(site.Step(2), StatusIs(kInvalidArgument, HasSubstr("round 1 of fragment 0")));
  EXPECT_TRUE(site.exchange_->pushes().empty());
}

class SavedInFlight : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(MergeRules, SavedInFlight,
                         ::testing::Values("mixing: 0.5", "keep_in_flight: 0.8"));

TEST_P(SavedInFlight, ContinuesBitForBit) {
  const std::string sync = std::string(GetParam()) +
                           " fragments: 2 steps_between_syncs: 6 overlap_steps: 3 codec_up: INT4 "
                           "codec_down: E3M0 error_feedback: true";
  StartedSite whole(sync, 0.7F);
  whole.Run(1, 30);
  ASSERT_TRUE(whole.engine_->Drain().ok());

  for (const int64_t stop : {1, 2, 3, 4, 5, 8, 11, 13}) {
    StartedSite first(sync, 0.7F);
    first.Run(1, stop);
    Site second(sync, 0.7F);
    second.Continue(first, stop, [](FakeExchange&) {});
    second.Run(stop + 1, 30);
    ASSERT_TRUE(second.engine_->Drain().ok());
    EXPECT_EQ(second.local_, whole.local_) << "stopped after step " << stop;
    EXPECT_TRUE(std::ranges::equal(second.engine_->published().value(),
                                   whole.engine_->published().value()));
  }
}

// A slow worker's inner step covers several steps of the schedule.
TEST(SyncEngineTest, AnInnerStepThatCoversSeveralStepsSendsAndMergesAllThatLiesBetween) {
  // Fragments are sent after steps 2, 4, 6, 8 and so on, and merged two steps later.
  StartedSite site("fragments: 2 steps_between_syncs: 6 overlap_steps: 2", 1, /*max_advance=*/3);
  for (const int64_t step : {3, 6, 9, 12}) ASSERT_TRUE(site.Step(step).ok());
  EXPECT_THAT(site.merges_,
              ElementsAre(Site::Merge{6, {0, 1}}, Site::Merge{6, {1, 1}}, Site::Merge{9, {2, 1}},
                          Site::Merge{12, {0, 2}}, Site::Merge{12, {1, 2}}));
  std::map<FakeExchange::Key, int64_t> tokens;
  for (const auto& push : site.exchange_->pushes()) tokens[push.key] = push.tokens;
  EXPECT_EQ(tokens.at({0, 1}), 10) << "what was trained, not what the schedule passed";
  EXPECT_EQ(tokens.at({1, 1}), 20);
  EXPECT_EQ(tokens.at({0, 2}), 20);
}

TEST(SyncEngineTest, AllThatIsDueIsSentBeforeAnythingIsWaitedFor) {
  // Fragment 0 is sent after step 2 and merged after step 3, fragment 1 is sent after step 4.
  StartedSite site("fragments: 2 pattern: BALANCED steps_between_syncs: 4 overlap_steps: 1", 1,
                   /*max_advance=*/3);
  ASSERT_TRUE(site.Step(1).ok());
  site.exchange_->Hold({0, 1});
  std::thread trainer([&] { EXPECT_TRUE(site.Step(4).ok()); });
  EXPECT_EQ(site.exchange_->AwaitPushes(2).size(), 2u);
  site.exchange_->Release({0, 1});
  trainer.join();
  EXPECT_THAT(site.merges_, ElementsAre(Site::Merge{4, {0, 1}}));
}

TEST(SyncEngineTest, AnInnerStepThatCoversTooMuchIsAnError) {
  StartedSite site("fragments: 1 steps_between_syncs: 6", 1, /*max_advance=*/2);
  EXPECT_THAT(site.Step(3), StatusIs(kInternal));
  EXPECT_THAT(site.Step(3), StatusIs(kInternal)) << "and none that covers nothing";
}

TEST(SyncEngineTest, AWorkerContinuesBitForBitWhereverItWasInterruptedWhileItWaited) {
  const std::string sync =
      "fragments: 2 steps_between_syncs: 8 overlap_steps: 3 mixing: 0.5 codec_up: INT4 "
      "codec_down: E3M0 error_feedback: true";
  for (const int stride : {1, 3}) {  // A slower worker has another pace.
    const auto walk = [&](Site& site, int64_t from, int64_t to) {
      for (int64_t step = from; step <= to; step += stride) {
        ASSERT_EQ(site.Step(step), absl::OkStatus());
      }
    };
    StartedSite whole(sync, 0.7F, stride);
    walk(whole, stride, 30);
    ASSERT_FALSE(whole.merges_.empty());

    for (const Site::Merge& merge : whole.merges_) {
      StartedSite first(sync, 0.7F, stride);
      const FakeExchange::Key key(merge.event.fragment, merge.event.round);
      first.exchange_->Hold(key);
      walk(first, stride, merge.step - stride);
      std::thread interrupter([&] {
        first.exchange_->AwaitPush(key);
        first.exchange_->Cancel();
      });
      EXPECT_THAT(first.Step(merge.step), StatusIs(kCancelled));
      interrupter.join();
      EXPECT_EQ(first.engine_->Save()->fragments[static_cast<size_t>(key.first)].round_in_flight,
                key.second);
      Site second(sync, 0.7F, stride);
      second.Continue(first, merge.step, [&](FakeExchange& exchange) { exchange.Release(key); });
      walk(second, merge.step + stride, 30);
      EXPECT_EQ(second.local_, whole.local_)
          << "interrupted before a merge of step " << merge.step << ", stride " << stride;
    }
  }
}

TEST(SyncEngineTest, AStateOfAnotherPlanIsRefused) {
  Site site("fragments: 2 steps_between_syncs: 6");
  SyncEngine::State state = site.engine_->Save().value();
  state.published.pop_back();
  EXPECT_THAT(site.engine_->Restore(std::move(state), 0), StatusIs(kInvalidArgument));
}

TEST(SyncEngineTest, AStateThatContradictsItselfIsRefused) {
  using State = SyncEngine::State;
  const auto refused = [](const std::function<void(State&)>& change, const std::string& saying) {
    // Round 2 was sent after step 8 and is merged after step 10.
    StartedSite site("fragments: 1 steps_between_syncs: 4 overlap_steps: 2 codec_up: INT4");
    site.Run(1, 9);
    State state = site.engine_->Save().value();
    ASSERT_EQ(state.fragments[0].round_in_flight, 2);
    change(state);
    Site other("fragments: 1 steps_between_syncs: 4 overlap_steps: 2 codec_up: INT4");
    EXPECT_THAT(other.engine_->Restore(std::move(state), 9),
                StatusIs(kInvalidArgument, HasSubstr(saying)))
        << saying;
    EXPECT_TRUE(other.exchange_->pushes().empty());
  };
  const int64_t huge = std::numeric_limits<int64_t>::max();
  refused([](State& state) { state.fragments[0].version = -1; }, "version");
  refused([&](State& state) { state.fragments[0].version = huge; }, "version");
  refused([](State& state) { state.fragments[0].version = 0; }, "round");
  refused([](State& state) { state.fragments[0].round_in_flight = 1; }, "round");
  refused([&](State& state) { state.fragments[0].round_in_flight = huge; }, "round");
  refused([](State& state) { state.fragments[0].round_in_flight = -2; }, "round");
  refused([](State& state) { state.fragments[0].round_in_flight = 0; }, "round");
  refused([](State& state) { state.fragments[0].tokens = -1; }, "tokens");
  refused([](State& state) { state.fragments[0].tokens_in_flight = -1; }, "tokens");
  refused([](State& state) { state.fragments[0].object_in_flight.pop_back(); }, "bytes");
  refused([](State& state) { state.residual.resize(3); }, "residual");
}

// All threads may wait for answers that need another worker's pushes, which wait for the same.
TEST(SyncEngineTest, TransfersThatStartAgainKeepTheOrderInWhichTheyWereSent) {
  const std::string sync =
      "fragments: 40 pattern: BALANCED steps_between_syncs: 40 overlap_steps: 30";
  StartedSite first(sync);
  first.Run(1, 55);  // Fragments 25 .. 39 and then 0 .. 14 are in flight.
  Site second(sync);
  second.Continue(first, 55, [](FakeExchange& exchange) {
    for (int i = 0; i < 40; ++i) exchange.Hold({i, i < 15 ? 2 : 1});
  });
  const auto pushes = second.exchange_->AwaitPushes(16);
  ASSERT_EQ(pushes.size(), 16) << "as many as there are threads";
  for (const auto& push : pushes) {
    EXPECT_THAT(push.key.first, ::testing::AnyOf(0, ::testing::Ge(25))) << push.key.first;
  }
}

TEST(SyncEngineTest, ALateGradientIsDroppedTogetherWithItsTokens) {
  StartedSite site("contribution: GRADIENT steps_between_syncs: 1", 0.5F);
  site.exchange_->CloseWithout({0, 1});
  site.Run(1, 2);
  EXPECT_EQ(site.engine_->rounds_late(), 1);
  ASSERT_EQ(site.exchange_->pushes().size(), 2);
  EXPECT_EQ(site.exchange_->pushes()[1].tokens, 10);
}

TEST(SyncEngineTest, GradientsAreSentAsTheyAreAndTheAnswerReplacesTheWeights) {
  StartedSite site("contribution: GRADIENT steps_between_syncs: 1", 0.5F);
  site.Run(1, 1);
  const std::vector<double> delta = site.exchange_->delta({0, 1});
  for (size_t i = 0; i < delta.size(); ++i) ASSERT_EQ(delta[i], 0.5 * site.gradients_[i]);
  EXPECT_EQ(site.local_, site.exchange_->published());
}

}  // namespace
}  // namespace causeway::worker
