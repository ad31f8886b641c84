// A fixed number of simulated runs, and bugs planted in them that the invariants must find.
#include "tests/simulation/simulation.h"

#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/planted_bugs.h"

namespace causeway::simulation {
namespace {

using ::testing::Contains;
using ::testing::SizeIs;

constexpr uint64_t kSeeds = 1000;
constexpr uint64_t kSeedsWithBugs = 60;

// The invariants that are violated over a number of seeds.
std::set<std::string> FoundBy(const PlantedBug& bug) {
  std::set<std::string> found;
  for (uint64_t seed = 1; seed <= kSeedsWithBugs; ++seed) {
    const Outcome outcome = Simulate(DrawScenario(seed), nullptr, bug);
    if (outcome.violation.has_value()) found.insert(outcome.violation->invariant);
  }
  return found;
}

// The first invariant that is violated where merges may be early and the bits must be the same.
std::string FirstFoundByBits(const PlantedBug& bug) {
  for (uint64_t seed = 1; seed <= 100 * kSeedsWithBugs; ++seed) {
    const Scenario scenario = DrawScenario(seed);
    const v1::SyncConfig& sync = scenario.config.sync();
    if (!scenario.undisturbed_bits || MaxOverlapSteps(sync) == sync.overlap_steps()) continue;
    const Outcome outcome = SimulateAndCompare(scenario, nullptr, bug);
    if (outcome.violation.has_value()) return outcome.violation->invariant;
  }
  return "nothing";
}

// The first invariant that is violated in a tree: few regions are late.
std::string FirstFoundInTrees(const PlantedBug& bug) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Scenario scenario = DrawScenario(seed);
    if (scenario.regions.empty()) continue;
    const Outcome outcome = Simulate(scenario, nullptr, bug);
    if (outcome.violation.has_value()) return outcome.violation->invariant;
  }
  return "nothing";
}

TEST(SimulationTest, EveryInvariantHoldsUnderEveryMixOfFaults) {
  Counts counts;
  int comparable = 0;
  int compared = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Scenario scenario = DrawScenario(seed);
    const Outcome outcome = SimulateAndCompare(scenario, nullptr);
    ASSERT_FALSE(outcome.violation.has_value())
        << "seed " << seed << " violates " << outcome.violation->invariant << "\n"
        << outcome.violation->message << "\n"
        << Describe(scenario) << "\nreplay: tests/simulation/run --scenarios 1 --trace --seed "
        << seed;
    for (const auto& [name, count] : outcome.counts) counts[name] += count;
    comparable += outcome.comparable;
    compared += outcome.compared;
  }
  // Nobody comes back too late to repeat what it did, or something is wrong with resuming.
  EXPECT_EQ(compared, comparable);
  EXPECT_GT(comparable, 250);
  for (const auto& [name, count] : counts) {
    // A new worker starts early enough to fill a round that nobody has sent, so these are rare.
    if (name == "rounds_published_empty") continue;
    EXPECT_GT(count, 0) << "no scenario had any " << name;
  }
}

TEST(SimulationTest, ASeedReplaysTheSameEvents) {
  for (const uint64_t seed : {1, 2, 3}) {
    std::ostringstream once;
    std::ostringstream again;
    const Outcome first = Simulate(DrawScenario(seed), &once);
    const Outcome second = Simulate(DrawScenario(seed), &again);
    EXPECT_EQ(once.str(), again.str());
    EXPECT_EQ(first.published, second.published);
    EXPECT_GT(once.str().size(), 500);
  }
}

TEST(SimulationTest, AContributionThatIsAppliedTwiceIsFound) {
  const std::set<std::string> found = FoundBy({.coordinator = AppliesTwice});
  EXPECT_THAT(found, Contains("counted_once"));
}

TEST(SimulationTest, AContributionThatIsAcknowledgedBeforeItIsDurableIsFound) {
  const std::set<std::string> found = FoundBy({.coordinator = AcknowledgesFirst});
  EXPECT_THAT(found, Contains("acknowledged_is_kept"));
}

TEST(SimulationTest, ALateDeltaThatIsLostIsFound) {
  const std::set<std::string> found =
      FoundBy({.coordinator = nullptr, .workers_drop_late_deltas = true});
  EXPECT_THAT(found, Contains("nothing_trained_is_lost"));
  EXPECT_THAT(found, SizeIs(1));
}

