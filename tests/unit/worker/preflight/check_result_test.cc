#include "worker/preflight/preflight.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::worker {
namespace {

TEST(CheckResult, ALineHasTheMarkTheNameTheFindingAndBelowItTheRemedy) {
  EXPECT_EQ(FormatCheck(Passed("tcp", "connected")), "ok    tcp            connected");
  EXPECT_EQ(FormatCheck(Skipped("rate up", "needs a coordinator")),
            "-     rate up        needs a coordinator");
  EXPECT_EQ(FormatCheck(Failed("disk", "full", "make room")),
            "FAIL  disk           full\n                     -> make room");
  EXPECT_EQ(FormatCheck(Warned("clock", "off", "use NTP")),
            "warn  clock          off\n                     -> use NTP");
}

TEST(CheckResult, TheVerdictCountsAndSaysWhereToBegin) {
  const CheckResult ok = Passed("a", "");
  const CheckResult warning = Warned("b", "", "");
  const CheckResult failure = Failed("disk", "", "");
  const CheckResult other = Failed("data", "", "");
  EXPECT_EQ(FormatVerdict(std::vector{ok, ok}), "This site can join: 2 ok.");
  EXPECT_EQ(FormatVerdict(std::vector{ok, warning, Skipped("c", "")}),
            "This site can join: 1 ok, 1 warning, 1 not checked.");
  EXPECT_EQ(FormatVerdict(std::vector{ok, failure, warning, warning, other}),
            "This site cannot join yet: 2 failed, 1 ok, 2 warnings. Begin with \"disk\".");
  EXPECT_FALSE(AnyFailed(std::vector{ok, warning}));
  EXPECT_TRUE(AnyFailed(std::vector{ok, failure}));
}

TEST(CheckResult, TheJsonHasEveryCheckWithItsValuesAndUnits) {
  CheckResult rate = Passed("rate up", "fast");
  rate.values = {{"rate", 1e6, "bytes/s"}};
  const nlohmann::json json = ToJson(std::vector{rate, Failed("disk", "full", "make room")});
  EXPECT_FALSE(json.at("passed").get<bool>());
  EXPECT_EQ(json.at("checks").at(0).at("status"), "ok");
  EXPECT_EQ(json.at("checks").at(0).at("values").at("rate").at("value"), 1e6);
  EXPECT_EQ(json.at("checks").at(0).at("values").at("rate").at("unit"), "bytes/s");
  EXPECT_EQ(json.at("checks").at(1).at("name"), "disk");
  EXPECT_EQ(json.at("checks").at(1).at("status"), "failed");
  EXPECT_EQ(json.at("checks").at(1).at("remedy"), "make room");
  EXPECT_TRUE(ToJson(std::vector{Skipped("a", "")}).at("passed").get<bool>());
}

TEST(CheckResult, NumbersAreWrittenWithThreeDigitsAndTheirUnit) {
  EXPECT_EQ(FormatRate(125e6), "1.00 Gbit/s");
  EXPECT_EQ(FormatRate(101.5e6), "812 Mbit/s");
  EXPECT_EQ(FormatRate(12.5), "0.10 kbit/s");
  EXPECT_EQ(FormatBytes(0), "0.00 B");
  EXPECT_EQ(FormatBytes(1.4e9), "1.40 GB");
  EXPECT_EQ(FormatBytes(66.54e9), "66.5 GB");
  EXPECT_EQ(FormatTime(absl::Milliseconds(101)), "101 ms");
  EXPECT_EQ(FormatTime(absl::Seconds(90)), "90.0 s");
  EXPECT_EQ(FormatTime(absl::Hours(48)), "48.0 h");
  EXPECT_EQ(FormatTime(absl::Minutes(5)), "5.00 min");
}

}  // namespace
}  // namespace causeway::worker
