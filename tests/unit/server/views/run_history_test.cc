#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/views/run_curves.h"
#include "server/views/run_history.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kStart = 1'700'000'000;

class RunHistoryTest : public ::testing::Test {
 protected:
  // A worker's heartbeat that trains 100 tokens and moves 10 bytes in a step, and computes for 0.9
  // s of it.
  static v1::Heartbeat HeartbeatAt(int64_t step, double loss) {
    v1::Heartbeat heartbeat;
    heartbeat.set_step(step);
    heartbeat.set_tokens(100 * step);
    heartbeat.set_train_loss(loss);
    heartbeat.set_compute_seconds(0.9 * static_cast<double>(step));
    heartbeat.set_blocked_seconds(0.1 * static_cast<double>(step));
    heartbeat.set_bytes_up(10 * step);
    heartbeat.set_bytes_down(20 * step);
    return heartbeat;
  }
  static v1::PushHeader Push(const std::string& worker, int fragment, int64_t round) {
    v1::PushHeader header;
    header.set_worker_id(worker);
    header.set_fragment(fragment);
    header.set_round(round);
    header.set_send_step(6 * round);
    return header;
  }
  static v1::Round Record(int fragment, int64_t round, double closed, double published) {
    v1::Round record;
    record.set_fragment(fragment);
    record.set_round(round);
    record.set_send_step(6 * round);
    record.set_closed_unix_s(closed);
    record.set_published_unix_s(published);
    record.set_reason("every expected worker contributed (2)");
    return record;
  }
  std::vector<ProgressPoint> PointsOf(const std::string& id) const {
    for (const WorkerCurve& worker : history_.Curves()) {
      if (worker.worker_id == id) return worker.points;
    }
    return {};
  }

  FakeClock clock_{absl::FromUnixSeconds(static_cast<int64_t>(kStart))};
  RunHistory history_{{.points = 4, .workers = 3, .rounds = 4, .clock = &clock_}};
};

TEST_F(RunHistoryTest, HeartbeatsBecomeRatesOfWhatLiesBetweenThem) {
  history_.OnHeartbeat("a", HeartbeatAt(10, 5.5));
  EXPECT_THAT(PointsOf("a"), IsEmpty());
  clock_.Advance(absl::Seconds(4));
  history_.OnHeartbeat("a", HeartbeatAt(20, 3.5));
  const std::vector<ProgressPoint> points = PointsOf("a");
  ASSERT_EQ(points.size(), 1U);
  EXPECT_EQ(points[0].step, 20);
  EXPECT_DOUBLE_EQ(points[0].unix_s, kStart + 4);
  EXPECT_DOUBLE_EQ(*points[0].train_loss.value(), 3.5);
  EXPECT_DOUBLE_EQ(*points[0].tokens_per_second.value(), 250);
  EXPECT_DOUBLE_EQ(*points[0].utilization.value(), 0.9);
  EXPECT_DOUBLE_EQ(*points[0].up_bytes_per_second.value(), 25);
  EXPECT_DOUBLE_EQ(*points[0].down_bytes_per_second.value(), 50);
}

TEST_F(RunHistoryTest, WhatAWorkerFetchesBeforeItTrainsIsNoRate) {
  v1::Heartbeat joined;
  history_.OnHeartbeat("a", joined);
  clock_.Advance(absl::Seconds(1));
  v1::Heartbeat first = HeartbeatAt(1, 5);
  first.set_bytes_down(1 << 30);
  history_.OnHeartbeat("a", first);
  ASSERT_EQ(PointsOf("a").size(), 1U);
  EXPECT_FALSE(PointsOf("a")[0].down_bytes_per_second.value().has_value());
  EXPECT_DOUBLE_EQ(*PointsOf("a")[0].tokens_per_second.value(), 100);
}

TEST_F(RunHistoryTest, AWorkerThatStandsStillAddsNothingButIsHeard) {
  history_.OnHeartbeat("a", HeartbeatAt(10, 3));
  clock_.Advance(absl::Seconds(3));
  history_.OnHeartbeat("a", HeartbeatAt(10, 3));
  clock_.Advance(absl::Seconds(2));
  EXPECT_THAT(PointsOf("a"), IsEmpty());
  EXPECT_DOUBLE_EQ(history_.Workers()[0].heard_seconds_ago, 2);
  EXPECT_DOUBLE_EQ(history_.Workers()[0].heard_unix_s, kStart + 3);
}

