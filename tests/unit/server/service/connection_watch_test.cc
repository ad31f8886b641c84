#include "server/service/connection_watch.h"

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

constexpr int64_t kMuch = int64_t{512} << 10;

TEST(ConnectionWatch, WhoSendsMuchWithoutAnAdmittedCallIsEnded) {
  ConnectionWatch watch;
  EXPECT_EQ(watch.Judge({.received_bytes = kMuch}, false, absl::Seconds(1)), "");
  EXPECT_EQ(watch.Judge({.received_bytes = kMuch}, false, absl::Milliseconds(1900)), "");
  EXPECT_NE(watch.Judge({.received_bytes = kMuch}, false, absl::Seconds(2)), "");
}

TEST(ConnectionWatch, ACallThatIsAdmittedInTimeClearsIt) {
  ConnectionWatch watch;
  EXPECT_EQ(watch.Judge({.received_bytes = kMuch}, false, absl::Seconds(1)), "");
  EXPECT_EQ(watch.Judge({.received_bytes = 2 * kMuch}, true, absl::Seconds(2)), "");
  EXPECT_EQ(watch.Judge({.received_bytes = 3 * kMuch}, true, absl::Seconds(60)), "");
}

TEST(ConnectionWatch, AStrangerWhoSendsMoreThanAnyClientCanIsEndedAtOnce) {
  ConnectionWatch watch;
  constexpr int64_t kMost = ConnectionWatch::kMostStrangerBytes;
  EXPECT_EQ(watch.Judge({.received_bytes = kMost}, false, absl::Seconds(1)), "");
  EXPECT_EQ(watch.Judge({.received_bytes = 9 * kMost}, true, absl::Seconds(1)), "");
  EXPECT_NE(watch.Judge({.received_bytes = kMost + 1}, false, absl::Seconds(1)), "");
}

TEST(ConnectionWatch, AHandshakeMayTakeItsTime) {
  ConnectionWatch watch;
  for (int second = 0; second < 60; ++second) {
    EXPECT_EQ(watch.Judge({.received_bytes = ConnectionWatch::kStrangerBytes}, false,
                          absl::Seconds(second)),
              "");
  }
}

TEST(ConnectionWatch, WhoAsksAndDoesNotReadIsEnded) {
  ConnectionWatch watch;
  EXPECT_EQ(watch.Judge({.received_bytes = kMuch, .reads = false}, true, absl::Seconds(1)), "");
  EXPECT_EQ(
      watch.Judge({.received_bytes = 2 * kMuch, .reads = false}, true, absl::Milliseconds(1500)),
      "");
  EXPECT_NE(watch.Judge({.received_bytes = 2 * kMuch, .reads = false}, true, absl::Seconds(2)), "");
}

TEST(ConnectionWatch, WhoIsSlowOrSilentIsNot) {
  ConnectionWatch slow;
  ConnectionWatch silent;
  for (int second = 0; second < 60; ++second) {
    // Now and then it reads.
    EXPECT_EQ(slow.Judge({.received_bytes = second * kMuch, .reads = second % 2 == 0}, true,
                         absl::Milliseconds(500 * second)),
              "");
    EXPECT_EQ(silent.Judge({.received_bytes = kMuch, .reads = false}, true, absl::Seconds(second)),
              "");
  }
}

}  // namespace
}  // namespace causeway::server
