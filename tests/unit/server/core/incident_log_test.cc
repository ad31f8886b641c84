
#include "server/core/incident_log.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

class IncidentLogTest : public testing::Test {
 protected:
  AwaitedEvents events_;
  FakeClock clock_;
  IncidentLog log_{&events_, &clock_};
};

TEST_F(IncidentLogTest, WhoIsRefusedGainsNothingByOtherNames) {
  v1::Join join;
  for (int i = 0; i < 100; ++i) {
    join.set_worker_id(std::to_string(i));
    log_.JoinRefused(join, absl::PermissionDeniedError("no"));
  }
  EXPECT_EQ(events_.Count("join_refused"), static_cast<int>(kEventsAtOnce));
}

TEST_F(IncidentLogTest, ADiskThatFillsIsRecordedWhenItBeginsAndWhenItIsOver) {
  log_.NoteRoom(absl::OkStatus());
  EXPECT_EQ(events_.Count("store_has_room"), 0);
  for (int i = 0; i < 3; ++i) log_.NoteRoom(absl::ResourceExhaustedError("full"));
  log_.NoteRoom(absl::InternalError("says nothing of room"));
  EXPECT_EQ(events_.Count("store_low"), 1);
  EXPECT_EQ(events_.Count("store_has_room"), 0);
  for (int i = 0; i < 3; ++i) log_.NoteRoom(absl::OkStatus());
  EXPECT_EQ(events_.Count("store_has_room"), 1);
}

TEST_F(IncidentLogTest, ARefusedSnapshotIsRecordedOnceUntilItIsSaved) {
  const absl::Status full = absl::ResourceExhaustedError("full");
  for (int i = 0; i < 3; ++i) log_.SnapshotRefused(/*fragment=*/0, full);
  log_.SnapshotSaved(/*fragment=*/1, /*version=*/7);
  log_.SnapshotRefused(/*fragment=*/0, full);
  EXPECT_EQ(events_.Count("snapshot_refused"), 1);
  log_.SnapshotSaved(/*fragment=*/0, /*version=*/7);
  log_.SnapshotRefused(/*fragment=*/0, full);
  EXPECT_EQ(events_.Count("snapshot_refused"), 2);
}

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
