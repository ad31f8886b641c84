// An overlap that gives way: answers that are late, and who waits for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/params/sync_schedule.h"
#include "tests/unit/worker/sync/engine_site.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;

// Tau 2, and up to 6 steps where the answer is not there.
constexpr char kElastic[] =
    "fragments: 1 steps_between_syncs: 8 overlap_steps: 2 max_overlap_steps: 6";

// Until no answer in flight is late, or so many are.
void AwaitLate(const Site& site, int late) {
  while (site.engine_->slack().late != late) std::this_thread::yield();
}

TEST(ElasticOverlapTest, ALateAnswerIsMergedAfterTheFirstStepAtWhichItIsThere) {
  StartedSite site(kElastic);
  site.exchange_->Hold({0, 1});
  site.Run(1, 9);
  EXPECT_EQ(site.engine_->slack().late, 0);
  EXPECT_EQ(site.engine_->slack().steps, 5);
  site.Run(10, 11);
  EXPECT_EQ(site.engine_->slack().late, 1);
  EXPECT_EQ(site.engine_->slack().steps, 3);
  EXPECT_TRUE(site.merges_.empty());
  site.exchange_->Release({0, 1});
  AwaitLate(site, 0);
  EXPECT_EQ(site.engine_->slack().awaited, 0);
  EXPECT_EQ(site.engine_->slack().steps, 11) << "sent after step 16, waited for after step 22";
  site.Run(12, 12);
  EXPECT_THAT(site.merges_, ElementsAre(Site::Merge{12, {0, 1}}));
  EXPECT_EQ(site.engine_->blocked(), absl::ZeroDuration());
}

TEST(ElasticOverlapTest, AnAnswerThatIsThereInTimeIsMergedTauStepsAfterTheSend) {
  StartedSite site(kElastic);
  site.Run(1, 8);
  while (site.engine_->slack().awaited > 0) std::this_thread::yield();
  site.Run(9, 11);
  EXPECT_THAT(site.merges_, ElementsAre(Site::Merge{10, {0, 1}}));
}

TEST(ElasticOverlapTest, OnlyTheLastStepWaits) {
  StartedSite site(kElastic);
  site.exchange_->Hold({0, 1});
  site.Run(1, 13);
  EXPECT_EQ(site.engine_->slack().steps, 1);
  site.when_it_waits_ = [&] { site.exchange_->Release({0, 1}); };
  ASSERT_TRUE(site.Step(14).ok());
  EXPECT_THAT(site.merges_, ElementsAre(Site::Merge{14, {0, 1}}));
  EXPECT_THAT(site.waits_, ElementsAre(SyncEvent{0, 1}, std::nullopt));
}

TEST(ElasticOverlapTest, SeveralLateAnswersAreMergedInTheOrderOfTheirArrival) {
  // Sent after steps 2, 4, 6, 8.
  StartedSite site("fragments: 3 steps_between_syncs: 8 overlap_steps: 1 max_overlap_steps: 7");
  for (const int fragment : {0, 1, 2}) site.exchange_->Hold({fragment, 1});
  site.Run(1, 7);
  EXPECT_EQ(site.engine_->slack().late, 3);
  site.exchange_->Release({2, 1});
  AwaitLate(site, 2);
  site.exchange_->Release({0, 1});
  AwaitLate(site, 1);
  site.exchange_->Release({1, 1});
  AwaitLate(site, 0);
  EXPECT_THAT(site.engine_->FragmentsTouchedBy(8), ElementsAre(0, 1, 2, 3)) << "3 is sent";
  site.Run(8, 8);
  EXPECT_THAT(site.merges_,
              ElementsAre(Site::Merge{8, {2, 1}}, Site::Merge{8, {0, 1}}, Site::Merge{8, {1, 1}}));
}

TEST(ElasticOverlapTest, WhatAStepMergesIsCertainOnceItWasAsked) {
  StartedSite site(kElastic);
  site.exchange_->Hold({0, 1});
  EXPECT_THAT(site.engine_->FragmentsTouchedBy(1), ElementsAre());
  site.Run(1, 7);
  EXPECT_THAT(site.engine_->FragmentsTouchedBy(8), ElementsAre(0));
  site.Run(8, 11);
  EXPECT_THAT(site.engine_->FragmentsTouchedBy(12), ElementsAre());
  site.exchange_->Release({0, 1});
  AwaitLate(site, 0);
  EXPECT_THAT(site.engine_->FragmentsTouchedBy(12), ElementsAre());
  site.Run(12, 12);
  EXPECT_TRUE(site.merges_.empty());
  EXPECT_THAT(site.engine_->FragmentsTouchedBy(13), ElementsAre(0));
  site.Run(13, 13);
  EXPECT_THAT(site.merges_, ElementsAre(Site::Merge{13, {0, 1}}));
}

TEST(ElasticOverlapTest, WhatAStepTouchesWithoutSlackFollowsFromTheSchedule) {
  // Sent after steps 2, 4, 6 and so on, merged after the third step from there.
  StartedSite site("fragments: 2 steps_between_syncs: 6 overlap_steps: 3", 1, /*max_advance=*/3);
  EXPECT_THAT(site.engine_->FragmentsTouchedBy(1), ElementsAre());
  EXPECT_THAT(site.engine_->FragmentsTouchedBy(3), ElementsAre(0));
  ASSERT_TRUE(site.Step(3).ok());
  EXPECT_THAT(site.engine_->FragmentsTouchedBy(4), ElementsAre(1));
  EXPECT_THAT(site.engine_->FragmentsTouchedBy(6), ElementsAre(0, 1, 2));
}

