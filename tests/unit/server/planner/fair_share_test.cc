#include "server/planner/fair_share.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::vector<double> Rates(const std::vector<Flow>& flows, const std::vector<End>& ends,
                          const std::vector<double>& ports) {
  return FairRates(flows, ends, ports);
}

TEST(FairShare, EqualSendersShareEqually) {
  EXPECT_THAT(Rates({{0, 0}, {1, 0}, {2, 0}}, {{10, 1}, {10, 1}, {10, 2}}, {8}),
              ElementsAre(2, 2, 2));
}

TEST(FairShare, WhatASlowSenderLeavesTheOthersGet) {
  EXPECT_THAT(Rates({{0, 0}, {1, 0}, {2, 0}}, {{100, 1}, {1, 2}, {100, 1}}, {10}),
              ElementsAre(4, 1, 4));
}

TEST(FairShare, NobodyGetsMoreThanItsLimit) {
  EXPECT_THAT(Rates({{0, 0}, {1, 0}}, {{3, 1}, {4, 1}}, {100}), ElementsAre(3, 4));
  EXPECT_THAT(Rates({{0, 0}, {1, 0}}, {{3, 1}, {kInfinite, 1}}, {kInfinite}),
              ElementsAre(3, kInfinite));
  EXPECT_THAT(Rates({}, {{3, 1}}, {100}), IsEmpty());
}

TEST(FairShare, OneSendersFlowsShareItsLink) {
  EXPECT_THAT(Rates({{0, 0}, {0, 1}}, {{6, 1}}, {100, 100}), ElementsAre(3, 3));
}

TEST(FairShare, WhatOnePortDoesNotTakeGoesToAnother) {
  EXPECT_THAT(Rates({{0, 0}, {0, 1}}, {{6, 1}}, {1, 100}), ElementsAre(1, 5));
  // Port 0 gives two ends 1 each; end 0 has 5 left for port 1, which gives 4 to it and 4 to end 1.
  EXPECT_THAT(Rates({{0, 0}, {0, 1}, {1, 0}, {1, 1}}, {{6, 1}, {6, 1}}, {2, 8}),
              ElementsAre(1, 4, 1, 4));
}

}  // namespace
}  // namespace causeway::server