TEST_F(RunHistoryTest, ALongRunIsKeptAsMeansOfWholeStretches) {
  for (int step = 0; step <= 8; ++step) {
    history_.OnHeartbeat("a", HeartbeatAt(step, step));
    clock_.Advance(absl::Seconds(1));
  }
  const std::vector<ProgressPoint> points = PointsOf("a");
  ASSERT_EQ(points.size(), 4U);
  EXPECT_EQ(points[0].step, 2);
  EXPECT_DOUBLE_EQ(*points[0].train_loss.value(), 1.5);
  EXPECT_EQ(points[3].step, 8);
  EXPECT_DOUBLE_EQ(*points[3].train_loss.value(), 7.5);
}

TEST_F(RunHistoryTest, StepsThatAreTrainedAgainReplaceWhatWasKeptOfThem) {
  for (const int step : {0, 10, 20, 30}) history_.OnHeartbeat("a", HeartbeatAt(step, 1));
  history_.OnHeartbeat("a", HeartbeatAt(10, 1));  // From its checkpoint.
  history_.OnHeartbeat("a", HeartbeatAt(15, 9));
  const std::vector<ProgressPoint> points = PointsOf("a");
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].step, 10);
  EXPECT_EQ(points[1].step, 15);
}

TEST_F(RunHistoryTest, AProcessThatCountsFromZeroAgainHasNoNegativeRates) {
  history_.OnHeartbeat("a", HeartbeatAt(10, 3));
  clock_.Advance(absl::Seconds(1));
  v1::Heartbeat anew = HeartbeatAt(20, 2);
  anew.set_bytes_up(0);
  anew.set_bytes_down(0);
  anew.set_compute_seconds(0);
  history_.OnHeartbeat("a", anew);
  ASSERT_EQ(PointsOf("a").size(), 1U);
  EXPECT_FALSE(PointsOf("a")[0].up_bytes_per_second.value().has_value());
  EXPECT_FALSE(PointsOf("a")[0].utilization.value().has_value());
  EXPECT_TRUE(PointsOf("a")[0].tokens_per_second.value().has_value());
}

TEST_F(RunHistoryTest, WhatCannotBeALossIsLeftOut) {
  history_.OnHeartbeat("a", HeartbeatAt(0, 1));
  v1::Heartbeat hostile = HeartbeatAt(1, std::nan(""));
  hostile.mutable_evaluation()->set_loss(std::numeric_limits<double>::infinity());
  history_.OnHeartbeat("a", hostile);
  hostile = HeartbeatAt(2, -1e300);
  hostile.mutable_evaluation()->set_step(-5);
  history_.OnHeartbeat("a", hostile);
  ASSERT_EQ(PointsOf("a").size(), 2U);
  EXPECT_FALSE(PointsOf("a")[0].train_loss.value().has_value());
  EXPECT_FALSE(PointsOf("a")[1].train_loss.value().has_value());
  EXPECT_THAT(history_.Evaluations(), IsEmpty());
}

TEST_F(RunHistoryTest, AnEvaluationIsKeptOnceHoweverManyHeartbeatsRepeatIt) {
  v1::Heartbeat heartbeat = HeartbeatAt(10, 3);
  heartbeat.mutable_evaluation()->set_step(8);
  heartbeat.mutable_evaluation()->set_loss(2.5);
  history_.OnHeartbeat("a", heartbeat);
  history_.OnHeartbeat("a", heartbeat);
  heartbeat.mutable_evaluation()->set_step(16);
  heartbeat.mutable_evaluation()->set_loss(2.25);
  history_.OnHeartbeat("a", heartbeat);
  const std::vector<EvaluationPoint> points = history_.Evaluations();
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].step, 8);
  EXPECT_EQ(points[1].step, 16);
  EXPECT_DOUBLE_EQ(points[1].loss, 2.25);
}

