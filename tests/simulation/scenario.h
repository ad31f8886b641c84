// A seed's meaning: a run, its sites, and what befalls them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "causeway/v1/config.pb.h"

namespace causeway::simulation {

struct Scenario {
  uint64_t seed = 0;
  v1::RunConfig config;  // Complete.
  int sites = 1;
  // Sites of each region: the first ones are in them. Empty: all are at the hub.
  std::vector<int> regions;
  // Quorum is all, nobody loses its checkpoint or leaves early: the run must end in the bits of
  // the undisturbed one, unless somebody comes back so late that it takes the published state.
  bool undisturbed_bits = false;
  int checkpoint_every_steps = 0;  // 0: never.
  int kept_answers = 4;
  int max_kept_answers = 256;
  int snapshot_every_rounds = 3;

  absl::Duration tick;
  absl::Duration maintain;
  absl::Duration shortest_step, longest_step;
  absl::Duration shortest_delay, longest_delay;  // One way, over the network.

  // Faults, until `quiet_at`. Probabilities per call, per write to the store, and the mean time
  // between the others.
  absl::Duration quiet_at;
  double lose_request = 0;
  double lose_reply = 0;
  double duplicate = 0;
  double stall = 0;
  double store_death = 0;
  absl::Duration between_faults;
  // Weights of what happens then.
  int kill_worker = 0;
  int kill_coordinator = 0;
  int shut_coordinator_down = 0;
  int sever_stream = 0;
  int stall_stream = 0;
  int second_process = 0;
  int pause = 0;
  int drain = 0;
  int stop_at_step = 0;
  int jump_wall_clock = 0;
  // Chance that a death loses the checkpoint, too.
  double lose_checkpoint = 0;
  // The first so many sites lie about their tokens, speed and steps.
  int liars = 0;
};

Scenario DrawScenario(uint64_t seed);
// The same run on the same sites, and nothing befalls them.
Scenario WithoutFaults(Scenario scenario);
// One line for people.
std::string Describe(const Scenario& scenario);

}  // namespace causeway::simulation
