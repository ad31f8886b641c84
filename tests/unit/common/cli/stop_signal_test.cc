#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "common/cli/command_line.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

// The lowest number is taken first where several signals wait, so these ascend.
[[noreturn]] void Send(std::initializer_list<int> numbers) {
  for (const int number : numbers) kill(getpid(), number);
  for (;;) pause();
}

TEST(StopSignalDeathTest, TheFirstOneIsTakenAndTheSecondOneEndsTheProcess) {
  const auto two_signals = [](int first, int second) {
    signal(first, SIG_DFL);
    StopSignal stop;
    kill(getpid(), first);
    if (!stop.Wait(absl::InfiniteDuration())) _exit(1);
    Send({second});
  };
  EXPECT_EXIT(two_signals(SIGTERM, SIGTERM), ::testing::ExitedWithCode(128 + SIGTERM), "");
  EXPECT_EXIT(two_signals(SIGTERM, SIGINT), ::testing::ExitedWithCode(128 + SIGINT), "");
  EXPECT_EXIT(two_signals(SIGQUIT, SIGTERM), ::testing::ExitedWithCode(128 + SIGTERM), "");
}

// A session that ends hangs up on its processes, and its shell does so once more.
TEST(StopSignalDeathTest, AHangupStopsOnceHoweverOftenItComes) {
  const auto hang_up = [] {
    for (const int taken : {SIGHUP, SIGINT}) signal(taken, SIG_DFL);
    StopSignal stop;
    kill(getpid(), SIGHUP);
    if (!stop.Wait(absl::InfiniteDuration())) _exit(1);
    Send({SIGHUP, SIGHUP, SIGINT, SIGTERM});
  };
  EXPECT_EXIT(hang_up(), ::testing::ExitedWithCode(128 + SIGTERM), "");
}

// A batch system warns by one of them, a limit of processor time every second, and SIGTERM follows.
TEST(StopSignalDeathTest, WhatBatchSystemsSendStopsOnceHoweverOftenItComes) {
  for (const int number : {SIGUSR1, SIGUSR2, SIGXCPU}) {
    const auto warn = [number] {
      for (const int taken : {number, SIGQUIT}) signal(taken, SIG_DFL);  // A script's & ignores it.
      StopSignal stop;
      kill(getpid(), number);
      if (!stop.Wait(absl::InfiniteDuration())) _exit(1);
      for (int i = 0; i < 3; ++i) kill(getpid(), number);
      Send({SIGQUIT, SIGTERM});
    };
    EXPECT_EXIT(warn(), ::testing::ExitedWithCode(128 + SIGTERM), "") << number;
  }
}

TEST(StopSignalDeathTest, AHangupThatNohupIgnoresStopsNothing) {
  const auto hang_up = [] {
    signal(SIGHUP, SIG_IGN);
    StopSignal stop;
    sigset_t taken;
    if (pthread_sigmask(SIG_BLOCK, nullptr, &taken) != 0 || sigismember(&taken, SIGTERM) != 1) {
      _exit(2);
    }
    kill(getpid(), SIGHUP);
    _exit(sigismember(&taken, SIGHUP) || stop.Wait(absl::ZeroDuration()) ? 1 : 0);
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
}  // namespace causeway
