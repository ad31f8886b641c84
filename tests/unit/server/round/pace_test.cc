#include "server/round/pace.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/round/member_table.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

Member PacedWorker(const std::string& id, double step_seconds, int64_t pace_milli = kPaceOne) {
  Member member = Active(id, 50);
  member.progress.inner_step_time = absl::Seconds(step_seconds);
  member.progress.pace_milli = pace_milli;
  return member;
}

TEST(PaceTest, AWorkerAtHalfSpeedGetsALittleMoreThanTwo) {
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 2), PacedWorker("c", 1)}), 4),
              ElementsAre(Pair("b", 2080)));
}

TEST(PaceTest, ThePaceIsBounded) {
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 100)}), 4),
              ElementsAre(Pair("b", 4000)));
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 100, 4000)}), 4), IsEmpty());
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 100, 6000)}), 4),
              ElementsAre(Pair("b", 4000)));
}

TEST(PaceTest, OffGivesNoPacesAndTakesBackThoseThereAre) {
  for (const double off : {0.0, 1.0}) {
    EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 2)}), off), IsEmpty());
    EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 2, 2000)}), off),
                ElementsAre(Pair("b", kPaceOne)));
  }
}

TEST(PaceTest, SmallDifferencesAreLeftAlone) {
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 1.03)}), 4), IsEmpty());
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 1.06)}), 4),
              ElementsAre(Pair("b", 1100)));
}

TEST(PaceTest, APaceStaysWhileTheMeasuredRatioTrembles) {
  for (const double ratio : {1.88, 1.95, 2.0, 2.1}) {
    EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", ratio, 2080)}), 4), IsEmpty())
        << ratio;
  }
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 2.2, 2080)}), 4),
              ElementsAre(Pair("b", 2290)));
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 1.5, 2080)}), 4),
              ElementsAre(Pair("b", 1560)));
}

TEST(PaceTest, APaceCloseToOneDoesNotComeAndGo) {
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 1.03, 1100)}), 4), IsEmpty());
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", 1.01, 1100)}), 4),
              ElementsAre(Pair("b", kPaceOne)));
}

TEST(PaceTest, AnOrderOnItsWayIsNotRepeated) {
  Member slow = PacedWorker("b", 2);
  slow.record.set_ordered_pace_milli(2080);
  slow.record.set_ordered_from_step(60);
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), slow}), 4), IsEmpty());
  slow.record.set_step(61);  // It should have obeyed.
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), slow}), 4), ElementsAre(Pair("b", 2080)));
}

TEST(PaceTest, WhoHasNoSpeedYetOrIsGoneIsComparedWithNobody) {
  Member dead = PacedWorker("a", 0.1);
  dead.record.set_state(v1::Member::LOST);
  EXPECT_THAT(NewPaces(Table({dead, PacedWorker("b", 1), PacedWorker("c", 0)}), 4), IsEmpty());
}

TEST(PaceTest, WhenTheFastestLeavesTheNextOneSetsThePace) {
  EXPECT_THAT(NewPaces(Table({PacedWorker("b", 2, 2080), PacedWorker("c", 4, 4000)}), 4),
              ElementsAre(Pair("b", kPaceOne), Pair("c", 2080)));
}

TEST(PaceTest, ANewPaceStartsWithThePeriod) {
  EXPECT_EQ(PaceStart(0, 30), 30);
  EXPECT_EQ(PaceStart(29, 30), 30);
  EXPECT_EQ(PaceStart(30, 30), 60);
}

}  // namespace
}  // namespace causeway::server
