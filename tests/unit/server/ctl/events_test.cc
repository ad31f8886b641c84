#include "server/ctl/commands.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/common/base/from_text.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Events named by their second, numbered from `number` on.
v1::ListEventsResponse Answer(int64_t process, int64_t number, const std::vector<int>& seconds) {
  v1::ListEventsResponse response;
  response.set_process_unix_ms(process);
  for (const int second : seconds) {
    v1::RunEvent& event = *response.add_events();
    event.set_number(number++);
    event.set_time(absl::StrCat("2026-11-22T04:10:", second, "+00:00"));
    event.set_event("paused");
    event.set_message(absl::StrCat(second));
  }
  return response;
}

std::vector<std::string> Messages(const std::optional<EventCursor::News>& news) {
  std::vector<std::string> messages;
  if (!news.has_value()) return {"ask again"};
  for (const v1::RunEvent& event : news->events) messages.push_back(event.message());
  return messages;
}

TEST(EventCursorTest, ShowsEveryEventOnce) {
  EventCursor cursor;
  EXPECT_EQ(cursor.after(), 0);
  EXPECT_THAT(Messages(cursor.Take(Answer(1, 1, {10, 11}))), ElementsAre("10", "11"));
  EXPECT_EQ(cursor.after(), 2);
  EXPECT_THAT(Messages(cursor.Take(Answer(1, 3, {}))), IsEmpty());
  EXPECT_THAT(Messages(cursor.Take(Answer(1, 3, {12}))), ElementsAre("12"));
}

TEST(EventCursorTest, SaysHowManyCameTooFastToBeKept) {
  EventCursor cursor;
  cursor.Take(Answer(1, 1, {10}));
  const auto news = cursor.Take(Answer(1, 5, {14, 15}));
  EXPECT_EQ(news->missed, 3);
  EXPECT_THAT(Messages(news), ElementsAre("14", "15"));
}

TEST(EventCursorTest, GoesOnWithAnotherProcessAfterTheLastEventSeen) {
  EventCursor cursor;
  cursor.Take(Answer(1, 8, {10, 11}));
  EXPECT_THAT(Messages(cursor.Take(Answer(2, 10, {}))), ElementsAre("ask again"));
  EXPECT_EQ(cursor.after(), 0);
  // It has read what its predecessor wrote, and has had an event of its own.
  const auto news = cursor.Take(Answer(2, 1, {10, 11, 12, 13}));
  EXPECT_THAT(Messages(news), ElementsAre("12", "13"));
  EXPECT_EQ(news->missed, 0);
  EXPECT_EQ(cursor.after(), 4);
}

TEST(EventCursorTest, KnowsAnEventAgainThatTheFileStampedALittleLater) {
  EventCursor cursor;
  cursor.Take(Answer(1, 1, {10}));
  cursor.Take(Answer(2, 2, {}));
  v1::ListEventsResponse again = Answer(2, 1, {10, 11});
  again.mutable_events(0)->set_time("2026-11-22T04:10:10.002+00:00");
  EXPECT_THAT(Messages(cursor.Take(again)), ElementsAre("11"));
}

TEST(EventCursorTest, GoesByTheTimeWhereTheLastEventSeenIsKeptNoMore) {
  EventCursor cursor;
  cursor.Take(Answer(1, 1, {20}));
  cursor.Take(Answer(2, 2, {}));
  EXPECT_THAT(Messages(cursor.Take(Answer(2, 1, {19, 21, 22}))), ElementsAre("21", "22"));
}

TEST(EventCursorTest, AProcessThatHasNothingNewSaysNothing) {
  EventCursor cursor;
  cursor.Take(Answer(1, 1, {20}));
  cursor.Take(Answer(2, 2, {}));
  EXPECT_THAT(Messages(cursor.Take(Answer(2, 1, {19, 20}))), IsEmpty());
  cursor.Take(Answer(3, 1, {}));
  EXPECT_THAT(Messages(cursor.Take(Answer(3, 1, {}))), IsEmpty());
}

v1::RunEvent Lost() {
  return FromText<v1::RunEvent>(R"(
      number: 7 time: "2026-11-22T04:10:00.25+00:00" event: "worker_lost" level: "warn"
      message: "the lease of worker a has ended" fields_json: '{"worker":"a"}')");
}

TEST(EventTextTest, ALineForPeopleHasTimeLevelAndSentence) {
  EXPECT_EQ(EventText(Lost(), absl::UTCTimeZone()),
            "2026-11-22 04:10:00  warn   the lease of worker a has ended\n");
}

TEST(EventTextTest, WhatAWorkerWroteGivesTheTerminalNoOrders) {
  v1::RunEvent event = Lost();
  event.set_message("\033[2Jgone\nroot:");
  event.set_time("\033]0;x");
  EXPECT_EQ(EventText(event, absl::UTCTimeZone()), "?]0;x  warn   ?[2Jgone?root:\n");
}

TEST(EventTextTest, ALineForProgramsIsThatOfTheEventsFile) {
  const auto line = nlohmann::json::parse(EventJson(Lost()));
  EXPECT_EQ(line, nlohmann::json({{"time", "2026-11-22T04:10:00.25+00:00"},
                                  {"event", "worker_lost"},
                                  {"level", "warn"},
                                  {"message", "the lease of worker a has ended"},
                                  {"worker", "a"}}));
  v1::RunEvent hostile = Lost();
  hostile.set_fields_json("[1, 2");
  EXPECT_EQ(nlohmann::json::parse(EventJson(hostile))["event"], "worker_lost");
  hostile.set_fields_json(R"({"event":"run_finished"})");
  EXPECT_EQ(nlohmann::json::parse(EventJson(hostile))["event"], "worker_lost");
}

TEST(EventTextTest, LevelsAreRanked) {
  EXPECT_LT(LevelRank("info"), LevelRank("warn"));
  EXPECT_LT(LevelRank("warn"), LevelRank("error"));
  EXPECT_EQ(LevelRank("debug"), -1);
}

}  // namespace
}  // namespace causeway::server
