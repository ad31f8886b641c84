// Workers that begin with the published state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/common/base/status_is.h"
#include "tests/unit/worker/sync/engine_site.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EngineFetchTest, AJoinerFollowsTheRoundsThatWereSentBeforeItsStep) {
  Site site("fragments: 1 steps_between_syncs: 4 overlap_steps: 2");
  site.exchange_->PublishFromElsewhere({0, 1}, 0.5F);
  // Published: version 1, sent after step 4. The others are at step 9: round 2 is in flight.
  site.exchange_->Hold({0, 2});
  site.exchange_->PublishFromElsewhere({0, 2}, 0.25F);
  // The state already contains round 2 here; a joiner told of step 3 must not send round 1 or 2.
  const int64_t step = site.engine_->Fetch(3).value();
  EXPECT_EQ(step, 8);
  site.exchange_->Release({0, 2});
  site.Run(9, 14);
  ASSERT_EQ(site.exchange_->pushes().size(), 1);
  EXPECT_EQ(site.exchange_->pushes()[0].key, FakeExchange::Key(0, 3));
  EXPECT_THAT(site.merges_, ElementsAre(Site::Merge{14, {0, 3}}));
}

TEST(EngineFetchTest, AJoinerDoesNotPassOverAnOpenRoundThatWantsIt) {
  // Fragments 0, 1 and 2 are sent after steps 2, 4 and 6.
  Site site("fragments: 2 steps_between_syncs: 6 overlap_steps: 1");
  site.exchange_->PublishFromElsewhere({0, 1}, 0.5F);
  site.exchange_->PublishFromElsewhere({2, 1}, 0.5F);
  // Fragment 1 lacks its quorum, so the run's step is the one before.
  ASSERT_EQ(site.engine_->Fetch(3).value(), 3);
  site.Run(4, 7);
  ASSERT_EQ(site.exchange_->pushes().size(), 1);
  EXPECT_EQ(site.exchange_->pushes()[0].key, FakeExchange::Key(1, 1));
}

TEST(EngineFetchTest, AJoinerMergesARoundInFlightThatItDidNotContributeTo) {
  Site site("fragments: 1 steps_between_syncs: 4 overlap_steps: 2");
  // Nothing is published yet, but the run is at step 5: round 1 was sent after step 4.
  ASSERT_EQ(site.engine_->Fetch(5).value(), 5);
  site.exchange_->PublishFromElsewhere({0, 1}, 0.5F);
  site.Run(6, 7);
  EXPECT_TRUE(site.exchange_->pushes().empty());
  EXPECT_THAT(site.merges_, ElementsAre(Site::Merge{6, {0, 1}}));
}

TEST(EngineFetchTest, AJoinerTakesOverAsTheyAreTheRoundsThatAreMergedBeforeItsStep) {
  Site site("fragments: 1 steps_between_syncs: 4 overlap_steps: 2 mixing: 0.5");
  std::thread others([&] {
    site.exchange_->AwaitApplied({0, 0});  // The joiner has fetched version 0.
    site.exchange_->PublishFromElsewhere({0, 1}, 0.5F);
  });
  EXPECT_EQ(site.engine_->Fetch(6).value(), 6);
  others.join();
  EXPECT_EQ(site.engine_->version(0), 1);
  // It has trained nothing of its own that would be worth keeping.
  EXPECT_TRUE(std::ranges::equal(site.local_, site.engine_->published().value()));
}

// The others of a run, which goes on.
class Others {
 public:
  explicit Others(Site& site)
      : site_(site),
        schedule_(site.plan_.fragments(), site.config_.sync().steps_between_syncs(),
                  site.config_.sync().overlap_steps()) {}

  void Train(int64_t steps) {
    for (const int64_t end = step_ + steps; step_ < end;) {
      for (const SyncEvent& event : schedule_.SendsAfter(++step_)) {
        site_.exchange_->PublishFromElsewhere({event.fragment, event.round}, 0.25F);
      }
    }
  }
  int64_t step() const { return step_; }
  const SyncSchedule& schedule() const { return schedule_; }

