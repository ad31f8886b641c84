#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/views/run_metrics.h"
#include "tests/unit/common/base/fake_clock.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RunMetricsTest : public testing::Test {
 protected:
  RunMetricsTest() { status_.mutable_config()->mutable_membership()->set_max_workers(2); }
  v1::WorkerStatus& Worker(const std::string& id, v1::WorkerStatus::State state) {
    v1::WorkerStatus& worker = *status_.add_workers();
    worker.set_worker_id(id);
    worker.set_state(state);
    return worker;
  }
  std::string Text(bool healthy = true) {
    MetricPage page;
    metrics_.AddTo(page, status_, healthy);
    return page.Text();
  }

  FakeClock clock_;
  RunMetrics metrics_{&clock_};
  v1::RunStatus status_;
};

TEST_F(RunMetricsTest, AWorkerThatLeftTakesItsSeriesWithIt) {
  Worker("a", v1::WorkerStatus::ACTIVE).set_step(7);
  EXPECT_THAT(Text(), HasSubstr("causeway_worker_step{worker=\"a\"} 7\n"));
  status_.mutable_workers(0)->set_state(v1::WorkerStatus::LEFT);
  EXPECT_THAT(Text(), Not(HasSubstr("worker=\"a\"")));
  EXPECT_THAT(Text(), HasSubstr("causeway_workers{state=\"left\"} 1\n"));
}

TEST_F(RunMetricsTest, ALostWorkerIsShownAsDownForAnHour) {
  Worker("a", v1::WorkerStatus::LOST);
  const std::string down = "causeway_worker_up{worker=\"a\"} 0\n";
  EXPECT_THAT(Text(), HasSubstr(down));
  EXPECT_THAT(Text(), Not(HasSubstr("causeway_worker_step{")));
  clock_.Advance(absl::Minutes(59));
  EXPECT_THAT(Text(), HasSubstr(down));
  clock_.Advance(absl::Minutes(2));
  EXPECT_THAT(Text(), Not(HasSubstr("worker=\"a\"")));
  // It comes back, and is lost anew.
  status_.mutable_workers(0)->set_state(v1::WorkerStatus::ACTIVE);
  EXPECT_THAT(Text(), HasSubstr("causeway_worker_up{worker=\"a\"} 1\n"));
  status_.mutable_workers(0)->set_state(v1::WorkerStatus::LOST);
  EXPECT_THAT(Text(), HasSubstr(down));
}

TEST_F(RunMetricsTest, OfManyLostWorkersNoMoreAreShownThanMayBeMembers) {
  for (int i = 0; i < 50; ++i) Worker(absl::StrCat("w", i), v1::WorkerStatus::LOST);
  const std::string text = Text();
  int shown = 0;
  for (size_t at = text.find("causeway_worker_up{"); at != std::string::npos;
       at = text.find("causeway_worker_up{", at + 1)) {
    ++shown;
  }
  EXPECT_EQ(shown, 2);
  EXPECT_THAT(text, HasSubstr("causeway_workers{state=\"lost\"} 50\n"));
}

