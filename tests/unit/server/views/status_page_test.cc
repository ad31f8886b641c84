#include "server/views/status_page.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/views/event_history.h"
#include "server/views/run_history.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// A run of two workers whose coordinator has the history as its observer.
class StatusPageTest : public ::testing::Test {
 protected:
  StatusPageTest() {
    Coordinator::Options options;
    options.config = run_.coordinator->config();
    options.run_id = run_.coordinator->run_id();
    options.initial_values =
        ValuesOf(run_.coordinator->plan(), run_.coordinator->PublishedParameters());
    options.clock = &run_.clock;
    options.store = &store_;
    options.events = &events_;
    options.observers = {&history_};
    run_.coordinator = *Coordinator::Create(std::move(options));
    served_ = std::make_unique<ServedRun>(*run_.coordinator);
    api_ = std::make_unique<StatusApi>(
        StatusApi::Options{.run = served_.get(),
                           .history = &history_,
                           .events = &events_,
                           .clock = &run_.clock,
                           .status = [this] { return run_.coordinator->GetStatus(); }});
    AddStatusPage(*api_, handlers_);
  }

  HttpResponse Get(const std::string& path, std::map<std::string, std::string> query = {}) {
    HttpRequest request;
    request.path = path;
    request.query = std::move(query);
    return handlers_.at(path)(request);
  }
  json GetJson(const std::string& path, std::map<std::string, std::string> query = {}) {
    const HttpResponse response = Get(path, std::move(query));
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.content_type, "application/json");
    return json::parse(response.body);
  }
  // Both enter and train, with heartbeats, until a few rounds are published and applied.
  void Train(int steps) {
    for (ToyWorker* const worker : {&a_, &b_}) ASSERT_TRUE(worker->Enter().ok());
    for (int i = 0; i < steps; ++i) {
      run_.clock.Advance(absl::Seconds(1));
      TrainStep({&a_, &b_}, [&] { run_.coordinator->Tick(); });
      for (ToyWorker* const worker : {&a_, &b_}) ASSERT_TRUE(worker->Heartbeat().ok());
    }
  }

  ToyRun run_;
  MemoryStore store_;
  EventHistory events_{NullEventLog(), &run_.clock};
  RunHistory history_{{.clock = &run_.clock}};
  ToyWorker a_{run_, "a", 1};
  ToyWorker b_{run_, "b", 2};
  std::unique_ptr<ServedRun> served_;
  std::unique_ptr<StatusApi> api_;
  HttpHandlers handlers_;
};

TEST_F(StatusPageTest, ARunThatHasNotBegunSaysWhatItWaitsFor) {
  const json status = GetJson("/api/v1/status");
  EXPECT_EQ(status["run"]["state"], "waiting");
  EXPECT_EQ(status["run"]["start_workers"], 2);
  EXPECT_EQ(status["run"]["step"], 0);
  EXPECT_TRUE(status["run"]["held_out"].is_null());
  EXPECT_TRUE(status["run"]["seconds_left"].is_null());
  EXPECT_TRUE(status["bytes"]["times_fewer"].is_null());
  EXPECT_TRUE(status["coordinator"]["problem"].is_null());
  EXPECT_EQ(GetJson("/api/v1/workers")["workers"], json::array());
  EXPECT_EQ(GetJson("/api/v1/series")["workers"], json::array());
  EXPECT_EQ(GetJson("/api/v1/rounds")["rounds"], json::array());
  EXPECT_EQ(GetJson("/api/v1/rounds")["fragments"].size(), 3U);
  EXPECT_EQ(GetJson("/api/v1/events")["events"], json::array());
}

