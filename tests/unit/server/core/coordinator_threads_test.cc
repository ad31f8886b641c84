// Every worker on a thread of its own, as in production; for the thread sanitizer, too.
#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

std::vector<float> RunThreads(int steps) {
  ToyRun run([](v1::RunConfig& config) { config.mutable_membership()->set_start_workers(3); });
  std::vector<std::unique_ptr<ToyWorker>> workers;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(std::make_unique<ToyWorker>(run, std::string(1, static_cast<char>('a' + i)),
                                                  static_cast<uint64_t>(i + 1)));
    EXPECT_TRUE(workers.back()->Enter().ok());
  }
  std::atomic<bool> done{false};
  std::thread ticker([&] {
    while (!done.load()) {
      run.coordinator->Tick();
      EXPECT_TRUE(run.coordinator->GetStatus().started());
    }
  });
  std::vector<std::thread> threads;
  for (const auto& worker : workers) {
    threads.emplace_back([&worker, steps] {
      for (int i = 0; i < steps; ++i) {
        worker->Train();
        EXPECT_TRUE(worker->SendDue().ok());
        EXPECT_TRUE(worker->MergeDue().ok());
        EXPECT_TRUE(worker->Heartbeat().ok());
      }
      EXPECT_TRUE(worker->Leave(v1::Leave::FINISHED).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  ticker.join();
  EXPECT_TRUE(run.coordinator->Finished());
  for (const auto& worker : workers) EXPECT_EQ(worker->published(), workers[0]->published());
  EXPECT_TRUE(run.coordinator->Shutdown().ok());
  EXPECT_EQ(run.store.summary()["hash_mismatches"], 0);
  EXPECT_EQ(run.hash_checks(), 3 * run.store.summary()["rounds"].get<int64_t>());
  return workers[0]->published();
}

TEST(CoordinatorThreadsTest, TheOrderOfArrivalChangesNoBit) {
  EXPECT_EQ(RunThreads(25), RunThreads(25));
}

}  // namespace
}  // namespace causeway::server