TEST_F(RunMetricsTest, HeartbeatsAddTheirSecondsTheirAgeAndTheNewestEvaluation) {
  Worker("a", v1::WorkerStatus::ACTIVE);
  Worker("b", v1::WorkerStatus::ACTIVE);
  v1::Heartbeat heartbeat;
  heartbeat.set_compute_seconds(12.5);
  heartbeat.set_blocked_seconds(0.5);
  heartbeat.mutable_evaluation()->set_step(10);
  heartbeat.mutable_evaluation()->set_loss(3.5);
  metrics_.OnHeartbeat("a", heartbeat);
  clock_.Advance(absl::Seconds(3));
  heartbeat.mutable_evaluation()->set_step(20);
  heartbeat.mutable_evaluation()->set_loss(2.5);
  metrics_.OnHeartbeat("b", heartbeat);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("causeway_worker_compute_seconds_total{worker=\"a\"} 12.5\n"));
  EXPECT_THAT(text, HasSubstr("causeway_worker_blocked_seconds_total{worker=\"a\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("causeway_worker_heartbeat_age_seconds{worker=\"a\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("causeway_worker_heartbeat_age_seconds{worker=\"b\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("causeway_run_eval_loss 2.5\n"));
}

TEST_F(RunMetricsTest, WhatAWorkerSaysOfItselfCannotBreakThePage) {
  v1::WorkerStatus& worker = Worker("a", v1::WorkerStatus::ACTIVE);
  worker.set_device("gpu \"0\"\ncauseway_worker_up{worker=\"b\"} 1 \\");
  worker.set_software_version(std::string(1000, 'v'));
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("device=\"gpu \\\"0\\\"\\ncauseway_worker_up{worker=\\\"b\\\"} 1 "));
  EXPECT_THAT(text, Not(HasSubstr("\ncauseway_worker_up{worker=\"b\"}")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("version=\"", std::string(64, 'v'), "\"")));
}

TEST_F(RunMetricsTest, AFailedRunIsNotHealthy) {
  EXPECT_THAT(Text(true), HasSubstr("causeway_run_healthy 1\n"));
  EXPECT_THAT(Text(false), HasSubstr("causeway_run_healthy 0\n"));
}

TEST(LabelText, EndsWithAWholeCharacter) {
  EXPECT_EQ(LabelText("short"), "short");
  const std::string text = std::string(63, 'x') + "\xc3\xa9";  // The é would be cut in two.
  EXPECT_EQ(LabelText(text), std::string(63, 'x'));
  EXPECT_EQ(LabelText(std::string(62, 'x') + "\xc3\xa9!"), std::string(62, 'x') + "\xc3\xa9");
}

class RoundMetricsTest : public testing::Test {
 protected:
  static v1::PushHeader Header(const std::string& worker, int64_t round) {
    v1::PushHeader header;
    header.set_worker_id(worker);
    header.set_round(round);
    return header;
  }
  // Round `round` of fragment 0 with a and b, published now, collected in 4 s and merged in half a
  // second.
  v1::Round Round(int64_t round) const {
    v1::Round record;
    record.set_round(round);
    record.add_contributors("a");
    record.add_contributors("b");
    record.set_published_unix_s(absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()));
    record.set_closed_unix_s(record.published_unix_s() - 0.5);
    record.set_first_unix_s(record.closed_unix_s() - 4);
    return record;
  }
  // The history hears of it first, as from a coordinator.
  void OnPushBegun(const v1::PushHeader& header) {
    for (RunObserver* const observer : observers_) observer->OnPushBegun(header);
  }
  void OnContributed(const v1::PushHeader& header, bool quarantined) {
    for (RunObserver* const observer : observers_) observer->OnContributed(header, quarantined);
  }
  void OnPublished(const v1::Round& round, const std::vector<std::string>& missing) {
    for (RunObserver* const observer : observers_) observer->OnPublished(round, missing);
  }
  void OnApplied(const std::string& worker_id, int fragment, int64_t round) {
    for (RunObserver* const observer : observers_) observer->OnApplied(worker_id, fragment, round);
  }
  // While the round `open` of fragment 0 has a contribution; 0: none has.
  std::string Text(int64_t open = 0) {
    v1::RunStatus status;
    v1::FragmentStatus& fragment = *status.add_fragments();
    if (open > 0) {
      fragment.set_published_version(open - 1);
      fragment.add_contributed("a");
    }
    MetricPage page;
    metrics_.AddTo(page, status);
    return page.Text();
  }
  void ExpectPhase(const std::string& phase, const std::string& count, const std::string& sum) {
    const std::string text = Text();
    EXPECT_THAT(text, HasSubstr("seconds_count{phase=\"" + phase + "\"} " + count + "\n"));
    EXPECT_THAT(text, HasSubstr("seconds_sum{phase=\"" + phase + "\"} " + sum + "\n"));
  }

  FakeClock clock_;
  RunHistory history_{{.clock = &clock_}};
  RoundMetrics metrics_{&clock_, &history_};
  const std::vector<RunObserver*> observers_ = {&history_, &metrics_};
};

TEST_F(RoundMetricsTest, PhasesAreMeasuredFromOneEventToTheNext) {
  OnPushBegun(Header("a", 1));
  clock_.Advance(absl::Seconds(2));
  OnPushBegun(Header("a", 1));  // Another stream of the same object.
  OnContributed(Header("a", 1), /*quarantined=*/false);
  ExpectPhase("transfer", "1", "2");
  OnPublished(Round(1), {});
  ExpectPhase("collect", "1", "4");
  ExpectPhase("merge", "1", "0.5");
  clock_.Advance(absl::Seconds(3));
  OnApplied("a", 0, 1);
  ExpectPhase("apply", "1", "3");
  OnApplied("b", 0, 7);  // The round is long gone.
  ExpectPhase("apply", "1", "3");
}

TEST_F(RoundMetricsTest, ADeltaThatIsSentAgainInAnotherRoundIsMeasuredAnew) {
  OnPushBegun(Header("a", 1));
  clock_.Advance(absl::Seconds(100));
  OnPublished(Round(1), {"a"});  // Without it.
  OnPushBegun(Header("a", 2));
  clock_.Advance(absl::Seconds(1));
  OnContributed(Header("a", 2), /*quarantined=*/false);
  ExpectPhase("transfer", "1", "1");
}

TEST_F(RoundMetricsTest, ContributionsAreCountedByWhatCameOfThem) {
  OnContributed(Header("a", 1), false);
  OnContributed(Header("b", 1), false);
  OnContributed(Header("c", 1), /*quarantined=*/true);
  OnPublished(Round(1), {});
  OnPublished(Round(2), {"c"});
  EXPECT_THAT(Text(), HasSubstr("causeway_contributions_total{outcome=\"merged\"} 4\n"));
  EXPECT_THAT(Text(), HasSubstr("causeway_contributions_total{outcome=\"quarantined\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("causeway_rounds_incomplete_total 1\n"));
}

TEST_F(RoundMetricsTest, TheOldestOpenRoundHasItsAge) {
  EXPECT_THAT(Text(), HasSubstr("causeway_round_oldest_open_seconds 0\n"));
  OnContributed(Header("a", 1), false);
  clock_.Advance(absl::Seconds(30));
  EXPECT_THAT(Text(1), HasSubstr("causeway_round_oldest_open_seconds 30\n"));
  EXPECT_THAT(Text(1), HasSubstr("causeway_rounds_open 1\n"));
  OnPublished(Round(1), {});
  EXPECT_THAT(Text(), HasSubstr("causeway_round_oldest_open_seconds 0\n"));
  OnContributed(Header("a", 2), false);
  clock_.Advance(absl::Seconds(5));
  EXPECT_THAT(Text(2), HasSubstr("causeway_round_oldest_open_seconds 5\n"));
}

TEST_F(RoundMetricsTest, ARoundThatWasOpenBeforeThisProcessCountsFromItsFirstContribution) {
  RecoveredRun run;
  v1::Contribution& contribution = run.contributions.emplace_back();
  *contribution.mutable_header() = Header("a", 1);
  contribution.set_unix_s(absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()));
  history_.Restore(run);
  clock_.Advance(absl::Seconds(40));
  EXPECT_THAT(Text(1), HasSubstr("causeway_round_oldest_open_seconds 40\n"));
}

}  // namespace
}  // namespace causeway::server
