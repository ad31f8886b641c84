#include "common/base/thread_pool.h"

#include <atomic>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/no_threads.h"

namespace causeway {
namespace {

TEST(ThreadsForTest, ZeroIsOnePerCoreAndAnythingElseIsTaken) {
  EXPECT_EQ(*ThreadsFor(1), 1);
  EXPECT_EQ(*ThreadsFor(kMaxThreads), kMaxThreads);
  EXPECT_GE(*ThreadsFor(0), 1);
  EXPECT_LE(*ThreadsFor(0), kMaxThreads);
}

TEST(ThreadsForTest, AnAbsurdNumberIsRefusedWithTheRange) {
  for (const int asked : {-1, kMaxThreads + 1, 1'000'000}) {
    const absl::Status refused = ThreadsFor(asked).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(refused.message(), "0 .. 1024")) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), std::to_string(asked))) << refused;
  }
}

TEST(StartThreadTest, RunsWhatItWasGiven) {
  std::atomic<int> runs = 0;
  std::vector<std::thread> threads;
  EXPECT_TRUE(StartThreads(
                  3, [&] { ++runs; }, threads)
                  .ok());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(runs, 3);
}

TEST(StartThreadTest, AMachineWithoutThreadsIsAnErrorThatSaysWhatToDo) {
  const NoThreads none;
  const absl::Status status = StartThread([] { FAIL() << "it runs"; }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "ulimit -u")) << status;
}

TEST(StartThreadTest, APoolThatGotNoThreadsSaysSoAndStillDoesItsWork) {
  const NoThreads none;
  ThreadPool pool(4);
  EXPECT_EQ(pool.started().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.threads(), 1);
  int64_t sum = 0;
  pool.ParallelFor(100, [&](int64_t i) { sum += i; });
  EXPECT_EQ(sum, 4950);
}

}  // namespace
}  // namespace causeway
