#include <atomic>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/no_threads.h"

namespace causeway {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 4));

TEST_P(ThreadPoolTest, RunsEveryTaskOnceForAnyNumberOfTasks) {
  ThreadPool pool(GetParam());
  pool.ParallelFor(-3, [](int64_t) { FAIL(); });
  for (const int64_t tasks : {0, 1, 2, 3, 4, 5, 7, 64, 1000, 20'000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
    pool.ParallelFor(tasks, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
    for (size_t i = 0; i < runs.size(); ++i) {
      ASSERT_EQ(runs[i].load(), 1) << "task " << i << " of " << tasks;
    }
  }
}

// Plain, unsynchronized writes: the thread sanitizer would report a loop that returns too early.
TEST_P(ThreadPoolTest, WhatTasksWroteIsVisibleAfterTheLoopAndInTheNextOne) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(64);
  std::iota(values.begin(), values.end(), 0);
  std::vector<int64_t> mirrored(values.size());
  for (int loop = 0; loop < 200; ++loop) {
    pool.ParallelFor(64, [&](int64_t i) {
      mirrored[static_cast<size_t>(i)] = values[static_cast<size_t>(63 - i)] + 1;
    });
    pool.ParallelFor(64, [&](int64_t i) {
      values[static_cast<size_t>(i)] = mirrored[static_cast<size_t>(63 - i)];
    });
    ASSERT_EQ(values[0], loop + 1);
    ASSERT_EQ(values[63], 63 + loop + 1);
  }
}

TEST_P(ThreadPoolTest, ServesThousandsOfLoopsOfChangingSize) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> sum = 0;
  int64_t expected = 0;
  for (int64_t loop = 0; loop < 5000; ++loop) {
    const int64_t tasks = loop % 9;
    pool.ParallelFor(tasks, [&](int64_t i) { sum += i + 1; });
    expected += tasks * (tasks + 1) / 2;
    ASSERT_EQ(sum.load(), expected) << loop;
  }
}

TEST_P(ThreadPoolTest, MayBeDestroyedRightAfterALoop) {
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> runs = 0;
    {
      ThreadPool pool(GetParam());
      if (round % 3 != 0) pool.ParallelFor(8, [&](int64_t) { ++runs; });
    }
    ASSERT_EQ(runs.load(), round % 3 != 0 ? 8 : 0);
  }
}

TEST_P(ThreadPoolTest, OnePoolMayRunLoopsInsideAnotherPoolsTasks) {
  ThreadPool outer(GetParam());
  std::vector<int64_t> sums(6);
  outer.ParallelFor(6, [&](int64_t i) {
    ThreadPool inner(2);
    std::atomic<int64_t> sum = 0;
    inner.ParallelFor(10 + i, [&](int64_t j) { sum += j; });
    sums[static_cast<size_t>(i)] = sum;
  });
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(sums[static_cast<size_t>(i)], (10 + i) * (9 + i) / 2);
  }
}

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
