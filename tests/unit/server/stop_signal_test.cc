#include "server/commands.h"

#include <cerrno>

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

// A session that ends hangs up on its processes, and its shell does so once more.
TEST(StopSignalDeathTest, AHangupStopsOnceHoweverOftenItComes) {
  const auto hang_up = [] {
    StopSignal stop;
    raise(SIGHUP);
    if (!stop.Wait(absl::ZeroDuration())) _exit(1);
    raise(SIGHUP);
    raise(SIGTERM);
    raise(SIGHUP);
    raise(SIGINT);
    _exit(2);
  };
  EXPECT_EXIT(hang_up(), ::testing::ExitedWithCode(128 + SIGINT), "");
}

TEST(StopSignalDeathTest, AHangupThatNohupIgnoresStopsNothing) {
  const auto hang_up = [] {
    signal(SIGHUP, SIG_IGN);
    StopSignal stop;
    raise(SIGHUP);
    _exit(stop.Wait(absl::ZeroDuration()) ? 1 : 0);
  };
  EXPECT_EXIT(hang_up(), ::testing::ExitedWithCode(0), "");
}

TEST(StopSignalDeathTest, ALogWithoutAReaderIsAnErrorOfTheWriteAlone) {
  const auto write_to_nobody = [] {
    const StopSignal stop;
    int ends[2];
    if (pipe(ends) != 0) _exit(1);
    close(ends[0]);
    _exit(write(ends[1], "line", 4) < 0 && errno == EPIPE ? 0 : 2);
  };
  EXPECT_EXIT(write_to_nobody(), ::testing::ExitedWithCode(0), "");
}

TEST(StopSignalDeathTest, WithoutASignalItSaysSo) {
  EXPECT_EXIT(_exit(StopSignal().Wait(absl::ZeroDuration()) ? 1 : 0), ::testing::ExitedWithCode(0),
              "");
}

}  // namespace
}  // namespace causeway::server
