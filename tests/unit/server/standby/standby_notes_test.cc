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
  notes.Set(&StandbyNotes::View::following, true);
  notes.Set(&StandbyNotes::View::coordinator_commits, 500);
  notes.Set(&StandbyNotes::View::commits, 300);
  EXPECT_EQ(notes.Get().behind(), 200);
  EXPECT_EQ(notes.Ready().message(), "follows a:1, and is 200 commits behind");
  notes.Set(&StandbyNotes::View::commits, 499);
  EXPECT_TRUE(notes.Ready().ok());
  notes.Set(&StandbyNotes::View::following, false);
  EXPECT_FALSE(notes.Ready().ok());
  EXPECT_EQ(notes.Get().behind(), 1);
}

TEST(StandbyNotesTest, WithARegistryItMustBeInTheSet) {
  StandbyNotes notes;
  notes.Doing("follows a:1");
  notes.Set(&StandbyNotes::View::following, true);
  notes.Set(&StandbyNotes::View::in_sync, false);
  EXPECT_THAT(notes.Ready().message(), HasSubstr("not in sync yet"));
  notes.Set(&StandbyNotes::View::in_sync, true);
  EXPECT_TRUE(notes.Ready().ok());
}

TEST(StandbyNotesTest, OneThatLeadsIsNotReadyBeforeItServes) {
  StandbyNotes notes;
  notes.Set(&StandbyNotes::View::following, true);
  notes.Set(&StandbyNotes::View::in_sync, true);
  notes.SetLeads();
  EXPECT_THAT(notes.Ready().message(), HasSubstr("opens its folder"));
}

}  // namespace
}  // namespace causeway::server