TEST_F(RunHistoryTest, CurvesGoOnInTheNextProcess) {
  const TemporaryFolder folder;
  const std::string path = folder.File("curves");
  for (const int step : {0, 10, 20, 30, 40, 50}) {
    v1::Heartbeat heartbeat = HeartbeatAt(step, 0.1 * step);
    heartbeat.mutable_evaluation()->set_step(step);
    heartbeat.mutable_evaluation()->set_loss(2.5 - 0.01 * step);
    history_.OnHeartbeat("a", heartbeat);
    clock_.Advance(absl::Seconds(1));
  }
  ASSERT_TRUE(history_.SaveCurves(*FileSystem::Real(), path, "run-1").ok());
  RunHistory next({.points = 4, .workers = 3, .rounds = 4, .clock = &clock_});
  ASSERT_TRUE(next.RestoreCurves(*FileSystem::Real(), path, "run-1").ok());
  EXPECT_THAT(next.Workers(), IsEmpty()) << "nobody has been heard yet";
  // Both take the same from here on, but for the step that nobody saw begin.
  for (RunHistory* const history : {&history_, &next}) {
    history->OnHeartbeat("a", HeartbeatAt(60, 6));
  }
  clock_.Advance(absl::Seconds(1));
  for (RunHistory* const history : {&history_, &next}) {
    history->OnHeartbeat("a", HeartbeatAt(70, 7));
  }
  ASSERT_EQ(next.Curves().size(), 1U);
  const std::vector<ProgressPoint> now = next.Curves()[0].points;
  EXPECT_EQ(now[0].step, PointsOf("a")[0].step);
  EXPECT_DOUBLE_EQ(*now[0].train_loss.value(), *PointsOf("a")[0].train_loss.value());
  EXPECT_EQ(now.back().step, 70);
  ASSERT_EQ(next.Evaluations().size(), history_.Evaluations().size());
  EXPECT_EQ(next.Evaluations()[0].loss, history_.Evaluations()[0].loss);
}

TEST_F(RunHistoryTest, AWorkerThatResumedEarlierRewritesWhatItTrainsAgainAfterARestart) {
  const TemporaryFolder folder;
  for (const int step : {0, 10, 20, 30}) history_.OnHeartbeat("a", HeartbeatAt(step, 1));
  ASSERT_TRUE(history_.SaveCurves(*FileSystem::Real(), folder.File("curves"), "r").ok());
  RunHistory next({.points = 4, .workers = 3, .rounds = 4, .clock = &clock_});
  ASSERT_TRUE(next.RestoreCurves(*FileSystem::Real(), folder.File("curves"), "r").ok());
  next.OnHeartbeat("a", HeartbeatAt(10, 1));
  next.OnHeartbeat("a", HeartbeatAt(15, 9));
  const std::vector<ProgressPoint> points = next.Curves()[0].points;
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].step, 10);
  EXPECT_EQ(points[1].step, 15);
}

TEST_F(RunHistoryTest, CurvesOfAnotherRunOrDamagedOnesAreRefusedAndLeaveNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.File("curves");
  EXPECT_TRUE(history_.RestoreCurves(*FileSystem::Real(), path, "run-1").ok()) << "there are none";
  for (const int step : {0, 10, 20}) history_.OnHeartbeat("a", HeartbeatAt(step, 1));
  ASSERT_TRUE(history_.SaveCurves(*FileSystem::Real(), path, "run-1").ok());
  RunHistory next({.points = 4, .workers = 3, .rounds = 4, .clock = &clock_});
  EXPECT_EQ(next.RestoreCurves(*FileSystem::Real(), path, "run-2").code(),
            absl::StatusCode::kFailedPrecondition);
  std::string bytes = *FileSystem::Real()->ReadFile(path);
  const std::string whole = bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 4);
    WriteText(path, bytes);
    EXPECT_FALSE(next.RestoreCurves(*FileSystem::Real(), path, "run-1").ok()) << "byte " << i;
  }
  EXPECT_THAT(next.Curves(), IsEmpty());
}

TEST_F(RunHistoryTest, TheWorkerHeardLongestAgoMakesWay) {
  for (const char* const id : {"a", "b", "c", "a", "d"}) {
    history_.OnHeartbeat(id, HeartbeatAt(1, 1));
    clock_.Advance(absl::Seconds(1));
  }
  std::vector<std::string> ids;
  for (const WorkerHeard& worker : history_.Workers()) ids.push_back(worker.worker_id);
  EXPECT_THAT(ids, ElementsAre("a", "c", "d"));
}

