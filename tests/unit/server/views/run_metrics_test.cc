#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/views/coordinator_metrics.h"
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
    metrics_.AddRun(page, status_, healthy);
    return page.Text();
  }

  FakeClock clock_;
  RunHistory history_{{.clock = &clock_}};
  CoordinatorMetrics metrics_{{.clock = &clock_, .history = &history_}};
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
  history_.OnHeartbeat("a", heartbeat);
  clock_.Advance(absl::Seconds(3));
  heartbeat.mutable_evaluation()->set_step(20);
  heartbeat.mutable_evaluation()->set_loss(2.5);
  history_.OnHeartbeat("b", heartbeat);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("causeway_worker_compute_seconds_total{worker=\"a\"} 12.5\n"));
  EXPECT_THAT(text, HasSubstr("causeway_worker_blocked_seconds_total{worker=\"a\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("causeway_worker_heartbeat_age_seconds{worker=\"a\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("causeway_worker_heartbeat_age_seconds{worker=\"b\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("causeway_run_eval_loss 2.5\n"));
  heartbeat.mutable_evaluation()->set_step(10);  // As it says with each heartbeat.
  heartbeat.mutable_evaluation()->set_loss(3.5);
  history_.OnHeartbeat("a", heartbeat);
  EXPECT_THAT(Text(), HasSubstr("causeway_run_eval_loss 2.5\n"));
}

TEST_F(RunMetricsTest, AWorkerThatComesBackIsAsOldAsItsJoin) {
  Worker("a", v1::WorkerStatus::JOINING);
  history_.OnJoined("a");
  EXPECT_THAT(Text(), Not(HasSubstr("causeway_worker_heartbeat_age_seconds{")));
  history_.OnHeartbeat("a", v1::Heartbeat());
  clock_.Advance(absl::Hours(1));
  history_.OnJoined("a");
  clock_.Advance(absl::Seconds(2));
  EXPECT_THAT(Text(), HasSubstr("causeway_worker_heartbeat_age_seconds{worker=\"a\"} 2\n"));
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
  const std::string text =
      absl::StrCat(std::string(63, 'x'), "\xc3\xa9");  // The é would be cut in two.
  EXPECT_EQ(LabelText(text), std::string(63, 'x'));
  EXPECT_EQ(LabelText(absl::StrCat(std::string(62, 'x'), "\xc3\xa9!")),
            absl::StrCat(std::string(62, 'x'), "\xc3\xa9"));
}

}  // namespace
}  // namespace causeway::server
