// One scenario from beginning to end.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/simulation/auditor.h"
#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/virtual_worker.h"
#include "tests/simulation/world.h"

namespace causeway::simulation {

// A test's change of a simulation that must make it fail.
struct PlantedBug {
  CoordinatorHost::CallsMaker coordinator = nullptr;  // Of the hub's processes.
  bool workers_drop_late_deltas = false;
  // A resumed worker merges anew, whatever its record says; whatever its record lacks.
  bool workers_forget_merges = false;
  bool workers_merge_unrecorded = false;
  // A region whose delta was late takes it for counted; one that comes back sends a round again.
  bool regions_count_late_deltas = false;
  bool regions_forget_what_they_sent = false;
};

struct Outcome {
  std::optional<Violation> violation;
  int64_t events = 0;
  Counts counts;
  std::vector<float> published;     // At the end, in arena order.
  std::vector<MergeRecord> merges;  // By site.
  // Whether it must end in the bits of the undisturbed run: no region has gone on without a site.
  bool comparable = false;
  bool compared = false;  // With the undisturbed run.
};

// Runs the scenario until every site has finished. `trace`: null for none.
Outcome Simulate(const Scenario& scenario, std::ostream* trace, const PlantedBug& bug = {});

// Simulate, and again without faults where the bits must be the same: with what was merged when,
// which the time decides where sync.max_overlap_steps leaves room.
Outcome SimulateAndCompare(const Scenario& scenario, std::ostream* trace,
                           const PlantedBug& bug = {});

}  // namespace causeway::simulation
