#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/common/telemetry/http_client.h"
#include "worker/member/merge_record.h"
#include "worker/member/run_telemetry.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RunTelemetryTest : public testing::Test {
 protected:
  MemberOptions Options() {
    MemberOptions options;
    options.output = folder_.File("");
    options.worker_id = "paris";
    return options;
  }
  // Serves on a port of its own, which is returned.
  int Serve(std::unique_ptr<RunTelemetry>& telemetry) {
    MemberOptions options = Options();
    options.metrics_address = "127.0.0.1:0";
    options.metrics_address_file = folder_.File("address");
    telemetry = Open(options);
    const std::string address = *FileSystem::Real()->ReadFile(folder_.File("address"));
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
    return port;
  }
  std::unique_ptr<RunTelemetry> Open(const MemberOptions& options) {
    return RunTelemetry::Open(options, *FileSystem::Real(), clock_).value();
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
  const auto taken = HttpListener::Open("127.0.0.1:0").value();
  MemberOptions options = Options();
  options.metrics_address = taken.address();
  const auto telemetry = RunTelemetry::Open(options, *FileSystem::Real(), clock_);
  EXPECT_EQ(telemetry.status().code(), absl::StatusCode::kUnavailable);
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

using ::testing::EndsWith;

std::span<const uint8_t> Bytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

template <typename T>
T LittleEndian(absl::string_view bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

// Every event of a file, checksums verified by making each record again.
std::vector<tensorboard::Event> Read(const std::string& path) {
  const std::string text = *FileSystem::Real()->ReadFile(path);
  std::vector<tensorboard::Event> events;
  absl::string_view rest = text;
  while (!rest.empty()) {
    const auto length = LittleEndian<uint64_t>(rest);
    const absl::string_view data = rest.substr(12, length);
    EXPECT_EQ(rest.substr(0, length + 16), TensorBoardRecord(data));
    EXPECT_TRUE(events.emplace_back().ParseFromString(std::string(data)));
    rest.remove_prefix(length + 16);
  }
  return events;
}

TEST(Crc32c, HasTheValuesOfRfc3720) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283U);
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\0'))), 0x8A9136AAU);
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\xff'))), 0x62A8AB43U);
  EXPECT_EQ(Crc32c({}), 0U);
}

// RecordWriter of tensorboard 2.21 makes these bytes of the same event.
TEST(TensorBoardRecord, IsThatOfTensorBoard) {
  tensorboard::Event event;
  event.set_wall_time(1700000000.0);
  event.set_file_version("brain.Event:2");
  const std::string data = event.SerializeAsString();
  EXPECT_EQ(absl::BytesToHexString(data), "0900000040fc54d9411a0d627261696e2e4576656e743a32");
  EXPECT_EQ(absl::BytesToHexString(TensorBoardRecord(data)),
            "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d");
}

class TensorBoardWriterTest : public testing::Test {
 protected:
  std::unique_ptr<TensorBoardWriter> Create(int64_t first_step = 1) {
    return TensorBoardWriter::Create(*FileSystem::Real(), folder_.File("curves/a"), "a", first_step,
                                     clock_)
        .value();
  }
  const TemporaryFolder folder_;
  FakeClock clock_;
};

TEST_F(TensorBoardWriterTest, ScalarsOfAStepAreOneEvent) {
  const auto writer = Create();
  clock_.Advance(absl::Milliseconds(500));
  ASSERT_TRUE(writer->Add(7, {{"train/loss", 2.5}, {"train/learning_rate", 0.01}}).ok());
  const auto events = Read(writer->path());
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[2].step(), 7);
  EXPECT_EQ(events[2].wall_time(), 1'700'000'000.5);
  ASSERT_EQ(events[2].summary().value_size(), 2);
  EXPECT_EQ(events[2].summary().value(0).tag(), "train/loss");
  EXPECT_EQ(events[2].summary().value(0).simple_value(), 2.5F);
}

TEST_F(TensorBoardWriterTest, ASuccessorHasAFileOfItsOwnAndVoidsTheStepsThatItRepeats) {
  const auto first = Create();
  const auto second = Create(31);
  EXPECT_NE(first->path(), second->path());
  EXPECT_THAT(first->path(), EndsWith("events.out.tfevents.1700000000.a"));
  const auto events = Read(second->path());
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1].step(), 31);
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
}

TEST_F(TensorBoardWriterTest, WhatIsNotFiniteIsLeftOut) {
  const auto writer = Create();
  ASSERT_TRUE(writer
                  ->Add(1, {{"a", std::numeric_limits<double>::quiet_NaN()},
                            {"b", std::numeric_limits<double>::infinity()},
                            {"c", 1}})
                  .ok());
  const auto events = Read(writer->path());
  ASSERT_EQ(events.back().summary().value_size(), 1);
  EXPECT_EQ(events.back().summary().value(0).tag(), "c");
}

using ::testing::ElementsAre;

std::vector<int64_t> Steps(StepCounter& counter, int64_t end) {
  std::vector<int64_t> steps;
  while (counter.step() < end) steps.push_back(counter.Advance(end));
  return steps;
}

TEST(StepCounterTest, AnInnerStepCoversThePaceWhoseFractionIsCarriedOnAndEndsAtTheBudget) {
  StepCounter plain(3);
  EXPECT_THAT(Steps(plain, 6), ElementsAre(4, 5, 6));
  StepCounter fraction(0, 2500);
  EXPECT_THAT(Steps(fraction, 10), ElementsAre(2, 5, 7, 10));
  StepCounter thrice(0, 3000);
  EXPECT_THAT(Steps(thrice, 7), ElementsAre(3, 6, 7));
}

TEST(StepCounterTest, APaceHoldsFromTheNextInnerStep) {
  StepCounter counter(0, 1500);
  EXPECT_EQ(counter.Advance(100), 1);
  EXPECT_EQ(counter.carry_milli(), 500);
  counter.SetPace(1500);
  EXPECT_EQ(counter.carry_milli(), 500) << "the same order again changes nothing";
  counter.SetPace(2000);
  EXPECT_THAT(Steps(counter, 7), ElementsAre(3, 5, 7));
}

TEST(StepCounterTest, ContinuesWhereItWasStopped) {
  StepCounter whole(0, 1300);
  const std::vector<int64_t> all = Steps(whole, 40);
  StepCounter first(0, 1300);
  std::vector<int64_t> parts;
  for (int i = 0; i < 8; ++i) parts.push_back(first.Advance(40));
  StepCounter second(first.step(), first.pace_milli(), first.carry_milli());
  for (const int64_t step : Steps(second, 40)) parts.push_back(step);
  EXPECT_EQ(parts, all);
}

}  // namespace
}  // namespace causeway::worker