 private:
  Site& site_;
  const SyncSchedule schedule_;
  int64_t step_ = 0;
};

// It takes part from there on: what it sends next is what the others send next.
void ExpectToTakePart(Site& site, const Others& others, int64_t step) {
  EXPECT_TRUE(std::ranges::equal(site.local_, site.engine_->published().value()));
  site.Run(step + 1, step + 8);  // Two more than H.
  ASSERT_TRUE(site.engine_->Drain().ok());
  EXPECT_TRUE(site.late_.empty());
  std::set<FakeExchange::Key> sent;
  std::set<FakeExchange::Key> due;
  for (const auto& push : site.exchange_->pushes()) sent.insert(push.key);
  for (int64_t t = step + 1; t <= step + 8; ++t) {
    for (const SyncEvent& event : others.schedule().SendsAfter(t)) {
      due.insert({event.fragment, event.round});
    }
  }
  EXPECT_EQ(sent, due);
  EXPECT_TRUE(std::ranges::equal(site.engine_->published().value(), site.exchange_->published()));
}

// Three fragments; a round of each every six steps.
constexpr char kThreeFragments[] = "fragments: 2 steps_between_syncs: 6 overlap_steps: 1";

TEST(EngineFetchTest, AJoinerWhoseDownloadTakesLongerThanARoundJoinsWhereTheRunIsThen) {
  Site site(kThreeFragments);
  Others others(site);
  others.Train(20);
  site.exchange_->WhileAStateComes([&](int) { others.Train(15); });
  const absl::StatusOr<int64_t> step =
      site.engine_->Fetch(others.step(), [&](absl::Duration) { return others.step(); });
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(*step, 20 + 3 * 15);
  ExpectToTakePart(site, others, *step);
}

TEST(EngineFetchTest, AJoinerTakesAStateAgainWhereTheAnswersSinceThenAreGone) {
  Site site(kThreeFragments);
  Others others(site);
  others.Train(20);
  std::vector<int> states;
  site.exchange_->WhileAStateComes([&](int fragment) {
    states.push_back(fragment);
    if (states.size() > 3) return;
    others.Train(15);
    site.exchange_->Forget({0, 5});  // Sent after step 26.
  });
  const absl::StatusOr<int64_t> step =
      site.engine_->Fetch(others.step(), [&](absl::Duration) { return others.step(); });
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_THAT(states, ElementsAre(0, 0, 1, 2));
  EXPECT_EQ(*step, 20 + 3 * 15);
  ExpectToTakePart(site, others, *step);
}

TEST(EngineFetchTest, AJoinerStopsFollowingARunThatItDoesNotComeNearer) {
  Site site(kThreeFragments);
  Others others(site);
  others.Train(20);
  int looks = 0;
  const absl::StatusOr<int64_t> step =
      site.engine_->Fetch(others.step(), [&](absl::Duration) -> absl::StatusOr<int64_t> {
        if (++looks > 100) return absl::InternalError("it looks for ever");
        others.Train(12);
        return others.step();
      });
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(*step, others.step()) << "as near as it was when it looked last";
  ExpectToTakePart(site, others, *step);
}

TEST(EngineFetchTest, AStateThatIsOlderThanAnAnswerThatIsGoneIsRefused) {
  Site site("fragments: 1 steps_between_syncs: 4 overlap_steps: 2");
  site.exchange_->PublishFromElsewhere({0, 1}, 0.5F);
  site.exchange_->AnnounceVersion(0, 0);
  site.exchange_->Forget({0, 1});
  EXPECT_THAT(site.engine_->Fetch(9), StatusIs(kDataLoss));
}

// A fuzzer's finding: the step of such a round overflows.
TEST(EngineFetchTest, AStateOfAnImpossibleVersionIsRefused) {
  for (const int64_t version :
       {int64_t{-1}, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    Site site("fragments: 1 steps_between_syncs: 6");
    site.exchange_->AnnounceVersion(0, version);
    EXPECT_THAT(site.engine_->Fetch(0), StatusIs(kDataLoss, HasSubstr("version")));
  }
}

}  // namespace
}  // namespace causeway::worker
