#include "worker/member/run_telemetry.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/common/telemetry/http_client.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RunTelemetryTest : public testing::Test {
 protected:
  RunTelemetry::Options Options() {
    RunTelemetry::Options options;
    options.output = folder_.File("");
    options.worker_id = "paris";
    options.file_system = FileSystem::Real();
    options.clock = &clock_;
    return options;
  }
  // Serves on a port of its own, which is returned.
  int Serve(std::unique_ptr<RunTelemetry>& telemetry) {
    RunTelemetry::Options options = Options();
    options.metrics_address = "127.0.0.1:0";
    options.metrics_address_file = folder_.File("address");
    telemetry = Open(std::move(options));
    const std::string address = *FileSystem::Real()->ReadFile(folder_.File("address"));
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
    return port;
  }
  static std::unique_ptr<RunTelemetry> Open(RunTelemetry::Options options) {
    auto telemetry = RunTelemetry::Open(std::move(options));
    EXPECT_TRUE(telemetry.ok()) << telemetry.status();
    return *std::move(telemetry);
  }

  const TemporaryFolder folder_;
  FakeClock clock_;
};

TEST_F(RunTelemetryTest, MetricsAreServedAsSoonAsItIsOpenAndFollowTheTraining) {
  std::unique_ptr<RunTelemetry> telemetry;
  const int port = Serve(telemetry);
  EXPECT_EQ(HttpGet(port, "/healthz").status, 200);
  EXPECT_THAT(HttpGet(port, "/metrics").body, HasSubstr("causeway_training_step 0\n"));
  ASSERT_TRUE(telemetry->Begin("run-1", /*budget_steps=*/100, /*first_step=*/0).ok());
  WorkerFigures figures;
  figures.heartbeat.set_step(3);
  figures.gradient_norm = 0.5;
  ASSERT_TRUE(telemetry->Update(figures).ok());
  ASSERT_TRUE(telemetry->Evaluated(3, 2.25).ok());
  const HttpAnswer answer = HttpGet(port, "/metrics");
  EXPECT_EQ(answer.headers.at("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(answer.body, HasSubstr("causeway_training_step 3\n"));
  EXPECT_THAT(answer.body, HasSubstr("causeway_training_budget_steps 100\n"));
  EXPECT_THAT(answer.body, HasSubstr("causeway_training_gradient_norm 0.5\n"));
  EXPECT_THAT(answer.body, HasSubstr("causeway_training_eval_loss 2.25\n"));
  EXPECT_THAT(answer.body, HasSubstr("{run=\"run-1\",worker=\"paris\"} 1\n"));
  EXPECT_THAT(answer.body, Not(HasSubstr("causeway_training_learning_rate")));
  EXPECT_THAT(answer.body, Not(HasSubstr("causeway_training_steps_before_wait")));
  // The next step does not forget the evaluation.
  figures.heartbeat.set_step(4);
  figures.heartbeat.set_late_answers(2);
  figures.heartbeat.set_steps_before_wait(1);
  ASSERT_TRUE(telemetry->Update(figures).ok());
  EXPECT_THAT(telemetry->MetricsText(), HasSubstr("causeway_training_late_answers 2\n"));
  EXPECT_THAT(telemetry->MetricsText(), HasSubstr("causeway_training_steps_before_wait 1\n"));
  telemetry->SetStepsBeforeWait(0);
  EXPECT_THAT(telemetry->MetricsText(), HasSubstr("causeway_training_steps_before_wait 0\n"));
  EXPECT_THAT(telemetry->MetricsText(), HasSubstr("causeway_training_eval_loss 2.25\n"));
}

TEST_F(RunTelemetryTest, AStepThatHangsIsUnhealthyAndWaitingForOthersIsNot) {
  std::unique_ptr<RunTelemetry> telemetry;
  const int port = Serve(telemetry);
  clock_.Advance(absl::Hours(5));
  EXPECT_EQ(HttpGet(port, "/healthz").status, 200) << "it waits to be welcome";
  telemetry->StepBegins(1);
  clock_.Advance(absl::Hours(2));
  EXPECT_EQ(HttpGet(port, "/healthz").status, 200) << "nobody knows how long a first step takes";
  WorkerFigures figures;
  figures.heartbeat.set_inner_step_seconds(2);
  ASSERT_TRUE(telemetry->Update(figures).ok());
  telemetry->StepBegins(7);
  clock_.Advance(absl::Minutes(9));
  EXPECT_EQ(HttpGet(port, "/healthz").status, 200);
  clock_.Advance(absl::Minutes(1));
  const HttpAnswer stuck = HttpGet(port, "/healthz");
  EXPECT_EQ(stuck.status, 503);
  EXPECT_THAT(stuck.body, HasSubstr("step 7 has been computing for 10m"));
  telemetry->StepEnds();
  EXPECT_EQ(HttpGet(port, "/healthz").status, 200);
  // Large models have steps of minutes.
  figures.heartbeat.set_inner_step_seconds(60);
  ASSERT_TRUE(telemetry->Update(figures).ok());
  telemetry->StepBegins(8);
  clock_.Advance(absl::Minutes(29));
  EXPECT_EQ(HttpGet(port, "/healthz").status, 200);
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(HttpGet(port, "/healthz").status, 503);
}

TEST_F(RunTelemetryTest, IsReadyWhileTheSessionsStreamStands) {
  std::unique_ptr<RunTelemetry> telemetry;
  const int port = Serve(telemetry);
  EXPECT_THAT(HttpGet(port, "/readyz").body, HasSubstr("not welcomed"));
  telemetry->SetAttached(true);
  EXPECT_EQ(HttpGet(port, "/readyz").status, 200);
  telemetry->SetAttached(false);
  const HttpAnswer answer = HttpGet(port, "/readyz");
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, HasSubstr("no connection to the coordinator"));
  EXPECT_EQ(HttpGet(port, "/healthz").status, 200) << "starting anew would not help";
}

TEST_F(RunTelemetryTest, APortThatIsTakenRefusesTheStartByItsFlag) {
  const auto taken = HttpListener::Open("127.0.0.1:0");
  ASSERT_TRUE(taken.ok());
  RunTelemetry::Options options = Options();
  options.metrics_address = taken->address();
  const auto telemetry = RunTelemetry::Open(std::move(options));
  EXPECT_EQ(telemetry.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(telemetry.status().message()), HasSubstr("--metrics: "));
}

TEST_F(RunTelemetryTest, EventsLeaveNoFileBeforeTheWorkerIsWelcome) {
  const auto telemetry = Open(Options());
  telemetry->Record("session_broke", "not welcome yet", {{"code", "UNAVAILABLE"}});
  EXPECT_FALSE(FileSystem::Real()->Exists(folder_.File("events.jsonl")));
  ASSERT_TRUE(telemetry->Begin("run-1", 100, 0).ok());
  telemetry->Record("attached", "attached", {{"incarnation", 1}});
  EXPECT_THAT(*FileSystem::Real()->ReadFile(folder_.File("events.jsonl")),
              HasSubstr("\"event\":\"attached\""));
  EXPECT_THAT(telemetry->MetricsText(),
              HasSubstr("causeway_events_total{event=\"session_broke\"} 1\n"));
  EXPECT_THAT(telemetry->MetricsText(), HasSubstr("causeway_events_total{event=\"left\"} 0\n"));
}

TEST_F(RunTelemetryTest, CurvesOfWorkersThatShareAFolderAreApart) {
  RunTelemetry::Options options = Options();
  options.tensorboard = folder_.File("curves");
  const auto telemetry = Open(std::move(options));
  ASSERT_TRUE(telemetry->Begin("run-1", 100, 0).ok());
  WorkerFigures figures;
  figures.heartbeat.set_step(1);
  ASSERT_TRUE(telemetry->Update(figures).ok());
  const auto files = FileSystem::Real()->List(folder_.File("curves/paris"));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->size(), 1U);
}

}  // namespace
}  // namespace causeway::worker
