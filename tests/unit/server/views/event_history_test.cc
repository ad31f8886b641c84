#include "server/views/event_history.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/common/telemetry/awaited_events.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Messages(const v1::ListEventsResponse& past) {
  std::vector<std::string> messages;
  for (const v1::RunEvent& event : past.events()) messages.push_back(event.message());
  return messages;
}

class EventHistoryTest : public ::testing::Test {
 protected:
  FakeClock clock_{absl::FromUnixSeconds(1'700'000'000)};
  AwaitedEvents log_;
  TemporaryFolder folder_;
};

TEST_F(EventHistoryTest, HandsEventsOnAndKeepsTheNewest) {
  EventHistory history(&log_, &clock_, /*capacity=*/2);
  for (const char* const message : {"one", "two", "three"}) {
    history.Record("worker_joined", message, {{"worker", "a"}});
  }
  EXPECT_EQ(log_.all().size(), 3U);
  const v1::ListEventsResponse past = history.List(0);
  EXPECT_THAT(Messages(past), ElementsAre("two", "three"));
  EXPECT_EQ(past.events(0).number(), 2);
  EXPECT_EQ(past.events(0).event(), "worker_joined");
  EXPECT_EQ(past.events(0).time(), "2023-11-14T22:13:20+00:00");
}

TEST_F(EventHistoryTest, TellsOnlyWhatIsNewerThanWhatTheReaderHas) {
  EventHistory history(&log_, &clock_);
  for (const char* const message : {"one", "two", "three"}) history.Record("paused", message, {});
  EXPECT_THAT(Messages(history.List(2)), ElementsAre("three"));
  EXPECT_THAT(Messages(history.List(3)), ElementsAre());
  EXPECT_THAT(Messages(history.List(1000)), ElementsAre());
}

TEST_F(EventHistoryTest, ShortensWhatAWorkerMadeLong) {
  EventHistory history(&log_, &clock_);
  history.Record("worker_left", std::string(1 << 20, 'x'), {});
  const std::string message = history.List(0).events(0).message();
  EXPECT_EQ(message.size(), 1024U);
  EXPECT_TRUE(message.ends_with("xx..."));
}

TEST_F(EventHistoryTest, NamesTheFieldsThatAreTooLargeToKeepAndKeepsTheOthers) {
  EventHistory history(&log_, &clock_);
  const std::vector<std::string> many(300, "a worker");
  history.Record("round_closed", "everybody",
                 {{"fragment", 3}, {"contributors", many}, {"reason", std::string(1900, 'x')}});
  history.Record("round_closed", "nearly", {{"reason", std::string(2034, 'x')}});
  const v1::ListEventsResponse all = history.List(0);
  const auto large = nlohmann::json::parse(all.events(0).fields_json());
  EXPECT_EQ(large["fragment"], 3);
  EXPECT_EQ(large["reason"], std::string(1900, 'x'));
  EXPECT_EQ(large["left_out"], nlohmann::json({"contributors"}));
  EXPECT_EQ(large.size(), 3U);
  EXPECT_EQ(nlohmann::json::parse(all.events(1).fields_json()),
            nlohmann::json({{"reason", std::string(2034, 'x')}}));
}

TEST_F(EventHistoryTest, RemembersLongEventsOfFormerProcesses) {
  const std::string path = folder_.File("events.jsonl");
  const nlohmann::json line = {{"event", "round_closed"},
                               {"message", "everybody"},
                               {"time", "2023-01-01T00:00:00+00:00"},
                               {"round", 7},
                               {"contributors", std::vector<std::string>(5000, "a worker")}};
  WriteText(path, line.dump() + "\n");
  EventHistory history(&log_, &clock_);
  ASSERT_TRUE(history.Restore(*FileSystem::Real(), path).ok());
  ASSERT_EQ(history.List(0).events_size(), 1);
  EXPECT_EQ(history.List(0).events(0).fields_json(), R"({"left_out":["contributors"],"round":7})");
}

TEST_F(EventHistoryTest, BeginsWithTheEventsOfFormerProcesses) {
  const std::string path = folder_.File("events.jsonl");
  const std::string text =
      R"({"event":"worker_joined","message":"first","time":"2023-01-01T00:00:00+00:00"})"
      "\n"
      "this is no event\n"
      R"(["nor this"])"
      "\n"
      R"({"event":7,"message":"nor this","time":"2023-01-01T00:00:00+00:00"})"
      "\n"
      R"({"event":"worker_left","message":"second","time":"2023-01-01T00:00:01+00:00"})"
      "\n"
      R"({"event":"cut_o)";
  WriteText(path, text);
  EventHistory history(&log_, &clock_);
  ASSERT_TRUE(history.Restore(*FileSystem::Real(), path).ok());
  history.Record("recovered", "third", {});
  EXPECT_THAT(Messages(history.List(0)), ElementsAre("first", "second", "third"));
  EXPECT_EQ(log_.all().size(), 1U);
}

TEST_F(EventHistoryTest, ReadsOnlyTheEndOfALongFile) {
  const std::string path = folder_.File("events.jsonl");
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    absl::StrAppend(&text, R"({"event":"pace_set","message":")", i,
                    R"(","time":"2023-01-01T00:00:00+00:00"})", "\n");
  }
  WriteText(path, text);
  EventHistory history(&log_, &clock_, /*capacity=*/3);
  ASSERT_TRUE(history.Restore(*FileSystem::Real(), path).ok());
  EXPECT_THAT(Messages(history.List(0)), ElementsAre("4997", "4998", "4999"));
}

TEST_F(EventHistoryTest, NeedsNoFile) {
  EventHistory history(&log_, &clock_);
  EXPECT_TRUE(history.Restore(*FileSystem::Real(), folder_.File("none")).ok());
  EXPECT_EQ(history.List(0).events_size(), 0);
}

TEST_F(EventHistoryTest, ListsEventsWithTheirLevelsAndFieldsForOtherPrograms) {
  const std::string path = folder_.File("events.jsonl");
  const std::string text =
      R"({"event":"worker_lost","level":"warn","message":"old","time":"2023-01-01T00:00:00+00:00",)"
      R"("worker":"a"})"
      "\n";
  WriteText(path, text);
  EventHistory history(&log_, &clock_);
  ASSERT_TRUE(history.Restore(*FileSystem::Real(), path).ok());
  history.Record("failed", "not \xff UTF-8", {{"code", 7}});
  history.Record("paused", "too much", {{"reason", std::string(5000, 'x')}});
  const v1::ListEventsResponse all = history.List(0);
  EXPECT_EQ(all.process_unix_ms(), 1'700'000'000'000);
  ASSERT_EQ(all.events_size(), 3);
  EXPECT_EQ(all.events(0).level(), "warn");
  EXPECT_EQ(all.events(0).fields_json(), R"({"worker":"a"})");
  EXPECT_EQ(all.events(1).level(), "error");
  EXPECT_EQ(all.events(1).message(), "not \xef\xbf\xbd UTF-8");
  EXPECT_EQ(all.events(1).fields_json(), R"({"code":7})");
  EXPECT_EQ(all.events(2).fields_json(), R"({"left_out":["reason"]})");
  EXPECT_EQ(history.List(2).events_size(), 1);
}

}  // namespace
}  // namespace causeway::server