TEST_F(RunHistoryTest, ARoundIsFollowedFromTheSendToTheApply) {
  history_.OnPushBegun(Push("a", 1, 3));
  clock_.Advance(absl::Seconds(1));
  history_.OnPushBegun(Push("a", 1, 3));  // Another stripe.
  history_.OnPushBegun(Push("b", 1, 3));
  clock_.Advance(absl::Seconds(1));
  history_.OnContributed(Push("a", 1, 3), /*quarantined=*/false);
  history_.OnContributed(Push("b", 1, 3), /*quarantined=*/true);
  history_.OnPublished(Record(1, 3, kStart + 2.5, kStart + 2.75), {"c"});
  clock_.Advance(absl::Seconds(2));
  history_.OnApplied("b", 1, 3);
  const std::vector<RoundTimes> rounds = history_.Rounds(10);
  ASSERT_EQ(rounds.size(), 1U);
  const RoundTimes& round = rounds[0];
  EXPECT_EQ(round.record.fragment(), 1);
  EXPECT_EQ(round.record.round(), 3);
  EXPECT_EQ(round.record.send_step(), 18);
  EXPECT_DOUBLE_EQ(round.record.closed_unix_s(), kStart + 2.5);
  EXPECT_DOUBLE_EQ(round.record.published_unix_s(), kStart + 2.75);
  EXPECT_THAT(round.missing, ElementsAre("c"));
  EXPECT_DOUBLE_EQ(round.workers.at("a").sent_unix_s, kStart);
  EXPECT_DOUBLE_EQ(round.workers.at("a").arrived_unix_s, kStart + 2);
  EXPECT_DOUBLE_EQ(round.workers.at("a").applied_unix_s, 0);
  EXPECT_FALSE(round.workers.at("a").quarantined);
  EXPECT_DOUBLE_EQ(round.workers.at("b").sent_unix_s, kStart + 1);
  EXPECT_DOUBLE_EQ(round.workers.at("b").applied_unix_s, kStart + 4);
  EXPECT_TRUE(round.workers.at("b").quarantined);
}

TEST_F(RunHistoryTest, OldRoundsMakeWayAndAreNotRevived) {
  for (int round = 1; round <= 6; ++round) history_.OnPushBegun(Push("a", 0, round));
  history_.OnApplied("a", 0, 1);
  std::vector<int64_t> kept;
  for (const RoundTimes& round : history_.Rounds(10)) kept.push_back(round.record.round());
  EXPECT_THAT(kept, ElementsAre(3, 4, 5, 6));
  EXPECT_EQ(history_.Rounds(1)[0].record.round(), 6);
}

TEST_F(RunHistoryTest, ATakenOverRunBeginsWithItsNewestRoundsAndTheOpenOnes) {
  RecoveredRun run;
  for (int fragment = 0; fragment < 2; ++fragment) {
    for (int round = 1; round <= 3; ++round) {
      const double published = kStart + 10 * round + fragment;
      run.rounds.push_back(Record(fragment, round, published - 1, published));
    }
  }
  const auto contribution = [](int fragment, int64_t round, double unix_s) {
    v1::Contribution record;
    record.mutable_header()->set_fragment(fragment);
    record.mutable_header()->set_round(round);
    record.mutable_header()->set_worker_id("a");
    record.mutable_header()->set_send_step(6 * round);
    record.set_unix_s(unix_s);
    return record;
  };
  run.contributions = {contribution(0, 1, kStart), contribution(0, 3, kStart + 28),
                       contribution(1, 4, kStart + 40)};
  history_.Restore(run);
  const std::vector<RoundTimes> rounds = history_.Rounds(10);
  std::vector<std::string> names;
  for (const RoundTimes& round : rounds) {
    names.push_back(absl::StrCat(round.record.fragment(), "/", round.record.round()));
  }
  EXPECT_THAT(names, ElementsAre("1/2", "0/3", "1/3", "1/4"));
  EXPECT_DOUBLE_EQ(rounds[1].workers.at("a").arrived_unix_s, kStart + 28);
  EXPECT_DOUBLE_EQ(rounds[3].record.published_unix_s(), 0);
  EXPECT_DOUBLE_EQ(rounds[3].workers.at("a").arrived_unix_s, kStart + 40);
}

