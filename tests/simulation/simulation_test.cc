// A fixed number of simulated runs, and bugs planted in them that the invariants must find.
#include "tests/simulation/simulation.h"

#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::simulation {
namespace {

using server::Coordinator;

// A contribution counts again in the next round of its fragment.
class TwiceApplier final : public Calls {
 public:
  absl::Status Contribute(Coordinator& own, const v1::PushHeader& header,
                          const SharedBytes& object) override {
    RETURN_IF_ERROR(Calls::Contribute(own, header, object));
    counted_[{header.fragment(), header.worker_id()}] = {header, object};
    return absl::OkStatus();
  }
  void Tick(Coordinator& own) override {
    Calls::Tick(own);
    for (auto& [key, entry] : counted_) {
      v1::PushHeader again = entry.first;
      again.set_round(again.round() + 1);
      again.clear_base_hash();  // Else it is refused for the version that it was taken against.
      Calls::Contribute(own, again, entry.second).IgnoreError();
    }
  }

 private:
  // The last contribution per fragment and worker.
  std::map<std::pair<int, std::string>, std::pair<v1::PushHeader, SharedBytes>> counted_;
};

// A contribution is acknowledged, and only then made durable.
class Hasty final : public Calls {
 public:
  absl::Status Contribute(Coordinator& /*own*/, const v1::PushHeader& header,
                          const SharedBytes& object) override {
    taken_.emplace_back(header, object);
    return absl::OkStatus();
  }
  void MergeDue(Coordinator& own, int fragment) override {
    for (auto& [header, bytes] : std::exchange(taken_, {})) {
      Calls::Contribute(own, header, bytes).IgnoreError();
    }
    Calls::MergeDue(own, fragment);
  }

 private:
  std::vector<std::pair<v1::PushHeader, SharedBytes>> taken_;
};

// A push is taken for one of the present incarnation, whatever it says.
class Unfenced final : public Calls {
 public:
  absl::StatusOr<v1::Welcome> Join(Coordinator& own, const v1::Join& join,
                                   std::shared_ptr<server::SessionSink> sink) override {
    ASSIGN_OR_RETURN(v1::Welcome welcome, Calls::Join(own, join, std::move(sink)));
    present_[join.worker_id()] = welcome.incarnation();
    return welcome;
  }
  absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(Coordinator& own,
                                                            const v1::PushHeader& header) override {
    return Calls::BeginPush(own, Present(header));
  }
  absl::Status Contribute(Coordinator& own, const v1::PushHeader& header,
                          const SharedBytes& object) override {
    return Calls::Contribute(own, Present(header), object);
  }

 private:
  v1::PushHeader Present(v1::PushHeader header) const {
    const auto found = present_.find(header.worker_id());
    if (found != present_.end()) header.set_incarnation(found->second);
    return header;
  }
  std::map<std::string, uint64_t> present_;
};

// Not a bug: it fails, as after an error of its disk, once somebody has left and that is saved.
class FailsAfterLeave final : public Calls {
 public:
  absl::Status Handle(Coordinator& own, const std::string& worker_id, uint64_t incarnation,
                      const v1::WorkerMessage& message) override {
    RETURN_IF_ERROR(Health(own));
    const absl::Status status = Calls::Handle(own, worker_id, incarnation, message);
    failed_ = failed_ || (status.ok() && message.has_leave());
    return status;
  }
  absl::StatusOr<v1::Welcome> Join(Coordinator& own, const v1::Join& join,
                                   std::shared_ptr<server::SessionSink> sink) override {
    RETURN_IF_ERROR(Health(own));
    return Calls::Join(own, join, std::move(sink));
  }
  absl::Status Health(const Coordinator& own) override {
    return failed_ ? absl::UnavailableError("the disk failed") : Calls::Health(own);
  }

 private:
  bool failed_ = false;
};

template <typename Planted>
std::unique_ptr<Calls> Plant() {
  return std::make_unique<Planted>();
}

using ::testing::Contains;
using ::testing::ElementsAre;

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

// The first invariant that is violated in such scenarios: few regions are late, for instance.
std::string FirstFound(const PlantedBug& bug, uint64_t seeds, decltype(Simulate)* simulate,
                       const std::function<bool(const Scenario&)>& counts) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const Scenario scenario = DrawScenario(seed);
    if (!counts(scenario)) continue;
    const Outcome outcome = simulate(scenario, nullptr, bug);
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

TEST(SimulationTest, BugsOfACoordinatorAreFound) {
  EXPECT_THAT(FoundBy({.coordinator = Plant<TwiceApplier>}), Contains("counted_once"));
  EXPECT_THAT(FoundBy({.coordinator = Plant<Hasty>}), Contains("acknowledged_is_kept"));
  EXPECT_THAT(FoundBy({.coordinator = Plant<Unfenced>}), Contains("fenced_off"));
}

TEST(SimulationTest, ALateDeltaThatIsLostIsFound) {
  EXPECT_THAT(FoundBy({.workers_drop_late_deltas = true}), ElementsAre("nothing_trained_is_lost"));
}

TEST(SimulationTest, BugsOfARegionAreFound) {
  const auto in_trees = [](const Scenario& scenario) { return !scenario.regions.empty(); };
  EXPECT_EQ(FirstFound({.regions_count_late_deltas = true}, kSeeds, Simulate, in_trees),
            "acknowledged_is_kept");
  EXPECT_EQ(FirstFound({.regions_forget_what_they_sent = true}, kSeeds, Simulate, in_trees),
            "counted_once");
}

// Nothing is lost by these two and nothing counts twice: only the bits are not those of the record.
TEST(SimulationTest, AResumedWorkerThatMergesOtherwiseThanItsRecordSaysIsFound) {
  const auto early =
      [](const Scenario& scenario) {  // Merges may be, and the bits must be the same.
        const v1::SyncConfig& sync = scenario.config.sync();
        return scenario.undisturbed_bits && MaxOverlapSteps(sync) > sync.overlap_steps();
      };
  for (const PlantedBug& bug :
       {PlantedBug{.workers_forget_merges = true}, PlantedBug{.workers_merge_unrecorded = true}}) {
    EXPECT_EQ(FirstFound(bug, 100 * kSeedsWithBugs, SimulateAndCompare, early),
              "ends_in_undisturbed_bits");
  }
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
    const Outcome outcome = Simulate(scenario, nullptr, {.coordinator = Plant<FailsAfterLeave>});
    EXPECT_FALSE(outcome.violation.has_value())
        << "seed " << seed << " violates " << outcome.violation->invariant << "\n"
        << outcome.violation->message;
  }
}

}  // namespace
}  // namespace causeway::simulation
