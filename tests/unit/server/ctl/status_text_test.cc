#include "server/views/status_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/from_text.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::RunStatus SomeStatus() {
  auto status = FromText<v1::RunStatus>(R"TEXT(
      run_id: "first-1a2b" started: true run_step: 500 tokens: 1310000
      config {
        train { steps: 2000 batch_sequences: 8 } model { sequence_length: 128 }
        membership { start_workers: 2 max_workers: 4 }
      }
      workers {
        worker_id: "site-a" state: ACTIVE tokens_per_second: 20480 link { rtt_seconds: 0.0421 }
      }
      workers { worker_id: "site-b" state: ACTIVE tokens_per_second: 10240 }
      workers { worker_id: "site-c" state: LEFT tokens_per_second: 99000 }
      fragments {
        values: 1200000 published_version: 12 contributed: "site-a"
        waiting_for: "waiting for site-b (step 490 of 500)"
      })TEXT");
  const auto of_each = FromText<v1::WorkerStatus>(R"(
      step: 500 compute_utilization: 0.994 train_loss: 1.4321 bytes_up: 16500000 bytes_down: 950
      pace: 1 device: "cpu, 1 threads")");
  for (v1::WorkerStatus& worker : *status.mutable_workers()) worker.MergeFrom(of_each);
  return status;
}

TEST(StatusText, ATableAlignsItsColumns) {
  EXPECT_EQ(FormatTable({{"NAME", "N", "NOTE"}, {"a", "100", "x"}, {"longer", "7", ""}}),
            "NAME      N  NOTE\n"
            "a       100  x\n"
            "longer    7\n");
}

