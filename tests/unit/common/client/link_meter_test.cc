#include "common/client/link.h"

#include "gtest/gtest.h"

namespace causeway {
namespace {

TEST(LinkMeterTest, GoodputIsOfTheTimeInWhichSomethingWasUnderWay) {
  FakeClock clock;
  LinkMeter meter(&clock);
  clock.Advance(absl::Hours(1));
  meter.Begin(Direction::kUp);
  clock.Advance(absl::Seconds(2));
  meter.Add(Direction::kUp, 2000);
  const LinkMeter::Sample sample = meter.End(Direction::kUp, true);
  clock.Advance(absl::Hours(1));
  EXPECT_EQ(sample.bytes, 2000);
  EXPECT_EQ(sample.time, absl::Seconds(2));
  EXPECT_EQ(meter.goodput_bytes_per_second(Direction::kUp), 1000);
  EXPECT_EQ(meter.goodput_bytes_per_second(Direction::kDown), 0) << "not known yet";
}

TEST(LinkMeterTest, ObjectsThatShareTheLinkAreMeasuredTogether) {
  FakeClock clock;
  LinkMeter meter(&clock);
  meter.Begin(Direction::kDown);
  meter.Begin(Direction::kDown);
  meter.Add(Direction::kDown, 3000);
  clock.Advance(absl::Seconds(1));
  meter.End(Direction::kDown, true);
  EXPECT_EQ(meter.goodput_bytes_per_second(Direction::kDown), 3000);
  meter.Add(Direction::kDown, 1000);
  clock.Advance(absl::Seconds(1));
  const LinkMeter::Sample second = meter.End(Direction::kDown, true);
  EXPECT_EQ(second.bytes, 1000);
  EXPECT_EQ(second.time, absl::Seconds(1));
  EXPECT_EQ(meter.goodput_bytes_per_second(Direction::kDown), 0.75 * 3000 + 0.25 * 1000);
  EXPECT_EQ(meter.bytes(Direction::kDown), 4000);
}

TEST(LinkMeterTest, AnObjectThatIsGivenUpCountsWithTheNext) {
  FakeClock clock;
  LinkMeter meter(&clock);
  meter.Begin(Direction::kUp);
  meter.Add(Direction::kUp, 500);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(meter.End(Direction::kUp, false).bytes, 0);
  meter.Begin(Direction::kUp);
  meter.Add(Direction::kUp, 500);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(meter.End(Direction::kUp, true).bytes, 1000);
}

TEST(LinkMeterTest, AReportHasWhatWasCounted) {
  FakeClock clock;
  LinkMeter meter(&clock);
  meter.AddResent(3);
  meter.AddResume();
  meter.AddBlocked(absl::Milliseconds(1500));
  v1::LinkReport report;
  meter.Report(report);
  EXPECT_EQ(report.resent_chunks(), 3);
  EXPECT_EQ(report.resumes(), 1);
  EXPECT_EQ(report.send_blocked_seconds(), 1.5);
}

}  // namespace
}  // namespace causeway