TEST_F(StatusPageTest, ATrainingRunShowsItsWorkersRoundsAndEvents) {
  Train(12);
  const json status = GetJson("/api/v1/status");
  EXPECT_EQ(status["run"]["state"], "training");
  EXPECT_EQ(status["run"]["step"], 12);
  EXPECT_GT(status["run"]["rounds"], 3);
  EXPECT_GT(status["bytes"]["up"], 0);

  run_.clock.Advance(absl::Seconds(2));
  const json workers = GetJson("/api/v1/workers")["workers"];
  ASSERT_EQ(workers.size(), 2U);
  EXPECT_EQ(workers[0]["id"], "a");
  EXPECT_EQ(workers[0]["state"], "active");
  EXPECT_EQ(workers[0]["step"], 12);
  EXPECT_EQ(workers[0]["heard_seconds_ago"], 2);
  EXPECT_TRUE(workers[0]["rtt_seconds"].is_null());

  const json series = GetJson("/api/v1/series")["workers"];
  ASSERT_EQ(series.size(), 2U);
  EXPECT_EQ(series[0]["step"].size(), series[0]["train_loss"].size());
  EXPECT_EQ(series[0]["step"].back(), 12);

  const json rounds = GetJson("/api/v1/rounds");
  ASSERT_GT(rounds["rounds"].size(), 3U);
  const json& first = rounds["rounds"][0];
  EXPECT_EQ(first["fragment"], 0);
  EXPECT_EQ(first["round"], 1);
  EXPECT_EQ(first["workers"].size(), 2U);
  EXPECT_GE(first["workers"][0]["arrived"], first["workers"][0]["sent"]);
  EXPECT_GE(first["published"], first["closed"]);
  EXPECT_GE(first["workers"][1]["applied"], first["published"]);
  EXPECT_THAT(first["reason"], "every expected worker contributed (2)");
  EXPECT_EQ(GetJson("/api/v1/rounds", {{"most", "2"}})["rounds"].size(), 2U);
  // An open round says at which step it is sent.
  const json& open = rounds["fragments"][0];
  EXPECT_GT(open["send_step"], 12 - 6);

  const json events = GetJson("/api/v1/events")["events"];
  ASSERT_GE(events.size(), 5U);
  EXPECT_EQ(events[0]["event"], "worker_joined");
  EXPECT_EQ(events[0]["level"], "info");
  const int64_t last = events.back()["number"];
  EXPECT_EQ(GetJson("/api/v1/events", {{"after", absl::StrCat(last - 1)}})["events"].size(), 1U);
}

TEST_F(StatusPageTest, BytesAreComparedWithGradientsAtEveryStep) {
  ASSERT_TRUE(a_.Enter().ok());
  ASSERT_TRUE(b_.Enter().ok());
  ASSERT_TRUE(a_.ReportSpeed(1, 1).ok());
  const v1::RunConfig& config = run_.coordinator->config();
  const double tokens = static_cast<double>(run_.coordinator->GetStatus().tokens());
  const double steps = tokens / static_cast<double>(config.train().batch_sequences() *
                                                    config.model().sequence_length());
  const double expected = 4 * static_cast<double>(run_.coordinator->plan().parameters()) * steps;
  ASSERT_GT(expected, 0);
  EXPECT_NEAR(GetJson("/api/v1/status")["bytes"]["data_parallel"].get<double>(), expected, 1);
}

TEST_F(StatusPageTest, WhatAWorkerSaysOfItselfStaysDataWhateverItIs) {
  v1::Join join = run_.MakeJoin("a", 1);
  join.set_device("</script><script>alert(1)</script>\xff\xfe");
  ASSERT_TRUE(run_.coordinator->members().Join(join, std::make_shared<RecordingSink>()).ok());
  const HttpResponse response = Get("/api/v1/workers");
  EXPECT_EQ(response.content_type, "application/json");
  const json worker = json::parse(response.body)["workers"][0];
  EXPECT_THAT(worker["device"], HasSubstr("<script>alert(1)</script>"));
}

TEST_F(StatusPageTest, ParametersThatAreNoNumbersAreRefusedWithTheReason) {
  for (const char* const most : {"0", "-1", "1025", "ten", "", "1e3", "99999999999999999999"}) {
    const HttpResponse response = Get("/api/v1/rounds", {{"most", most}});
    EXPECT_EQ(response.status, 400) << most;
    EXPECT_THAT(response.body, HasSubstr("most must be a whole number from 1 to 1024"));
  }
  EXPECT_EQ(Get("/api/v1/events", {{"after", "-1"}}).status, 400);
}

