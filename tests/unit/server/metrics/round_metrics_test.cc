#include "server/metrics/round_metrics.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

class RoundMetricsTest : public testing::Test {
 protected:
  static v1::PushHeader Header(const std::string& worker, int64_t round) {
    v1::PushHeader header;
    header.set_worker_id(worker);
    header.set_round(round);
    return header;
  }
  // Round `round` of fragment 0 with a and b, collected in 4 s and merged in half a second.
  static RoundRecord Round(int64_t round) {
    RoundRecord record;
    record.round = round;
    record.contributors = {"a", "b"};
    record.first_unix_s = 100;
    record.closed_unix_s = 104;
    record.published_unix_s = 104.5;
    return record;
  }
  std::string Text(const std::vector<int>& open = {}) {
    MetricPage page;
    metrics_.AddTo(page, open);
    return page.Text();
  }
  void ExpectPhase(const std::string& phase, const std::string& count, const std::string& sum) {
    const std::string text = Text();
    EXPECT_THAT(text, HasSubstr("seconds_count{phase=\"" + phase + "\"} " + count + "\n"));
    EXPECT_THAT(text, HasSubstr("seconds_sum{phase=\"" + phase + "\"} " + sum + "\n"));
  }

  FakeClock clock_;
  RoundMetrics metrics_{&clock_};
};

TEST_F(RoundMetricsTest, PhasesAreMeasuredFromOneEventToTheNext) {
  metrics_.OnPushBegun(Header("a", 1));
  clock_.Advance(absl::Seconds(2));
  metrics_.OnPushBegun(Header("a", 1));  // Another stream of the same object.
  metrics_.OnContributed(Header("a", 1), /*quarantined=*/false);
  ExpectPhase("transfer", "1", "2");
  metrics_.OnPublished(Round(1), {});
  ExpectPhase("collect", "1", "4");
  ExpectPhase("merge", "1", "0.5");
  clock_.Advance(absl::Seconds(3));
  metrics_.OnApplied("a", 0, 1);
  ExpectPhase("apply", "1", "3");
  metrics_.OnApplied("b", 0, 7);  // The round is long gone.
  ExpectPhase("apply", "1", "3");
}

TEST_F(RoundMetricsTest, ADeltaThatIsSentAgainInAnotherRoundIsMeasuredAnew) {
  metrics_.OnPushBegun(Header("a", 1));
  clock_.Advance(absl::Seconds(100));
  metrics_.OnPublished(Round(1), {"a"});  // Without it.
  metrics_.OnPushBegun(Header("a", 2));
  clock_.Advance(absl::Seconds(1));
  metrics_.OnContributed(Header("a", 2), /*quarantined=*/false);
  ExpectPhase("transfer", "1", "1");
}

TEST_F(RoundMetricsTest, ContributionsAreCountedByWhatCameOfThem) {
  metrics_.OnContributed(Header("a", 1), false);
  metrics_.OnContributed(Header("b", 1), false);
  metrics_.OnContributed(Header("c", 1), /*quarantined=*/true);
  metrics_.OnPublished(Round(1), {});
  metrics_.OnPublished(Round(2), {"c"});
  EXPECT_THAT(Text(), HasSubstr("causeway_contributions_total{outcome=\"merged\"} 4\n"));
  EXPECT_THAT(Text(), HasSubstr("causeway_contributions_total{outcome=\"quarantined\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("causeway_rounds_incomplete_total 1\n"));
}

TEST_F(RoundMetricsTest, TheOldestOpenRoundHasItsAge) {
  EXPECT_THAT(Text(), HasSubstr("causeway_round_oldest_open_seconds 0\n"));
  metrics_.OnContributed(Header("a", 1), false);
  clock_.Advance(absl::Seconds(30));
  EXPECT_THAT(Text({0}), HasSubstr("causeway_round_oldest_open_seconds 30\n"));
  EXPECT_THAT(Text({0}), HasSubstr("causeway_rounds_open 1\n"));
  metrics_.OnPublished(Round(1), {});
  EXPECT_THAT(Text(), HasSubstr("causeway_round_oldest_open_seconds 0\n"));
  metrics_.OnContributed(Header("a", 2), false);
  clock_.Advance(absl::Seconds(5));
  EXPECT_THAT(Text({0}), HasSubstr("causeway_round_oldest_open_seconds 5\n"));
}

TEST_F(RoundMetricsTest, ARoundThatWasOpenBeforeThisProcessCountsFromTheFirstLook) {
  EXPECT_THAT(Text({0}), HasSubstr("causeway_round_oldest_open_seconds 0\n"));
  clock_.Advance(absl::Seconds(40));
  EXPECT_THAT(Text({0}), HasSubstr("causeway_round_oldest_open_seconds 40\n"));
}

}  // namespace
}  // namespace causeway::server