// Counts what it stands for.
struct Sum {
  int64_t last = 0;
  int64_t samples = 1;
  void Merge(const Sum& later) {
    last = later.last;
    samples += later.samples;
  }
};

BoundedSeries<Sum> SeriesOf(int64_t samples, size_t capacity) {
  BoundedSeries<Sum> series(capacity);
  for (int64_t i = 1; i <= samples; ++i) series.Add({.last = i});
  return series;
}

std::vector<int64_t> Lasts(const BoundedSeries<Sum>& series) {
  std::vector<int64_t> lasts;
  for (const Sum& point : series.points()) lasts.push_back(point.last);
  return lasts;
}

TEST(BoundedSeriesTest, KeepsEveryPointUntilItIsFull) {
  EXPECT_THAT(Lasts(SeriesOf(4, 4)), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(SeriesOf(4, 4).stride(), 1);
}

TEST(BoundedSeriesTest, NeighboursBecomeOneWhenItIsFull) {
  EXPECT_THAT(Lasts(SeriesOf(5, 4)), ElementsAre(2, 4, 5));
  EXPECT_THAT(Lasts(SeriesOf(6, 4)), ElementsAre(2, 4, 6));
  EXPECT_EQ(SeriesOf(6, 4).points().back().samples, 2);
}

TEST(BoundedSeriesTest, CoversEverySampleOnceHoweverLongItGoesOn) {
  for (const int64_t samples : {1, 7, 8, 9, 100, 1023, 1024, 1025, 50'000}) {
    const BoundedSeries<Sum> series = SeriesOf(samples, 8);
    EXPECT_LE(series.points().size(), 8U);
    EXPECT_GE(series.points().size(), samples < 4 ? 1U : 4U) << samples;
    int64_t covered = 0;
    for (const Sum& point : series.points()) {
      covered += point.samples;
      EXPECT_EQ(point.last, covered);
      if (&point != &series.points().back()) {
        EXPECT_EQ(point.samples, series.stride());
      }
    }
    EXPECT_EQ(covered, samples);
  }
}

TEST(BoundedSeriesTest, GoesOnAfterItsTailWasDropped) {
  BoundedSeries<Sum> series = SeriesOf(9, 8);  // 2 4 6 8 9
  series.DropTail([](const Sum& point) { return point.last > 6; });
  EXPECT_THAT(Lasts(series), ElementsAre(2, 4, 6));
  series.Add({.last = 7});
  series.Add({.last = 8});
  series.Add({.last = 9});
  EXPECT_THAT(Lasts(series), ElementsAre(2, 4, 6, 8, 9));
  series.DropTail([](const Sum&) { return true; });
  series.Add({.last = 1});
  EXPECT_THAT(Lasts(series), ElementsAre(1));
}

TEST(BoundedSeriesTest, IsWhatItWasFromItsPartsAndGoesOnTheSame) {
  BoundedSeries<Sum> series = SeriesOf(9, 8);
  auto again =
      BoundedSeries<Sum>::Of(8, series.points(), series.stride(), series.samples_in_last());
  ASSERT_TRUE(again.has_value());
  for (int64_t i = 10; i <= 40; ++i) {
    series.Add({.last = i});
    again->Add({.last = i});
    EXPECT_EQ(Lasts(*again), Lasts(series));
  }
}

TEST(BoundedSeriesTest, RefusesPartsThatNoneHas) {
  const std::vector<Sum> three(3);
  EXPECT_TRUE(BoundedSeries<Sum>::Of(4, three, 2, 1).has_value());
  EXPECT_TRUE(BoundedSeries<Sum>::Of(4, {}, 2, 0).has_value());
  EXPECT_FALSE(BoundedSeries<Sum>::Of(2, three, 2, 1).has_value()) << "more than it takes";
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, three, 3, 1).has_value()) << "strides are powers of two";
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, three, 0, 0).has_value());
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, three, -2, 1).has_value());
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, three, 2, 3).has_value());
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, three, 2, 0).has_value());
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, {}, 2, 1).has_value());
}

}  // namespace
}  // namespace causeway::server
