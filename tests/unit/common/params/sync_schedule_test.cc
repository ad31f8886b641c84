#include "common/params/sync_schedule.h"

#include <map>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

using ::testing::IsEmpty;

TEST(SyncSchedule, SendsAsOftenAsThePaperSays) {
  // Layers, shortest and longest distance between two sends for H = 100 and three blocks each.
  for (const auto& [layers, shortest, longest] :
       {std::tuple(24, 11, 12), {48, 5, 6}, {108, 2, 3}}) {
    const SyncSchedule schedule(layers / 3 + 1, 100, 5);
    int64_t last = 0;
    int64_t low = 100, high = 0;
    for (int64_t step = 1; step <= 400; ++step) {
      const auto sends = schedule.SendsAfter(step);
      if (sends.empty()) continue;
      EXPECT_EQ(sends.size(), 1U) << "step " << step;
      low = std::min(low, step - last);
      high = std::max(high, step - last);
      last = step;
    }
    EXPECT_EQ(low, shortest) << layers;
    EXPECT_EQ(high, longest) << layers;
  }
}

TEST(SyncSchedule, NothingHappensBeforeTheFirstStep) {
  const SyncSchedule schedule(4, 8, 3);
  for (const int64_t step : {-20, -8, -1, 0}) {
    EXPECT_THAT(schedule.SendsAfter(step), IsEmpty());
    EXPECT_THAT(schedule.MergesAfter(step), IsEmpty());
    EXPECT_EQ(schedule.RoundsSentBy(0, step), 0);
    EXPECT_EQ(schedule.RoundsMergedBy(0, step), 0);
  }
}

// The worker's loop of docs/algorithm.md, literally: one fragment's countdown and what is in
// flight, advanced step by step.
struct LiteralWorker {
  LiteralWorker(int fragments, int interval, int overlap) : h(interval), tau(overlap) {
    for (int p = 0; p < fragments; ++p) {
      offsets.push_back((p + 1) * h / fragments);
      rounds.push_back(0);
    }
  }
  void Step() {
    ++t;
    sends.clear();
    merges.clear();
    for (int p = 0; p < static_cast<int>(offsets.size()); ++p) {
      const auto at = static_cast<size_t>(p);
      if (t >= offsets[at] && (t - offsets[at]) % h == 0) {
        sends.push_back({p, ++rounds[at]});
        in_flight.emplace(std::pair(t + tau, p), rounds[at]);
      }
    }
    while (!in_flight.empty() && in_flight.begin()->first.first == t) {
      merges.push_back({in_flight.begin()->first.second, in_flight.begin()->second});
      in_flight.erase(in_flight.begin());
    }
  }
  const int h, tau;
  int64_t t = 0;
  std::vector<int> offsets;
  std::vector<int64_t> rounds;
  std::map<std::pair<int64_t, int>, int64_t> in_flight;  // (merge step, fragment) -> round.
  std::vector<SyncEvent> sends, merges;
};

TEST(SyncSchedule, EqualsTheLiteralLoopForManyConfigurations) {
  size_t most_in_flight = 0;
  for (const int h : {1, 2, 3, 5, 7, 10, 30, 100}) {
    for (const int fragments : {1, 2, 3, 4, 5, 9, 10, 17, 37, 100}) {
      if (fragments > h) continue;
      for (const int tau : {0, 1, 2, 5, 9, h / fragments, h / 2, h - 1}) {
        if (tau >= h) continue;
        SCOPED_TRACE(testing::Message() << "H " << h << " F " << fragments << " tau " << tau);
        const SyncSchedule schedule(fragments, h, tau);
        LiteralWorker worker(fragments, h, tau);
        std::vector<int64_t> merged(static_cast<size_t>(fragments));
        for (int64_t t = 1; t <= 3 * h + 5; ++t) {
          worker.Step();
          ASSERT_EQ(schedule.SendsAfter(t), worker.sends) << "step " << t;
          ASSERT_EQ(schedule.MergesAfter(t), worker.merges) << "step " << t;
          for (const SyncEvent& merge : worker.merges) {
            merged[static_cast<size_t>(merge.fragment)] = merge.round;
          }
          most_in_flight = std::max(most_in_flight, worker.in_flight.size());
          for (int p = 0; p < fragments; ++p) {
            const auto at = static_cast<size_t>(p);
            ASSERT_EQ(schedule.RoundsSentBy(p, t), worker.rounds[at]) << "step " << t;
            ASSERT_EQ(schedule.RoundsMergedBy(p, t), merged[at]) << "step " << t;
            // One fragment is never in flight twice.
            ASSERT_LE(worker.rounds[at] - merged[at], 1);
          }
        }
      }
    }
  }
  EXPECT_EQ(most_in_flight, 99U);  // F = H = 100, tau = 99: the loop above saw real overlap.
}

TEST(SyncSchedule, RoundsSentByIsTheInverseOfSendStep) {
  const SyncSchedule schedule(7, 25, 11);
  for (int p = 0; p < 7; ++p) {
    EXPECT_EQ(schedule.SendStep(p, 1), schedule.Offset(p));
    for (const int64_t round : {int64_t{1}, int64_t{2}, int64_t{50}, int64_t{1} << 40}) {
      const int64_t step = schedule.SendStep(p, round);
      EXPECT_EQ(schedule.RoundsSentBy(p, step), round);
      EXPECT_EQ(schedule.RoundsSentBy(p, step - 1), round - 1);
      EXPECT_EQ(schedule.RoundsSentBy(p, step + 24), round);
      EXPECT_EQ(schedule.MergeStep(p, round), step + 11);
      EXPECT_EQ(schedule.RoundsMergedBy(p, step + 11), round);
      EXPECT_EQ(schedule.RoundsMergedBy(p, step + 10), round - 1);
    }
  }
}

}  // namespace
}  // namespace causeway
