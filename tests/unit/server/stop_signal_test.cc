#include "server/stop_signal.h"

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

TEST(StopSignalDeathTest, TheFirstOneIsTakenAndTheSecondOneEndsTheProcess) {
  const auto two_signals = [](int first, int second) {
    StopSignal stop;
    raise(first);
    if (!stop.Wait(absl::ZeroDuration())) _exit(1);
    raise(second);
    _exit(2);
  };
  EXPECT_EXIT(two_signals(SIGTERM, SIGTERM), ::testing::ExitedWithCode(128 + SIGTERM), "");
  EXPECT_EXIT(two_signals(SIGTERM, SIGINT), ::testing::ExitedWithCode(128 + SIGINT), "");
}

TEST(StopSignalDeathTest, WithoutASignalItSaysSo) {
  EXPECT_EXIT(_exit(StopSignal().Wait(absl::ZeroDuration()) ? 1 : 0), ::testing::ExitedWithCode(0),
              "");
}

}  // namespace
}  // namespace causeway::server
