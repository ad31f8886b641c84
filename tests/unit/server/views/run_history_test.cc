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
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;

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
  // Of the workers a and b; collected in 4 s.
  static v1::Round Record(int fragment, int64_t round, double closed, double published) {
    v1::Round record;
    record.set_fragment(fragment);
    record.set_round(round);
    record.set_send_step(6 * round);
    record.add_contributors("a");
    record.add_contributors("b");
    record.set_first_unix_s(closed - 4);
    record.set_closed_unix_s(closed);
    record.set_published_unix_s(published);
    record.set_reason("every expected worker contributed (2)");
    return record;
  }
  static std::vector<ProgressPoint> PointsOf(const std::string& id, const RunHistory& history) {
    const RunCurves curves = history.Curves();
    const auto curve = curves.workers.find(id);
    return curve == curves.workers.end() ? std::vector<ProgressPoint>() : curve->second.points();
  }
  std::vector<ProgressPoint> PointsOf(const std::string& id) const {
    return PointsOf(id, history_);
  }
  // A history that keeps its curves in `folder_`.
  RunHistory::Options Kept(const std::string& run_id = "run-1") {
    return {.points = 4,
            .workers = 3,
            .rounds = 4,
            .clock = &clock_,
            .curves_file = folder_.File("curves"),
            .run_id = run_id};
  }
  double Now() const { return absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()); }
  // Round `round` of fragment 0, published now and merged in half a second.
  void Publish(int64_t round, const std::vector<std::string>& missing = {}) {
    history_.OnPublished(Record(0, round, Now() - 0.5, Now()), missing);
  }
  // While the round `open` of fragment 0 has a contribution; 0: none has.
  std::string Metrics(int64_t open = 0) {
    v1::RunStatus status;
    v1::FragmentStatus& fragment = *status.add_fragments();
    if (open > 0) {
      fragment.set_published_version(open - 1);
      fragment.add_contributed("a");
    }
    MetricPage page;
    history_.AddRoundsTo(page, status);
    return page.Text();
  }
  void ExpectPhase(const std::string& phase, const std::string& count, const std::string& sum) {
    const std::string text = Metrics();
    EXPECT_THAT(text, HasSubstr("seconds_count{phase=\"" + phase + "\"} " + count + "\n"));
    EXPECT_THAT(text, HasSubstr("seconds_sum{phase=\"" + phase + "\"} " + sum + "\n"));
  }

  FakeClock clock_{absl::FromUnixSeconds(static_cast<int64_t>(kStart))};
  const TemporaryFolder folder_;
  RunHistory history_{Kept()};
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
  EXPECT_EQ(history_.Workers().at("a").at, clock_.Monotonic() - absl::Seconds(2));
  EXPECT_DOUBLE_EQ(history_.Workers().at("a").unix_s, kStart + 3);
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
  history_.SaveCurves();
  RunHistory next(Kept());  // Of the coordinator's next process.
  ASSERT_TRUE(next.RestoreCurves().ok());
  for (RunHistory* const history : {&history_, &next}) {
    history->OnHeartbeat("a", HeartbeatAt(10, 1));  // From its checkpoint.
    history->OnHeartbeat("a", HeartbeatAt(15, 9));
    const std::vector<ProgressPoint> points = PointsOf("a", *history);
    ASSERT_EQ(points.size(), 2U);
    EXPECT_EQ(points[0].step, 10);
    EXPECT_EQ(points[1].step, 15);
  }
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
  EXPECT_FALSE(history_.LastEvaluation().has_value());
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
  const std::vector<EvaluationPoint> points = history_.Curves().held_out.points();
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].step, 8);
  EXPECT_EQ(points[1].step, 16);
  EXPECT_DOUBLE_EQ(points[1].loss, 2.25);
}

TEST_F(RunHistoryTest, CurvesGoOnInTheNextProcess) {
  for (const int step : {0, 10, 20, 30, 40, 50}) {
    v1::Heartbeat heartbeat = HeartbeatAt(step, 0.1 * step);
    heartbeat.mutable_evaluation()->set_step(step);
    heartbeat.mutable_evaluation()->set_loss(2.5 - 0.01 * step);
    history_.OnHeartbeat("a", heartbeat);
    clock_.Advance(absl::Seconds(1));
  }
  history_.SaveCurves();
  RunHistory next(Kept());
  ASSERT_TRUE(next.RestoreCurves().ok());
  EXPECT_THAT(next.Workers(), IsEmpty()) << "nobody has been heard yet";
  // Both take the same from here on, but for the step that nobody saw begin.
  for (const int step : {60, 70, 80, 90, 100}) {
    for (RunHistory* const history : {&history_, &next}) {
      history->OnHeartbeat("a", HeartbeatAt(step, 0.1 * step));
    }
    clock_.Advance(absl::Seconds(1));
  }
  const std::vector<ProgressPoint> now = PointsOf("a", next);
  EXPECT_EQ(now[0].step, PointsOf("a")[0].step);
  EXPECT_DOUBLE_EQ(*now[0].train_loss.value(), *PointsOf("a")[0].train_loss.value());
  EXPECT_EQ(now.back().step, 100);
  const RunCurves before = history_.Curves();
  const RunCurves after = next.Curves();
  ASSERT_EQ(after.held_out.points().size(), before.held_out.points().size());
  EXPECT_EQ(after.held_out.points()[0].loss, before.held_out.points()[0].loss);
}

