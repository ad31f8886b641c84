#include "server/service/probe_service.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

class ProbeGateTest : public ::testing::Test {
 protected:
  std::unique_ptr<ProbeGate::Stream> Enter(uint64_t measurement, const std::string& host) {
    absl::StatusOr<std::unique_ptr<ProbeGate::Stream>> stream = gate_.Enter(measurement, host);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return stream.ok() ? *std::move(stream) : nullptr;
  }

  const ProbeGate::Limits limits_ = {.streams = 2,
                                     .bytes = 1000,
                                     .time = absl::Seconds(10),
                                     .allowance = absl::Seconds(30),
                                     .share = 0.5};
  FakeClock clock_;
  ProbeGate gate_{clock_, limits_};
};

TEST_F(ProbeGateTest, ASecondMeasurementWaitsForTheFirst) {
  auto first = Enter(7, "a");
  for (const auto& [number, host] : {std::pair(8, "a"), std::pair(7, "b"), std::pair(8, "b")}) {
    const absl::Status refused = gate_.Enter(static_cast<uint64_t>(number), host).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("try again in 10 s"));
  }
  first.reset();
  EXPECT_NE(Enter(8, "b"), nullptr);
}

TEST_F(ProbeGateTest, AMeasurementHasABoundedNumberOfStreams) {
  const auto first = Enter(7, "a");
  auto second = Enter(7, "a");
  EXPECT_THAT(gate_.Enter(7, "a").status().message(), HasSubstr("at most 2 streams"));
  second.reset();
  EXPECT_NE(Enter(7, "a"), nullptr);
}

TEST_F(ProbeGateTest, TheBytesOfAllStreamsTogetherAreBounded) {
  const auto first = Enter(7, "a");
  const auto second = Enter(7, "a");
  EXPECT_TRUE(first->Take(600));
  EXPECT_TRUE(second->Take(400));
  EXPECT_FALSE(first->Take(1));
  EXPECT_FALSE(second->Take(0));
}

TEST_F(ProbeGateTest, AMeasurementEndsAtItsTimeAndTakesNoFurtherStreams) {
  const auto stream = Enter(7, "a");
  clock_.Advance(limits_.time - absl::Milliseconds(1));
  EXPECT_TRUE(stream->Take(1));
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_FALSE(stream->Take(1));
  EXPECT_TRUE(absl::IsResourceExhausted(gate_.Enter(7, "a").status()));
}

TEST_F(ProbeGateTest, AllMeasurementsTogetherTakeTheirShareOfTheTime) {
  const absl::Duration start = clock_.Monotonic();
  int done = 0;
  while (clock_.Monotonic() - start < absl::Hours(1)) {
    const auto stream = gate_.Enter(1, "a");
    clock_.Advance(stream.ok() ? limits_.time : absl::Seconds(1));
    done += stream.ok() ? 1 : 0;
  }
  // Half an hour of 10 s each, and what was free at the start.
  EXPECT_GE(done, 175);
  EXPECT_LE(done, 184);
}

TEST_F(ProbeGateTest, VeryManyShortMeasurementsAreNoWayAround) {
  int done = 0;
  while (done < 1000 && gate_.Enter(1, "a").ok()) ++done;
  EXPECT_EQ(done, 81);  // A quarter of a second each, until there is no room for a whole one.
  EXPECT_THAT(gate_.Enter(1, "a").status().message(), HasSubstr("try again in 1 s"));
}

TEST_F(ProbeGateTest, ANumberIsNeeded) {
  EXPECT_TRUE(absl::IsInvalidArgument(gate_.Enter(0, "a").status()));
}

}  // namespace
}  // namespace causeway::server