TEST_F(StatusPageTest, ACoordinatorThatSavesToStopIsAliveAndTakesNobody) {
  std::atomic<bool> stopping = false;
  AddHealthHandlers(*served_, stopping, handlers_);
  EXPECT_EQ(Get("/healthz").status, 200);
  EXPECT_EQ(Get("/readyz").status, 200);
  stopping = true;
  EXPECT_EQ(Get("/healthz").status, 200);
  EXPECT_EQ(Get("/readyz").status, 503);
  EXPECT_EQ(Get("/readyz").body, "the coordinator is stopping\n");
}

TEST_F(StatusPageTest, ThePageIsMadeOfFilesOfTheProgramAlone) {
  const HttpResponse page = Get("/");
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  EXPECT_EQ(page.cache_control, "no-cache");
  EXPECT_THAT(page.body, Not(HasSubstr("http")));
  // The policy allows no scripts or styles in the page itself.
  EXPECT_THAT(page.body, Not(HasSubstr("style=")));
  EXPECT_THAT(page.body, Not(HasSubstr("<style")));
  EXPECT_THAT(page.body, Not(HasSubstr("onclick")));
  for (const auto& [name, content] : EmbeddedPage()) {
    EXPECT_FALSE(content.empty()) << name;
    if (name == "index.html") continue;
    const HttpResponse file = Get(absl::StrCat("/assets/", name));
    EXPECT_EQ(file.body, content) << name;
    EXPECT_FALSE(file.etag.empty()) << name;
    if (name == "chart.js" || !absl::EndsWith(name, ".js")) continue;
    EXPECT_THAT(file.body, Not(HasSubstr("innerHTML"))) << name;
  }
  EXPECT_EQ(Get("/assets/style.css").content_type, "text/css; charset=utf-8");
  EXPECT_EQ(Get("/assets/icon.svg").content_type, "image/svg+xml");
  EXPECT_EQ(Get("/assets/app.js").content_type, "text/javascript; charset=utf-8");
  EXPECT_THAT(Get("/assets/chart.js").body, HasSubstr("Chart.js v3"));
}

TEST_F(StatusPageTest, AReportIsThePageWithTheAnswersInsideAndNothingBesideIt) {
  Train(12);
  events_.Record("worker_joined", "</script><script src=http://a/>", {});
  const std::string report = ReportPage(*api_, /*stopped=*/true);
  const std::string begin = "<script type=\"application/json\" id=\"answers\">";
  const size_t at = report.find(begin) + begin.size();
  const json inside = json::parse(report.substr(at, report.find("</script>", at) - at));
  for (const char* const name : {"status", "workers", "series"}) {
    EXPECT_EQ(inside[name], GetJson(absl::StrCat("/api/v1/", name))) << name;
  }
  EXPECT_EQ(inside["rounds"], GetJson("/api/v1/rounds", {{"most", "1024"}}));
  EXPECT_EQ(inside["events"], GetJson("/api/v1/events"));
  EXPECT_EQ(inside["events"]["events"].back()["message"], "</script><script src=http://a/>");
  EXPECT_EQ(inside["config"], Get("/api/v1/config").body);
  EXPECT_THAT(Get("/api/v1/config").body, HasSubstr("steps_between_syncs: 6"));
  EXPECT_EQ(Get("/api/v1/config").content_type, "text/plain; charset=utf-8");
  EXPECT_EQ(inside["stopped"], true);

  // Chart.js, the answers, the page's own; each one ends where it should.
  const std::vector<absl::string_view> parts = absl::StrSplit(report, "</script>");
  EXPECT_EQ(parts.size(), 4U);
  EXPECT_EQ(std::vector<absl::string_view>(absl::StrSplit(report, "<script")).size(), 4U);
  EXPECT_THAT(parts[0], HasSubstr("Chart.js v3"));
  EXPECT_THAT(parts[0], HasSubstr("color-scheme: light dark"));
  EXPECT_THAT(parts[2], HasSubstr("modules.timeline = "));
  EXPECT_THAT(report, HasSubstr("default-src 'none'"));
  EXPECT_THAT(report, Not(HasSubstr("=\"assets/")));

  const HttpResponse saved = Get("/report.html");  // While the run goes on.
  EXPECT_EQ(saved.content_type, "application/octet-stream");
  EXPECT_EQ(saved.body, ReportPage(*api_, /*stopped=*/false));
}

}  // namespace
}  // namespace causeway::server