TEST_F(RunHistoryTest, CurvesOfAnotherRunOrDamagedOnesAreRefusedAndLeaveNothing) {
  const std::string path = folder_.File("curves");
  EXPECT_TRUE(history_.RestoreCurves().ok()) << "there are none";
  for (const int step : {0, 10, 20}) history_.OnHeartbeat("a", HeartbeatAt(step, 1));
  history_.SaveCurves();
  EXPECT_EQ(RunHistory(Kept("run-2")).RestoreCurves().code(),
            absl::StatusCode::kFailedPrecondition);
  RunHistory next(Kept());
  std::string bytes = *FileSystem::Real()->ReadFile(path);
  const std::string whole = bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 4);
    WriteText(path, bytes);
    EXPECT_FALSE(next.RestoreCurves().ok()) << "byte " << i;
  }
  EXPECT_THAT(next.Curves().workers, IsEmpty());
}

TEST_F(RunHistoryTest, TheWorkerHeardLongestAgoMakesWay) {
  for (const char* const id : {"a", "b", "c", "a", "d"}) {
    history_.OnHeartbeat(id, HeartbeatAt(1, 1));
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_THAT(history_.Curves().workers, ElementsAre(Key("a"), Key("c"), Key("d")));
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

TEST_F(RunHistoryTest, PhasesAreMeasuredFromOneEventToTheNext) {
  history_.OnPushBegun(Push("a", 0, 1));
  clock_.Advance(absl::Seconds(2));
  history_.OnPushBegun(Push("a", 0, 1));  // Another stream of the same object.
  history_.OnContributed(Push("a", 0, 1), /*quarantined=*/false);
  ExpectPhase("transfer", "1", "2");
  Publish(1);
  ExpectPhase("collect", "1", "4");
  ExpectPhase("merge", "1", "0.5");
  clock_.Advance(absl::Seconds(3));
  history_.OnApplied("a", 0, 1);
  ExpectPhase("apply", "1", "3");
  history_.OnApplied("b", 0, 7);  // The round is long gone.
  ExpectPhase("apply", "1", "3");
}

TEST_F(RunHistoryTest, ADeltaThatIsSentAgainInAnotherRoundIsMeasuredAnew) {
  history_.OnPushBegun(Push("a", 0, 1));
  clock_.Advance(absl::Seconds(100));
  Publish(1, {"a"});  // Without it.
  history_.OnPushBegun(Push("a", 0, 2));
  clock_.Advance(absl::Seconds(1));
  history_.OnContributed(Push("a", 0, 2), /*quarantined=*/false);
  ExpectPhase("transfer", "1", "1");
}

TEST_F(RunHistoryTest, ContributionsAreCountedByWhatCameOfThem) {
  history_.OnContributed(Push("a", 0, 1), false);
  history_.OnContributed(Push("b", 0, 1), false);
  history_.OnContributed(Push("c", 0, 1), /*quarantined=*/true);
  Publish(1);
  Publish(2, {"c"});
  EXPECT_THAT(Metrics(), HasSubstr("causeway_contributions_total{outcome=\"merged\"} 4\n"));
  EXPECT_THAT(Metrics(), HasSubstr("causeway_contributions_total{outcome=\"quarantined\"} 1\n"));
  EXPECT_THAT(Metrics(), HasSubstr("causeway_rounds_incomplete_total 1\n"));
}

TEST_F(RunHistoryTest, TheOldestOpenRoundHasItsAge) {
  EXPECT_THAT(Metrics(), HasSubstr("causeway_round_oldest_open_seconds 0\n"));
  history_.OnContributed(Push("a", 0, 1), false);
  clock_.Advance(absl::Seconds(30));
  EXPECT_THAT(Metrics(1), HasSubstr("causeway_round_oldest_open_seconds 30\n"));
  EXPECT_THAT(Metrics(1), HasSubstr("causeway_rounds_open 1\n"));
  Publish(1);
  EXPECT_THAT(Metrics(), HasSubstr("causeway_round_oldest_open_seconds 0\n"));
  history_.OnContributed(Push("a", 0, 2), false);
  clock_.Advance(absl::Seconds(5));
  EXPECT_THAT(Metrics(2), HasSubstr("causeway_round_oldest_open_seconds 5\n"));
}

TEST_F(RunHistoryTest, ARoundThatWasOpenBeforeThisProcessCountsFromItsFirstContribution) {
  RecoveredRun run;
  v1::Contribution& contribution = run.contributions.emplace_back();
  *contribution.mutable_header() = Push("a", 0, 1);
  contribution.set_unix_s(Now());
  history_.Restore(run);
  clock_.Advance(absl::Seconds(40));
  EXPECT_THAT(Metrics(1), HasSubstr("causeway_round_oldest_open_seconds 40\n"));
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

TEST(BoundedSeriesTest, CoversEverySampleOnceHoweverLongItGoesOn) {
  for (const int64_t samples : {1, 7, 8, 9, 100, 1023, 1024, 1025, 50'000}) {
    BoundedSeries<Sum> series(8);
    for (int64_t i = 1; i <= samples; ++i) series.Add({.last = i});
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
