#include "server/commands.h"

#include <cerrno>

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

TEST(StopSignalDeathTest, TheFirstOneIsTakenAndTheSecondOneEndsTheProcess) {
  const auto two_signals = [](int first, int second) {
    signal(first, SIG_DFL);
    StopSignal stop;
    raise(first);
    if (!stop.Wait(absl::ZeroDuration())) _exit(1);
    raise(second);
    _exit(2);
  };
  EXPECT_EXIT(two_signals(SIGTERM, SIGTERM), ::testing::ExitedWithCode(128 + SIGTERM), "");
  EXPECT_EXIT(two_signals(SIGTERM, SIGINT), ::testing::ExitedWithCode(128 + SIGINT), "");
  EXPECT_EXIT(two_signals(SIGQUIT, SIGTERM), ::testing::ExitedWithCode(128 + SIGTERM), "");
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

// A batch system warns by one of them, a limit of processor time every second, and SIGTERM follows.
TEST(StopSignalDeathTest, WhatBatchSystemsSendStopsOnceHoweverOftenItComes) {
  for (const int number : {SIGUSR1, SIGUSR2, SIGXCPU}) {
    const auto warn = [number] {
      for (const int taken : {number, SIGQUIT}) signal(taken, SIG_DFL);  // A script's & ignores it.
      StopSignal stop;
      raise(number);
      if (!stop.Wait(absl::ZeroDuration())) _exit(1);
      for (int i = 0; i < 3; ++i) raise(number);
      raise(SIGTERM);
      raise(number);
      raise(SIGQUIT);
      _exit(2);
    };
    EXPECT_EXIT(warn(), ::testing::ExitedWithCode(128 + SIGQUIT), "") << number;
  }
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
