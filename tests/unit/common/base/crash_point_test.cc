#include "common/base/crash_point.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace causeway {
namespace {

// The variable is read once per process: each case runs in one of its own.
class CrashPointDeathTest : public testing::Test {
 protected:
  CrashPointDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

void Pass(const char* variable, const char* point, int times) {
  setenv(kCrashVariable, variable, /*overwrite=*/1);
  for (int i = 0; i < times; ++i) CrashPoint(point);
  _exit(0);
}

TEST_F(CrashPointDeathTest, KillsTheProcessWhereItWasTold) {
  EXPECT_EXIT(Pass("after_row_commit", "after_row_commit", 1), testing::KilledBySignal(SIGKILL),
              "");
}

TEST_F(CrashPointDeathTest, CountsItsPasses) {
  EXPECT_EXIT(Pass("after_row_commit:3", "after_row_commit", 2), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(Pass("after_row_commit:3", "after_row_commit", 3), testing::KilledBySignal(SIGKILL),
              "");
}

TEST_F(CrashPointDeathTest, OtherPointsAndNoVariableDoNothing) {
  EXPECT_EXIT(Pass("after_row_commit", "before_row_commit", 9), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(Pass("", "before_row_commit", 9), testing::ExitedWithCode(0), "");
}

TEST_F(CrashPointDeathTest, ANameOrCountThatMeansNothingEndsTheProgram) {
  for (const char* variable : {"after_lunch", "after_row_commit:0", "after_row_commit:x"}) {
    EXPECT_EXIT(Pass(variable, "after_row_commit", 1), testing::ExitedWithCode(2),
                "crash_point.h names");
  }
}

}  // namespace
}  // namespace causeway
