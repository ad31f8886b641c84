#include "server/standby/standby_notes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

TEST(StandbyNotesTest, ACopyThatFollowsAndHasEverythingIsReady) {
  StandbyNotes notes;
  notes.Doing("asks for the run");
  EXPECT_EQ(notes.Ready().message(), "asks for the run");
  notes.Doing("follows a:1");
  notes.SetFollowing(true);
  notes.SetCoordinatorCommits(500);
  notes.SetCommits(300);
  EXPECT_EQ(notes.Get().behind, 200);
  EXPECT_EQ(notes.Ready().message(), "follows a:1, and is 200 commits behind");
  notes.SetCommits(499);
  EXPECT_TRUE(notes.Ready().ok());
  notes.SetFollowing(false);
  EXPECT_FALSE(notes.Ready().ok());
  EXPECT_EQ(notes.Get().behind, 1);
}

TEST(StandbyNotesTest, WithARegistryItMustBeInTheSet) {
  StandbyNotes notes;
  notes.Doing("follows a:1");
  notes.SetFollowing(true);
  notes.SetInSync(false);
  EXPECT_THAT(notes.Ready().message(), HasSubstr("not in sync yet"));
  notes.SetInSync(true);
  EXPECT_TRUE(notes.Ready().ok());
}

TEST(StandbyNotesTest, OneThatLeadsIsNotReadyBeforeItServes) {
  StandbyNotes notes;
  notes.SetFollowing(true);
  notes.SetInSync(true);
  notes.SetLeads();
  EXPECT_THAT(notes.Ready().message(), HasSubstr("opens its folder"));
}

}  // namespace
}  // namespace causeway::server
