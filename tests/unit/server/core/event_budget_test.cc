#include "server/core/incident_log.h"

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

TEST(EventBudgetTest, ABurstPassesAndTheRestIsCounted) {
  EventBudget budget;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(budget.Take("late", "a", absl::ZeroDuration()), 0);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(budget.Take("late", "a", absl::Seconds(1)), std::nullopt);
  }
  EXPECT_EQ(budget.Take("late", "a", absl::Seconds(6)), 7) << "one in five seconds";
  EXPECT_EQ(budget.Take("late", "a", absl::Seconds(11)), 0);
}

TEST(EventBudgetTest, EveryKindAndEveryWorkerHasItsOwn) {
  EventBudget budget;
  for (int i = 0; i < 30; ++i) budget.Take("late", "a", absl::ZeroDuration());
  EXPECT_EQ(budget.Take("late", "b", absl::ZeroDuration()), 0);
  EXPECT_EQ(budget.Take("ready", "a", absl::ZeroDuration()), 0);
}

TEST(EventBudgetTest, WhoseNamesAreTooManyShareOne) {
  EventBudget budget;
  int recorded = 0;
  for (int i = 0; i < 10'000; ++i) {
    recorded += budget.Take("late", std::to_string(i), absl::ZeroDuration()).has_value();
  }
  EXPECT_LE(recorded, 4096 + 20);
}

}  // namespace
}  // namespace causeway::server