TEST(StatusText, NumbersHaveThreeDigits) {
  EXPECT_EQ(ShortNumber(0), "0");
  EXPECT_EQ(ShortNumber(950), "950");
  EXPECT_EQ(ShortNumber(999.6), "1.00k");
  EXPECT_EQ(ShortNumber(20'900), "20.9k");
  EXPECT_EQ(ShortNumber(1'310'000), "1.31M");
  EXPECT_EQ(ShortNumber(999'600'000), "1.00G");
  EXPECT_EQ(ShortBytes(12), "12 B");
  EXPECT_EQ(ShortBytes(16'500'000), "16.5 MB");
}

TEST(StatusText, DurationsHaveTheUnitThatMatters) {
  EXPECT_EQ(ShortDuration(absl::Seconds(12)), "12 s");
  EXPECT_EQ(ShortDuration(absl::Minutes(4)), "4 min");
  EXPECT_EQ(ShortDuration(absl::Minutes(190)), "3 h 10 min");
  EXPECT_EQ(ShortDuration(absl::Hours(52)), "2 d 4 h");
}

TEST(StatusText, TheSlowestActiveWorkerSetsTheTimeLeft) {
  v1::RunStatus status = SomeStatus();
  // 1500 steps at 10 a second.
  ASSERT_TRUE(TimeLeft(status).has_value());
  EXPECT_EQ(*TimeLeft(status), absl::Seconds(150));
  status.mutable_workers(1)->set_pace(2);  // It does every other step only.
  EXPECT_EQ(*TimeLeft(status), absl::Seconds(75));
  status.set_paused(true);
  EXPECT_FALSE(TimeLeft(status).has_value());
  status.set_paused(false);
  for (v1::WorkerStatus& worker : *status.mutable_workers()) worker.set_tokens_per_second(0);
  EXPECT_FALSE(TimeLeft(status).has_value());
}

TEST(StatusText, SaysWhatARunDoesWhoTakesPartAndWhyARoundWaits) {
  const std::string text = StatusText(SomeStatus());
  EXPECT_THAT(text, HasSubstr("run first-1a2b: training, step 500 of 2000 (25 %), about 3 min"));
  EXPECT_THAT(text, HasSubstr("2 of 4 workers, 30.7k tokens/s together, 1.31M tokens trained"));
  EXPECT_THAT(text, HasSubstr("12 rounds of 1 fragments; exchanged 49.5 MB up, 2.85 kB down"));
  EXPECT_THAT(text, HasSubstr("site-a  active   500     20.5k  99.4 %  1.432"));
  EXPECT_THAT(text, HasSubstr("42.1 ms"));
  EXPECT_THAT(text, HasSubstr("waiting for site-b (step 490 of 500)"));
  EXPECT_THAT(text, HasSubstr("1 more has left"));
  EXPECT_THAT(text, Not(HasSubstr("site-c")));
  EXPECT_THAT(WorkersText(SomeStatus(), /*all=*/true), HasSubstr("site-c"));
}

TEST(StatusText, ARegionsSitesStandBelowIt) {
  v1::RunStatus status = SomeStatus();
  v1::WorkerStatus& region = *status.mutable_workers(1);
  region.set_region(true);
  for (const char* const id : {"site-1", "inner/site\x1b[2J"}) {
    v1::SiteReport& site = *region.add_sites();
    site.set_worker_id(id);
    site.set_step(499);
    site.set_tokens_per_second(5120);
  }
  const std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("3 of 4 workers, 30.7k tokens/s together"));
  // Half of what the region does is each of its sites'.
  EXPECT_EQ(*TimeLeft(status), absl::Seconds(300));
  EXPECT_THAT(text, HasSubstr("site-b"));
  EXPECT_THAT(text, HasSubstr("  site-1"));
  EXPECT_THAT(text, HasSubstr("499"));
  EXPECT_THAT(text, HasSubstr("  inner/site"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  region.set_state(v1::WorkerStatus::LOST);
  EXPECT_THAT(StatusText(status), Not(HasSubstr("site-1")));
}

TEST(StatusText, LateAnswersAndTheStepsBeforeAWaitStandBelowTheWorkers) {
  v1::RunStatus status = SomeStatus();
  status.mutable_workers(0)->set_steps_before_wait(0);
  EXPECT_THAT(WorkersText(status, false), Not(HasSubstr("wait"))) << "nothing is late";
  status.mutable_workers(0)->set_late_answers(2);
  status.mutable_workers(1)->set_late_answers(1);
  status.mutable_workers(1)->set_steps_before_wait(1);
  status.mutable_workers(2)->set_late_answers(5);  // Has left.
  EXPECT_THAT(WorkersText(status, false),
              HasSubstr("(--all shows who)\n"
                        "site-a: 2 answers are late, and it waits\n"
                        "site-b: 1 answer is late; it trains on, 1 more step before it waits\n"));
  status.mutable_workers(1)->set_steps_before_wait(23);
  EXPECT_THAT(StatusText(status), HasSubstr("it trains on, 23 more steps before it waits\n"));
}

TEST(StatusText, WhatAWorkerSaysOfItselfGivesNoOrdersToTheTerminal) {
  v1::RunStatus status = SomeStatus();
  status.mutable_workers(0)->set_device("cpu\x1b]52;c;AAAA\a\nsite-x  active");
  EXPECT_THAT(WorkersText(status, false), HasSubstr("cpu?]52;c;AAAA??site-x  active\n"));
}

TEST(StatusText, ARunThatWaitsOrIsOverSaysSo) {
  v1::RunStatus status = SomeStatus();
  status.set_finished(true);
  EXPECT_THAT(RunText(status), HasSubstr(": finished, "));
  status.set_finished(false);
  status.set_started(false);
  status.clear_workers();
  EXPECT_THAT(RunText(status), HasSubstr(": waits for 2 workers, "));
  EXPECT_THAT(WorkersText(status, false), HasSubstr("no workers have joined yet"));
  status.add_workers()->set_state(v1::WorkerStatus::LEFT);
  EXPECT_EQ(WorkersText(status, false), "1 has left (--all shows who)\n");
}

TEST(StatusText, JsonHasEveryFieldUnderItsProtoName) {
  const std::string json = StatusJson(SomeStatus(), /*one_line=*/false);
  EXPECT_THAT(json, HasSubstr("\"run_id\": \"first-1a2b\""));
  EXPECT_THAT(json, HasSubstr("\"paused\": false"));
  EXPECT_THAT(json, HasSubstr("\"tokens_per_second\": 20480"));
}

}  // namespace
}  // namespace causeway::server
