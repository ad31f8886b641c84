#include "worker/member/wait_watch.h"
#include "tests/unit/common/base/fake_clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace causeway::worker {
namespace {

// A watch whose thread says nothing by itself.
class WaitWatchTest : public testing::Test {
 protected:
  FakeClock clock_;
  std::unique_ptr<WaitWatch> watch_ =
      WaitWatch::Start({.clock = &clock_, .interval = absl::InfiniteDuration(), .say = {}}).value();
};

TEST_F(WaitWatchTest, NothingIsSaidWhileAllIsWell) {
  EXPECT_EQ(watch_->Line(), "");
  watch_->SetSlack(SyncEngine::Slack{.awaited = 2, .late = 0, .steps = 7});
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(watch_->Line(), "");
}

TEST_F(WaitWatchTest, ACoordinatorThatIsAwayIsNamedWithTheStepsThatAreLeft) {
  watch_->SetSlack(SyncEngine::Slack{.awaited = 0, .late = 0, .steps = 23});
  watch_->SetAttached(false);
  clock_.Advance(absl::Seconds(4));
  EXPECT_EQ(watch_->Line(), "") << "it comes back at once more often than not";
  clock_.Advance(absl::Seconds(8));
  watch_->SetAttached(false);
  EXPECT_EQ(watch_->Line(),
            "the coordinator has been away for 12 s; training goes on, 23 more steps before it "
            "waits");
  watch_->SetSlack(SyncEngine::Slack{.awaited = 3, .late = 2, .steps = 1});
  EXPECT_EQ(watch_->Line(),
            "the coordinator has been away for 12 s; 2 answers are late; training goes on, 1 more "
            "step before it waits");
  watch_->SetAttached(true);
  EXPECT_EQ(watch_->Line(), "2 answers are late; training goes on, 1 more step before it waits");
  watch_->SetSlack(SyncEngine::Slack{.awaited = 0, .late = 0, .steps = 23});
  EXPECT_EQ(watch_->Line(), "");
}

TEST_F(WaitWatchTest, ACoordinatorThatTurnsThisWorkerAwayIsNotAway) {
  watch_->SetAttached(false);
  watch_->SetRefused("the certificate of worker a ended");
  clock_.Advance(absl::Seconds(12));
  EXPECT_EQ(watch_->Line(),
            "the coordinator has not let this worker in for 12 s (the certificate of worker a "
            "ended)");
  watch_->SetRefused("");
  EXPECT_EQ(watch_->Line(), "the coordinator has been away for 12 s");
  watch_->SetRefused("the token is unknown");
  watch_->SetAttached(true);
  watch_->SetAttached(false);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(watch_->Line(), "the coordinator has been away for 5 s") << "for another reason";
}

TEST_F(WaitWatchTest, AWaitIsSaidOnceItIsLong) {
  watch_->SetSlack(SyncEngine::Slack{.awaited = 1, .late = 1, .steps = 1});
  EXPECT_EQ(watch_->SetWaiting(SyncEvent{2, 3}), absl::ZeroDuration());
  clock_.Advance(absl::Seconds(4));
  EXPECT_EQ(watch_->Line(), "") << "as long as any other";
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(watch_->Line(), "training has waited 9 s for round 3 of fragment 2");
  watch_->SetAttached(false);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(watch_->Line(),
            "the coordinator has been away for 5 s; training has waited 14 s for round 3 of "
            "fragment 2");
  watch_->SetAttached(true);
  EXPECT_EQ(watch_->SetWaiting(std::nullopt), absl::Seconds(14));
  watch_->SetSlack(SyncEngine::Slack{.awaited = 0, .late = 0, .steps = 6});
  EXPECT_EQ(watch_->Line(), "");
}

TEST_F(WaitWatchTest, ALongWaitNamesThoseWhoAreWaitedFor) {
  watch_->SetWaiting(SyncEvent{2, 3});
  watch_->SetWaitsFor("waiting for berlin (step 40 of 60)");
  clock_.Advance(absl::Seconds(9));
  EXPECT_EQ(watch_->Line(),
            "training has waited 9 s for round 3 of fragment 2: waiting for berlin (step 40 of "
            "60)");
  watch_->SetAttached(false);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(watch_->Line(),
            "the coordinator has been away for 5 s; training has waited 14 s for round 3 of "
            "fragment 2")
      << "what it said last is old";
}

TEST_F(WaitWatchTest, WhoMayNotTrainYetIsToldWhy) {
  watch_->SetHeld("the run begins with 2 workers, and has these: paris");
  clock_.Advance(absl::Seconds(4));
  EXPECT_EQ(watch_->Line(), "");
  clock_.Advance(absl::Seconds(3));
  watch_->SetHeld("the run begins with 2 workers, and has these: paris");
  EXPECT_EQ(watch_->Line(),
            "nothing has been trained for 7 s: the run begins with 2 workers, and has these: "
            "paris");
  watch_->SetHeld("");
  EXPECT_EQ(watch_->Line(), "");
}

TEST_F(WaitWatchTest, WhoHasLeftSaysNothingMore) {
  watch_->SetAttached(false);
  clock_.Advance(absl::Seconds(60));
  EXPECT_NE(watch_->Line(), "");
  watch_->Silence();
  EXPECT_EQ(watch_->Line(), "");
}

TEST_F(WaitWatchTest, WhoLacksTheLastAnswersAloneIsToldHowToEnd) {
  watch_->SetAllDone();
  watch_->SetWaiting(SyncEvent{2, 3});
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(watch_->Line(), "training has waited 60 s for round 3 of fragment 2");
  watch_->SetAttached(false);
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(watch_->Line(),
            "the coordinator has been away for 60 s; all steps are done here, and the last answers "
            "are missing: if the run has ended without this worker, SIGTERM or Ctrl-C lets it "
            "leave with what it has");
}

TEST_F(WaitWatchTest, WhoDoesNotTrainIsToldOfTheCoordinatorAlone) {
  watch_->SetSlack(SyncEngine::Slack{.awaited = 1, .late = 1, .steps = 4});
  watch_->SetSlack(std::nullopt);
  watch_->SetAttached(false);
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(watch_->Line(), "the coordinator has been away for 60 s");
}

TEST(WaitWatchThreadTest, OfALongOutageItSpeaksEveryTenMinutes) {
  FakeClock clock;
  absl::Mutex mutex;
  std::vector<std::string> lines;
  const auto watch = WaitWatch::Start(
      {.clock = &clock, .interval = absl::Milliseconds(1), .say = [&](const std::string& text) {
         absl::MutexLock lock(&mutex);
         lines.push_back(text);
       }});
  ASSERT_TRUE(watch.ok());
  (*watch)->SetAttached(false);
  for (size_t count = 1; count <= 2; ++count) {
    clock.Advance(absl::Minutes(15));
    absl::MutexLock lock(&mutex);
    const auto said = [&] { return lines.size() >= count; };
    mutex.Await(absl::Condition(&said));
  }
  clock.Advance(absl::Minutes(9));
  clock.Advance(absl::Minutes(1));
  absl::MutexLock lock(&mutex);
  const auto said = [&] { return lines.size() >= 3; };
  mutex.Await(absl::Condition(&said));
  EXPECT_THAT(lines, ::testing::ElementsAre("the coordinator has been away for 900 s",
                                            "the coordinator has been away for 1800 s",
                                            "the coordinator has been away for 2400 s"));
}

}  // namespace
}  // namespace causeway::worker
