#include "tests/simulation/scenario.h"

#include "absl/strings/str_join.h"
#include "common/codec/codec.h"
#include "common/params/run_config.h"
#include "tests/simulation/world.h"

namespace causeway::simulation {
namespace {

// As small as a model can be: some 700 values.
constexpr char kSmallest[] = R"(
    run_name: "simulated"
    model {
      vocabulary_size: 128 layers: 1 width: 1 heads: 1 head_dim: 2 mlp_width: 2 mlp: GELU
      sequence_length: 8
    })";

void DrawSync(World& draw, bool undisturbed_bits, v1::SyncConfig& sync) {
  sync.set_pattern(v1::SyncConfig::BALANCED);
  sync.set_fragments(static_cast<int>(draw.Between(1, 4)));
  const auto interval = static_cast<int>(draw.Between(std::max(2, sync.fragments()), 8));
  sync.set_steps_between_syncs(interval);
  sync.set_overlap_steps(static_cast<int>(draw.Between(0, interval - 1)));
  if (draw.Chance(0.5)) {
    sync.set_max_overlap_steps(static_cast<int>(
        draw.Chance(0.5) ? interval - 1 : draw.Between(sync.overlap_steps(), interval - 1)));
  }
  const int64_t rule = draw.Between(0, 3);
  sync.set_mixing(rule == 0 ? 0.5 : 0);
  sync.set_keep_in_flight(rule == 1 ? 1 : rule == 2 ? 0.75 : 0);
  const auto drawn = [&] {
    return *FindCodec(kCodecs[static_cast<size_t>(draw.Between(0, int64_t{kCodecs.size()} - 1))]);
  };
  const Codec* const up = drawn();
  sync.set_codec_up(up->id());
  sync.set_codec_down(drawn()->id());
  sync.set_error_feedback(up->needs_error_feedback() || draw.Chance(0.4));
  // Without feedback a late delta turns it on, which an undisturbed run would not have.
  if (undisturbed_bits && sync.codec_up() != v1::FP32) sync.set_error_feedback(true);
}

// One to three regions. Without any of them the run does not begin: nobody joins as one later on.
void DrawRegions(World& draw, Scenario& scenario) {
  int left = scenario.sites;
  int smallest = left;
  for (int64_t regions = draw.Between(1, 3); regions > 0 && left > 0; --regions) {
    const auto sites = static_cast<int>(draw.Between(1, left));
    scenario.regions.push_back(sites);
    smallest = std::min(smallest, sites);
    left -= sites;
  }
  scenario.max_kept_answers = 256;  // A region that needs one that is gone cannot go on.
  v1::MembershipConfig& membership = *scenario.config.mutable_membership();
  membership.set_weighting(v1::MembershipConfig::TOKENS);
  membership.set_max_workers(scenario.sites);
  membership.set_start_workers(
      std::max(membership.start_workers(), scenario.sites - std::min(left, smallest - 1)));
  if (!scenario.undisturbed_bits) return;
  // A region has no quorum of its own: nobody may be taken for dead, nor leave.
  membership.set_lease_ms(600'000);
  scenario.drain = 0;
}

}  // namespace

Scenario DrawScenario(uint64_t seed) {
  World draw(seed ^ 0x5ce7a210U, nullptr);
  Scenario scenario;
  scenario.seed = seed;
  scenario.undisturbed_bits = draw.Chance(0.3);
  const bool bits = scenario.undisturbed_bits;
  scenario.sites = static_cast<int>(draw.Chance(0.7) ? draw.Between(1, 4) : draw.Between(5, 8));
  const int sites = scenario.sites;

  v1::RunConfig& config = scenario.config;
  config = ParseRunConfig(kSmallest, "the simulation").value();
  DrawSync(draw, bits, *config.mutable_sync());
  const int interval = config.sync().steps_between_syncs();
  config.mutable_train()->set_steps(interval * draw.Between(2, 5) + draw.Between(0, interval));
  if (draw.Chance(0.2)) {
    config.mutable_outer()->set_optimizer(v1::OuterConfig::SGD);
  } else {
    config.mutable_outer()->set_momentum(draw.Chance(0.5) ? 0.9 : 0.6);
  }
  config.mutable_outer()->set_learning_rate(draw.Chance(0.5) ? 0.4 : 0.7);
  v1::MembershipConfig& membership = *config.mutable_membership();
  membership.set_start_workers(bits ? sites : static_cast<int>(draw.Between(1, sites)));
  membership.set_max_workers(static_cast<int>(
      std::max<int64_t>(membership.start_workers(), sites - (bits ? 0 : draw.Between(0, 1)))));
  membership.set_quorum(
      bits ? sites
           : static_cast<int>(draw.Chance(0.5) ? 1 : draw.Between(1, membership.start_workers())));
  // With no room for whoever comes back, its place taken by one that began too late to make up a
  // quorum, rounds may lack theirs for ever: that is what such a configuration asks for.
  if (membership.quorum() > 1)
    membership.set_max_workers(std::max(sites, membership.max_workers()));
  membership.set_lease_ms(draw.Between(1000, 10'000));
  membership.set_grace_ms(bits || draw.Chance(0.5) ? 0 : draw.Between(50, 3000));
  if (draw.Chance(0.3)) membership.set_weighting(v1::MembershipConfig::UNIFORM);
  const auto warnings = CompleteRunConfig(config);
  if (!warnings.ok()) {
    std::cerr << "seed " << seed << " makes an impossible run: " << warnings.status() << '\n';
    std::abort();
  }

  scenario.checkpoint_every_steps =
      static_cast<int>(bits || draw.Chance(0.8) ? draw.Between(1, interval) : 0);
  scenario.kept_answers = static_cast<int>(bits ? 8 : draw.Between(2, 4));
  scenario.max_kept_answers = bits || draw.Chance(0.7) ? 256 : scenario.kept_answers;
  scenario.snapshot_every_rounds = static_cast<int>(draw.Between(1, 4));
  scenario.tick = absl::Milliseconds(100);
  scenario.maintain = absl::Seconds(draw.Between(1, 5));
  scenario.shortest_step = absl::Milliseconds(draw.Between(20, 200));
  scenario.longest_step = scenario.shortest_step * static_cast<double>(draw.Between(1, 4));
  scenario.shortest_delay = absl::Milliseconds(draw.Between(1, 20));
  scenario.longest_delay = scenario.shortest_delay * static_cast<double>(draw.Between(1, 20));

  scenario.quiet_at = absl::Seconds(draw.Between(3, 20));
  const auto rate = [&](double most) { return draw.Chance(0.6) ? most * draw.Uniform() : 0; };
  scenario.lose_request = rate(0.2);
  scenario.lose_reply = rate(0.2);
  scenario.duplicate = rate(0.3);
  scenario.stall = rate(0.1);
  scenario.store_death = rate(0.02);
  scenario.between_faults = absl::Milliseconds(draw.Between(300, 5000));
  const auto weight = [&] { return draw.Chance(0.6) ? static_cast<int>(draw.Between(1, 5)) : 0; };
  scenario.kill_worker = 2 * weight();
  scenario.kill_coordinator = weight();
  scenario.shut_coordinator_down = weight() / 2;
  scenario.sever_stream = weight();
  scenario.stall_stream = weight();
  // The former process takes the run away from the checkpoint that the second one has.
  scenario.second_process = bits ? 0 : weight() / 2;
  scenario.pause = weight() / 2;
  scenario.drain = weight() / 2;
  scenario.stop_at_step = bits ? 0 : weight() / 3;
  scenario.jump_wall_clock = weight() / 3;
  scenario.lose_checkpoint = bits || draw.Chance(0.4) ? 0 : 0.6;
  if (draw.Chance(0.5)) scenario.liars = static_cast<int>(draw.Between(1, sites));
  if (sites > 1 && draw.Chance(0.3)) DrawRegions(draw, scenario);
  return scenario;
}

Scenario WithoutFaults(Scenario scenario) {
  scenario.quiet_at = absl::ZeroDuration();
  return scenario;
}

std::string Describe(const Scenario& scenario) {
  const v1::SyncConfig& sync = scenario.config.sync();
  const v1::MembershipConfig& membership = scenario.config.membership();
  return absl::StrCat(
      scenario.sites, " sites, ",
      scenario.regions.empty()
          ? ""
          : absl::StrCat("of which in regions: ", absl::StrJoin(scenario.regions, " + "), ", "),
      scenario.config.train().steps(), " steps, P ", sync.fragments(), ", H ",
      sync.steps_between_syncs(), ", tau ", sync.overlap_steps(), " to ", MaxOverlapSteps(sync),
      ", alpha ", sync.mixing(), ", keep ", sync.keep_in_flight(), ", ",
      v1::Codec_Name(sync.codec_up()), sync.error_feedback() ? " with feedback" : "", " up, ",
      v1::Codec_Name(sync.codec_down()), " down, start ", membership.start_workers(), ", most ",
      membership.max_workers(), ", quorum ", membership.quorum(), ", grace ", membership.grace_ms(),
      " ms, lease ", membership.lease_ms(), " ms, checkpoint every ",
      scenario.checkpoint_every_steps, " steps, ", scenario.liars, " liars, ",
      scenario.undisturbed_bits ? "ends in the undisturbed bits" : "ends in bits of its own");
}

}  // namespace causeway::simulation
