#include "server/standby/standbys.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/run_directory_store.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/common/telemetry/awaited_events.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class StandbysTest : public testing::Test {
 protected:
  FakeClock clock_;
  AwaitedEvents events_;
  Standbys standbys_{{.clock = &clock_, .events = &events_}};
};

TEST_F(StandbysTest, OneCopyMustHaveIt) {
  const int64_t a = standbys_.Attach("a", 5);
  standbys_.Attach("b", 3);
  EXPECT_TRUE(standbys_.WaitUntilHeld(5).ok());
  std::thread waits([&] { EXPECT_TRUE(standbys_.WaitUntilHeld(7).ok()); });
  standbys_.Acknowledge(a, 6);
  standbys_.Acknowledge(a, 7);
  waits.join();
}

TEST_F(StandbysTest, WhatACopyHasIsOnItsDiskWhenItIsAway) {
  const int64_t a = standbys_.Attach("a", 5);
  standbys_.Detach(a);
  EXPECT_TRUE(standbys_.WaitUntilHeld(5).ok());
  EXPECT_THAT(standbys_.Following(), IsEmpty());
}

TEST_F(StandbysTest, EveryCopyOfTheSetMustHaveIt) {
  const int64_t a = standbys_.Attach("a", 9);
  standbys_.Require({"a", "b"}, /*alone=*/false);
  bool told = false;
  std::thread waits([&] {
    EXPECT_TRUE(standbys_.WaitUntilHeld(4).ok());
    told = true;
  });
  standbys_.Acknowledge(a, 12);
  const int64_t b = standbys_.Attach("b", 3);
  EXPECT_FALSE(told);  // Whatever the thread has come to: b has 3.
  standbys_.Acknowledge(b, 4);
  waits.join();
  standbys_.Require({}, /*alone=*/false);
  EXPECT_TRUE(standbys_.WaitUntilHeld(1000).ok());
}

TEST_F(StandbysTest, ACopyThatBeganAnewHasWhatItSays) {
  standbys_.Require({"a"}, /*alone=*/false);
  standbys_.Attach("a", 9);
  EXPECT_TRUE(standbys_.WaitUntilHeld(9).ok());
  standbys_.Attach("a", 1);
  std::thread waits([&] { EXPECT_FALSE(standbys_.WaitUntilHeld(9).ok()); });
  standbys_.Close(absl::UnavailableError("over"));
  waits.join();
}

TEST_F(StandbysTest, AFormerStreamOfACopySaysNothingAnyMore) {
  const int64_t former = standbys_.Attach("a", 5);
  standbys_.Require({"a"}, /*alone=*/false);
  standbys_.Attach("a", 2);
  standbys_.Acknowledge(former, 100);
  ASSERT_EQ(standbys_.Following().size(), 1);
  EXPECT_EQ(standbys_.Following()[0].commits, 2);
}

TEST_F(StandbysTest, NothingIsToldOfThePastBeforeACopyHasIt) {
  standbys_.Begin(10);
  EXPECT_EQ(standbys_.MayTell().code(), absl::StatusCode::kUnavailable);
  const int64_t a = standbys_.Attach("a", 9);
  EXPECT_FALSE(standbys_.MayTell().ok());
  standbys_.Acknowledge(a, 10);
  EXPECT_TRUE(standbys_.MayTell().ok());
}

TEST_F(StandbysTest, AfterTheCloseNothingIsTold) {
  standbys_.Attach("a", 5);
  standbys_.Close(absl::UnavailableError("another one leads"));
  standbys_.Close(absl::UnavailableError("and again"));
  EXPECT_THAT(standbys_.WaitUntilHeld(1).message(), HasSubstr("another one leads"));
  EXPECT_THAT(standbys_.MayTell().message(), HasSubstr("another one leads"));
}

TEST_F(StandbysTest, WhoStopsWithoutACopyWaitsForNone) {
  const int64_t a = standbys_.Attach("a", 5);
  std::thread waits([&] { EXPECT_FALSE(standbys_.WaitUntilHeld(6).ok()); });
  standbys_.Stop();
  EXPECT_TRUE(standbys_.closed().ok());  // It may get there still.
  standbys_.Detach(a);
  EXPECT_FALSE(standbys_.closed().ok());
  waits.join();
}