TEST(SimulationTest, ALateDeltaThatARegionTakesForCountedIsFound) {
  PlantedBug bug;
  bug.regions_count_late_deltas = true;
  EXPECT_EQ(FirstFoundInTrees(bug), "acknowledged_is_kept");
}

TEST(SimulationTest, ARegionThatForgetsWhatItHasSentIsFound) {
  PlantedBug bug;
  bug.regions_forget_what_they_sent = true;
  EXPECT_EQ(FirstFoundInTrees(bug), "counted_once");
}

// Nothing is lost by these two and nothing counts twice: only the bits are not those of the record.
TEST(SimulationTest, AResumedWorkerThatMergesAtOtherStepsThanBeforeIsFound) {
  PlantedBug bug;
  bug.workers_forget_merges = true;
  EXPECT_EQ(FirstFoundByBits(bug), "ends_in_undisturbed_bits");
}

TEST(SimulationTest, AResumedWorkerThatMergesWhatItsRecordLacksIsFound) {
  PlantedBug bug;
  bug.workers_merge_unrecorded = true;
  EXPECT_EQ(FirstFoundByBits(bug), "ends_in_undisturbed_bits");
}

TEST(SimulationTest, AStaleIncarnationThatIsAcceptedIsFound) {
  const std::set<std::string> found = FoundBy({.coordinator = AcceptsStaleIncarnations});
  EXPECT_THAT(found, Contains("fenced_off"));
}

// An order to start that comes out of a stalled stream may name a part that was given away since.
TEST(SimulationTest, OnePartOfTheDataForTwoIsFoundIfBothAreLive) {
  const Scenario scenario = DrawScenario(1);
  const FragmentPlan plan = FragmentPlan::Create(scenario.config).value();
  const std::vector<float> initial(static_cast<size_t>(plan.arena_size()));
  const absl::Duration lease = absl::Milliseconds(scenario.config.membership().lease_ms());
  for (const bool first_is_lost : {false, true}) {
    World world(1, nullptr);
    Auditor auditor(world, scenario, plan, initial);
    v1::Join join;
    v1::Welcome welcome;
    welcome.set_incarnation(1);
    join.set_worker_id("first");
    auditor.Attached(join, welcome);
    if (first_is_lost) world.clock().Advance(lease);
    join.set_worker_id("second");
    auditor.Attached(join, welcome);
    auditor.Draws("second", 0);
    auditor.Draws("first", 0);
    ASSERT_EQ(world.violation().has_value(), !first_is_lost);
    if (!first_is_lost) {
      EXPECT_EQ(world.violation()->invariant, "slots_are_distinct");
    }
  }
}

// Two sites share one place, and with it one part of the data: the second one comes when the first
// has left, whose leave is the last thing that the coordinator saved.
TEST(SimulationTest, ALeaveThatIsSavedByAFailingCoordinatorFreesItsPlace) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Scenario scenario = DrawScenario(seed);
    scenario.undisturbed_bits = false;
    scenario.sites = 2;
    scenario.regions.clear();
    scenario.liars = 0;
    scenario.quiet_at = absl::Seconds(600);  // Both have left by then.
    scenario.lose_request = scenario.lose_reply = scenario.duplicate = scenario.stall = 0;
    scenario.store_death = 0;
    scenario.kill_worker = scenario.shut_coordinator_down = scenario.sever_stream = 0;
    scenario.stall_stream = scenario.second_process = scenario.pause = scenario.drain = 0;
    scenario.stop_at_step = scenario.jump_wall_clock = 0;
    scenario.kill_coordinator = 1;  // Nobody else replaces a failed one.
    scenario.between_faults = absl::Seconds(2);
    v1::MembershipConfig& membership = *scenario.config.mutable_membership();
    membership.set_start_workers(1);
    membership.set_max_workers(1);
    membership.set_quorum(1);
    membership.set_lease_ms(10'000);
    PlantedBug failure;
    failure.coordinator = FailsAfterALeave;
    const Outcome outcome = Simulate(scenario, nullptr, failure);
    EXPECT_FALSE(outcome.violation.has_value())
        << "seed " << seed << " violates " << outcome.violation->invariant << "\n"
        << outcome.violation->message;
  }
}

}  // namespace
}  // namespace causeway::simulation
