#include "server/planner/rested_connections.h"

#include <limits>

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

// From sending to having all, without the way itself.
double Crossing(double bytes, double mbit_per_s, double round_trip_seconds, int connections = 1) {
  const double bit_per_s = 1e6 * mbit_per_s;
  return 8 * bytes / bit_per_s + RestedSeconds(bytes, bit_per_s, connections, round_trip_seconds);
}

// BBR's times over the emulated link (tests/wan), every two seconds on one connection.
TEST(RestedConnections, AreAsSlowAsMeasured) {
  EXPECT_NEAR(Crossing(2e3, 20, 0.6), 0.001, 0.011);
  EXPECT_NEAR(Crossing(13e3, 20, 0.6), 0.159, 0.01);
  EXPECT_NEAR(Crossing(27e3, 20, 0.6), 0.287, 0.01);
  EXPECT_NEAR(Crossing(51e3, 20, 0.6), 0.286, 0.02);
  EXPECT_NEAR(Crossing(1e6, 20, 0.6), 0.415, 0.02);
  EXPECT_NEAR(Crossing(100e3, 200, 0.1), 0.051, 0.005);
  EXPECT_NEAR(Crossing(1e6, 200, 0.1), 0.054, 0.005);
  EXPECT_NEAR(Crossing(25e3, 3, 0.1), 0.069, 0.005);
}

TEST(RestedConnections, TakeHalfARoundTripOfWhatTheyCarryHoweverFastTheLink) {
  EXPECT_NEAR(Crossing(1e6, 1e6, 0.2), 0.2 / 1.86, 0.001);
  EXPECT_NEAR(Crossing(1e6, 1e6, 0.2), Crossing(0.5e6, 1e6, 0.2), 0.001);
}

TEST(RestedConnections, CostNothingWhereTheLinkIsSlower) {
  EXPECT_EQ(RestedSeconds(1e6, 10e6, 1, 0.6), 0);
}

TEST(RestedConnections, CarryAShareEach) {
  // Three chunks on three connections: each as one alone.
  const double chunk = 1 << 20;
  EXPECT_NEAR(Crossing(3 * chunk, 1e6, 0.2, 3), Crossing(chunk, 1e6, 0.2, 1), 1e-4);
  EXPECT_EQ(RestedSeconds(chunk, 1e12, 0, 0.2), 0);
  EXPECT_EQ(RestedSeconds(chunk, std::numeric_limits<double>::infinity(), 4, 0.2), 0);
}

}  // namespace
}  // namespace causeway::server