TEST_F(StandbysTest, WhoNeedsNoCopyStopsAsItPleases) {
  standbys_.Require({}, /*alone=*/false);
  standbys_.Stop();
  EXPECT_TRUE(standbys_.WaitUntilHeld(6).ok());
}

TEST_F(StandbysTest, ItIsKnownWhoIsInSyncAndThatEverybodyWaits) {
  standbys_.Begin(500);
  const int64_t stream = standbys_.Attach("a", 300);
  EXPECT_FALSE(standbys_.Following()[0].in_sync);
  clock_.Advance(absl::Seconds(2));
  standbys_.Tick();
  EXPECT_TRUE(standbys_.missing());
  standbys_.Acknowledge(stream, 450);  // The rest is on its way.
  EXPECT_TRUE(standbys_.Following()[0].in_sync);
  standbys_.Acknowledge(stream, 500);
  standbys_.Tick();
  EXPECT_FALSE(standbys_.missing());
  standbys_.Require({"a"}, /*alone=*/true);  // It comes into the set.
  EXPECT_FALSE(standbys_.Following()[0].in_sync);
  standbys_.Require({"a"}, /*alone=*/false);
  EXPECT_TRUE(standbys_.Following()[0].in_sync);
}

TEST_F(StandbysTest, ItIsSaidOnceThatEverybodyWaitsAndOnceThatItIsOver) {
  standbys_.Begin(10);
  standbys_.Tick();
  EXPECT_THAT(events_.all(), IsEmpty());
  clock_.Advance(absl::Seconds(2));
  standbys_.Tick();
  standbys_.Tick();
  EXPECT_THAT(events_.Messages("standby_missing"),
              ElementsAre(HasSubstr("before a standby has commit 10; 0 follow")));
  standbys_.Attach("a", 10);
  standbys_.Tick();
  standbys_.Tick();
  EXPECT_THAT(events_.all(), ElementsAre(Pair("standby_missing", _), Pair("standby_back", _)));
}

TEST_F(StandbysTest, SeveralCopiesWithoutARegistryAreSaidToBeServedByTheirCommits) {
  EXPECT_EQ(standbys_.AmongOthers("a"), "");
  standbys_.Attach("a", 5);
  EXPECT_EQ(standbys_.AmongOthers("a"), "") << "it comes again";
  EXPECT_THAT(standbys_.AmongOthers("b"), HasSubstr("; so does a, without etcd: "));
  standbys_.Require({"a"}, /*alone=*/false);
  EXPECT_EQ(standbys_.AmongOthers("b"), "");
}

TEST_F(StandbysTest, ASavedFactWaitsForACopy) {
  const TemporaryFolder parent;
  auto directory = RunDirectoryStore::Open(*FileSystem::Real(), parent.File("run"), {}).value();
  RunDirectoryStore& store = *directory;
  store.set_before_telling([&](int64_t commits) { return standbys_.WaitUntilHeld(commits); });
  ASSERT_TRUE(store.Recover().ok());
  // Nobody is told of these.
  ASSERT_TRUE(store.BeginRun(ScriptedIdentity()).ok());
  ASSERT_TRUE(store.TakeOver().ok());
  const int64_t a = standbys_.Attach("a", store.Position().commits());
  for (const auto& save : std::vector<std::function<absl::Status()>>{
           [&] { return store.SaveMembers(std::array{ScriptedMember("alice", 1)}); },
           [&] { return SaveDelta(store, 0, 1, "alice"); }, [&] { return SaveMerged(store, 0, 1); },
           [&] { return store.SaveRunState({}); }}) {
    const int64_t before = store.Position().commits();
    std::thread saves([&] { EXPECT_TRUE(save().ok()); });
    ASSERT_EQ(store.WaitForCommit(before, absl::InfiniteDuration()), before + 1);
    standbys_.Acknowledge(a, before + 1);
    saves.join();
  }
  standbys_.Close(absl::UnavailableError("another one leads"));
  EXPECT_EQ(store.SaveRunState({}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(standbys_.MayTell().code(), absl::StatusCode::kUnavailable);
}

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