// How late each answer is follows from nothing but this.
int64_t Lateness(int fragment, int64_t round) { return 1 + (3 * fragment + 5 * round) % 6; }

TEST(ElasticOverlapTest, ARunIsRepeatedFromTheRecordOfItsMergesBitForBit) {
  const std::string sync =
      "fragments: 3 steps_between_syncs: 8 overlap_steps: 1 max_overlap_steps: 7 codec_up: INT4 "
      "codec_down: E3M0 error_feedback: true keep_in_flight: 0.9";
  StartedSite first(sync, 0.7F);
  for (int fragment = 0; fragment < 4; ++fragment) {
    for (int64_t round = 1; round <= 5; ++round) first.exchange_->Hold({fragment, round});
  }
  const SyncSchedule schedule(4, 8, 1);
  constexpr int64_t kSteps = 30;
  std::vector<SyncEngine::State> states;
  std::vector<std::vector<float>> locals;
  for (int64_t step = 1; step <= kSteps; ++step) {
    for (int fragment = 0; fragment < 4; ++fragment) {
      const int64_t round = schedule.RoundsSentBy(fragment, step);
      if (round == 0 || first.engine_->version(fragment) >= round) continue;
      if (schedule.MergeStep(fragment, round) + Lateness(fragment, round) != step) continue;
      const int late = first.engine_->slack().late;
      first.exchange_->Release({fragment, round});
      AwaitLate(first, late - 1);
    }
    ASSERT_TRUE(first.Step(step).ok());
    states.push_back(first.engine_->Save().value());
    locals.push_back(first.local_);
  }
  for (int fragment = 0; fragment < 4; ++fragment) {
    for (int64_t round = 1; round <= 5; ++round) first.exchange_->Release({fragment, round});
  }
  ASSERT_TRUE(first.engine_->Drain().ok());  // All of it is in the record.
  std::vector<RecordedMerge> record;
  for (const Site::Merge& merge : first.merges_) record.push_back({merge.step, merge.event});
  ASSERT_GE(record.size(), 10u);

  Site second(sync, 0.7F);
  second.recorded_ = record;
  second.MakeEngine();
  ASSERT_TRUE(second.engine_->Fetch(0).ok());
  second.Run(1, kSteps);
  ASSERT_TRUE(second.engine_->Drain().ok());
  EXPECT_EQ(second.local_, first.local_);
  for (std::vector<Site::Merge>* const merges : {&first.merges_, &second.merges_}) {
    std::ranges::sort(*merges, {},
                      [](const auto& m) { return std::pair(m.step, m.event.fragment); });
  }
  EXPECT_EQ(second.merges_, first.merges_);

  // And so is what a worker did since its checkpoint.
  for (const int64_t stop : {3, 9, 14, 20}) {
    Site third(sync, 0.7F);
    third.recorded_ = record;
    third.MakeEngine();
    ASSERT_TRUE(third.engine_->Fetch(0).ok());
    third.Run(1, stop);
    SyncEngine::State state = third.engine_->Save().value();
    for (size_t i = 0; i < state.fragments.size(); ++i) {
      EXPECT_EQ(state.fragments[i].round_in_flight,
                states[static_cast<size_t>(stop - 1)].fragments[i].round_in_flight);
    }
    third.MakeEngine();
    ASSERT_TRUE(third.engine_->Restore(std::move(state), stop).ok());
    third.Run(stop + 1, kSteps);
    ASSERT_TRUE(third.engine_->Drain().ok());
    EXPECT_EQ(third.local_, first.local_) << "stopped after step " << stop;
  }
}

// The former process may have sent later steps before it merged: its record would say if it had.
TEST(ElasticOverlapTest, ARestoredWorkerMergesNoUnrecordedRoundEarly) {
  StartedSite site(kElastic);
  site.exchange_->Hold({0, 1});
  site.Run(1, 9);
  SyncEngine::State state = site.engine_->Save().value();
  site.MakeEngine();
  site.exchange_->Release({0, 1});
  ASSERT_TRUE(site.engine_->Restore(std::move(state), 9).ok());
  while (site.engine_->slack().awaited > 0) std::this_thread::yield();
  site.Run(10, 13);
  EXPECT_TRUE(site.merges_.empty());
  site.Run(14, 14);
  EXPECT_THAT(site.merges_, ElementsAre(Site::Merge{14, {0, 1}}));
}

TEST(ElasticOverlapTest, ACheckpointDoesNotWaitForAnswersHoweverManyAreAwaited) {
  StartedSite site(
      "fragments: 80 pattern: BALANCED steps_between_syncs: 100 max_overlap_steps: 99 } "
      "model { vocabulary_size: 1024");
  for (int fragment = 0; fragment < 80; ++fragment) site.exchange_->Hold({fragment, 1});
  site.Run(1, 99);
  SyncEngine::State state = site.engine_->Save().value();
  state.fragments.pop_back();  // Is sent after step 100.
  for (const SyncEngine::State::Fragment& fragment : state.fragments) {
    EXPECT_EQ(fragment.round_in_flight, 1);
    EXPECT_FALSE(fragment.object_in_flight.empty());
  }
}

}  // namespace
}  // namespace causeway::worker
