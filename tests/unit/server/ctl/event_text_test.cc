#include "server/ctl/commands.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/common/base/from_text.h"

namespace causeway::server {
namespace {

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
