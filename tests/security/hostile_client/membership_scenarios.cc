// Lies about steps, speed and tokens in a session, credentials that ended, and a member that asks
// for more than it can use.

#include <atomic>

#include "tests/security/hostile_client/scenarios.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/rpc/plain_lane.h"

namespace causeway::hostile {
namespace {

constexpr double kStepSeconds = 1.0;

absl::Status Stop(Site& site, int64_t at_step) {
  v1::StopRequest request;
  request.set_at_step(at_step);
  v1::StopResponse response;
  grpc::ClientContext context;
  const grpc::Status status = site.admin().Stop(&context, request, &response);
  return status.ok() ? absl::OkStatus() : absl::FailedPreconditionError(status.error_message());
}

absl::StatusOr<Outcome> Step() {
  Stage stage;
  RETURN_IF_ERROR(stage.Begin());
  Run& run = stage.run;
  Team& team = *stage.team;
  Site& liar = *stage.liar;
  int64_t newcomer_step = 0;
  const auto play = [&]() -> absl::Status {
    for (int64_t round = 1; round <= 6; ++round) RETURN_IF_ERROR(team.DoRound(round));
    liar.Enter(2000).IgnoreError();  // The run is at step 30.
    liar.Disconnect();
    // A successor believes what is on the disk.
    run.Kill();
    RETURN_IF_ERROR(run.Start());
    RETURN_IF_ERROR(team.Return());
    Site newcomer(run, "newcomer");
    RETURN_IF_ERROR(newcomer.Join());
    newcomer_step = newcomer.welcome().run_step();
    return Stop(newcomer, 100);
  };
  const absl::Status played = play();
  if (!played.ok()) {
    return absl::InternalError(
        absl::StrCat("a newcomer is to start at step ", newcomer_step, "; ", played.message()));
  }
  return Outcome{.held = newcomer_step <= 35,
                 .what = absl::StrCat("a newcomer starts at step ", newcomer_step,
                                      ", the run can be stopped at 100")};
}

absl::StatusOr<Outcome> SpeedAndGrace() {
  const ConfigChange change = [](v1::RunConfig& config) {
    config.mutable_sync()->set_overlap_steps(2);
    config.mutable_membership()->set_quorum(1);
    config.mutable_membership()->set_grace_ms(5000);
    config.mutable_membership()->set_adaptive_grace(true);
  };
  FakeClock clock;
  Stage stage({.change = change, .clock = &clock});
  RETURN_IF_ERROR(stage.Begin(0));
  Team& team = *stage.team;
  Site& liar = *stage.liar;
  for (int i = 0; i < kHonest; ++i) team.site(i).Settle(0, 0, kStepSeconds);
  liar.Settle(0, 0, 1e-6);
  for (int64_t round = 1; round <= 2; ++round) {
    RETURN_IF_ERROR(liar.Deliver(liar.MakePush(round)));
    clock.Advance(absl::Milliseconds(500));  // The others still train.
    stage.run.coordinator().Tick();
    RETURN_IF_ERROR(team.Push(round));
    RETURN_IF_ERROR(team.Merge(round));
    RETURN_IF_ERROR(liar.Merge(round));
    liar.Settle(round * kInterval, 0, 1e-6);
  }
  return Outcome{.held = true, .what = "both rounds have all three honest deltas"};
}

absl::StatusOr<Outcome> SpeedAndPace() {
  Stage stage({.change = [](v1::RunConfig& config) {
    config.mutable_membership()->set_max_pace(4);
    config.mutable_sync()->set_overlap_steps(1);
  }});
  RETURN_IF_ERROR(stage.Begin(0));
  Team& team = *stage.team;
  Site& liar = *stage.liar;
  for (int i = 0; i < kHonest; ++i) team.site(i).Settle(1, 0, kStepSeconds);
  liar.Settle(1, 0, 1e-3);
  for (int i = 0; i < kHonest; ++i) team.site(i).Settle(2, 0, kStepSeconds);
  int64_t slowest = 1000;
  for (int i = 0; i < kHonest; ++i) {
    for (const v1::Directive& order : team.site(i).Directives(v1::Directive::SET_PACE)) {
      slowest = std::max(slowest, order.pace_milli());
    }
  }
  return Outcome{
      .held = slowest == 1000,
      .what = absl::StrCat("the honest are put on pace ", static_cast<double>(slowest) / 1000)};
}

absl::StatusOr<Outcome> TokenBudget() {
  Stage stage({.change = [](v1::RunConfig& config) {
    config.mutable_train()->set_tokens(int64_t{1} << 20);
  }});
  RETURN_IF_ERROR(stage.Begin(0));
  Team& team = *stage.team;
  Site& liar = *stage.liar;
  for (int i = 0; i < kHonest; ++i) team.site(i).Settle(1, 32, kStepSeconds);
  liar.Settle(1, int64_t{1} << 48, kStepSeconds);
  for (int i = 0; i < kHonest; ++i) team.site(i).Settle(2, 64, kStepSeconds);
  const auto stops = team.site(0).Directives(v1::Directive::STOP_AT_STEP);
  if (stops.empty()) return Outcome{.held = true, .what = "the run goes on"};
  return Outcome{.held = false, .what = absl::StrCat("the run ends at step ", stops[0].step())};
}

absl::StatusOr<Outcome> Flush() {
  Stage stage;
  RETURN_IF_ERROR(stage.Begin());
  for (const int64_t round : {1, 2}) RETURN_IF_ERROR(stage.team->DoRound(round));
  Site& liar = *stage.liar;
  RETURN_IF_ERROR(liar.Enter(10));
  const size_t before = stage.run.record().all().size();
  const absl::Time began = absl::Now();
  constexpr int kMessages = 1000;
  for (int i = 0; i < kMessages; ++i) {
    // Late in turns, so that neither is the last one that was noted.
    liar.DeliverHeader(liar.MakePush(1 + i % 2)).IgnoreError();
    liar.Ready(10).IgnoreError();
  }
  liar.Settle(10);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
  const size_t events = stage.run.record().all().size() - before;
  return Outcome{.held = events < 100,
                 .what = absl::StrCat(events, " events of ", 2 * kMessages, " messages in ",
                                      static_cast<int>(seconds * 10) / 10.0, " s")};
}

absl::StatusOr<Outcome> ExpiredCertificate() {
  FakeClock clock(absl::Now());
  Credentials credentials;
  Run run({.server = credentials.Server(
               [&](server::CoordinatorServer::Options& options) { options.clock = &clock; })});
  RETURN_IF_ERROR(run.Start());
  Team team(run, [&](const std::string& id) { return credentials.Certificate(run, id); });
  Site guest(run, "guest", credentials.Certificate(run, "guest", absl::Hours(1)));
  RETURN_IF_ERROR(team.Enter());
  RETURN_IF_ERROR(guest.Enter(0));
  clock.Advance(absl::Hours(1) + absl::Seconds(1));
  const bool pulled = guest.PullStates().ok();
  const bool pushed = guest.Deliver(guest.MakePush(1)).ok();
  // The server looks at open sessions at intervals.
  const bool ended = guest.AwaitEnd(absl::Seconds(30));
  std::string what =
      absl::StrCat("a second after its end: pull ", pulled ? "served" : "refused", ", push ",
                   pushed ? "taken" : "refused", "; its session ", ended ? "ends" : "goes on");
  return Outcome{.held = ended && !pulled && !pushed, .what = std::move(what)};
}

constexpr int kConnections = 8;
constexpr int kPullsOfConnection = 50;
constexpr uint64_t kWantsOfLane = 100;
constexpr int64_t kRounds = 3;

// A model whose state is worth copying: some 5 MiB.
void Larger(v1::RunConfig& config) {
  config.mutable_model()->set_width(128);
  config.mutable_model()->set_vocabulary_size(8192);
}

// Lanes of one connection, each of a process of its own, over which states are wanted and not read.
class Hoard {
 public:
  Hoard(Run& run, std::string id, int connection)
      : run_id_(run.coordinator().run_id()),
        id_(std::move(id)),
        stub_(v1::Exchange::NewStub(
            MakeChannel(run.address(), connection, ChannelSecurity::Plaintext()))) {}
  // Whether one more is served.
  bool Pull() {
    PlainLane& lane = *lanes_.emplace_back(std::make_unique<PlainLane>(*stub_, run_id_, id_));
    if (!Want(lane, 1)) return false;
    v1::LaneMessage first;
    return lane.Read(first) && first.control().has_announcement();
  }
  // Asks for many more over each of the lanes, and reads nothing of them.
  void WantMany() {
    for (const auto& lane : lanes_) {
      for (uint64_t transfer = 2; transfer < 2 + kWantsOfLane; ++transfer) {
        if (!Want(*lane, transfer)) break;
      }
    }
  }

 private:
  static bool Want(PlainLane& lane, uint64_t transfer) {
    v1::Want want;
    want.set_transfer(transfer);
    want.set_object(v1::Want::STATE);
    return lane.Want(want);
  }

  const std::string run_id_;
  const std::string id_;
  const std::unique_ptr<v1::Exchange::Stub> stub_;
  std::vector<std::unique_ptr<PlainLane>> lanes_;
};

absl::StatusOr<Outcome> GreedyPulls() {
  Stage stage({.change = Larger});
  RETURN_IF_ERROR(stage.Begin());
  Run& run = stage.run;
  std::atomic<int> served = 0;
  std::atomic<int> refused = 0;
  std::vector<std::thread> attackers;
  for (int i = 0; i < kConnections; ++i) {
    attackers.emplace_back([&, i] {
      Hoard hoard(run, "liar", i);
      for (int pull = 0; pull < kPullsOfConnection; ++pull) ++(hoard.Pull() ? served : refused);
      hoard.WantMany();
    });
  }
  const absl::Time began = absl::Now();
  const auto play = [&]() -> absl::Status {
    for (int64_t round = 1; round <= kRounds; ++round) RETURN_IF_ERROR(stage.team->DoRound(round));
    return absl::OkStatus();
  };
  const absl::Status played = play();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
  for (std::thread& attacker : attackers) attacker.join();
  if (!played.ok()) return played;
  const absl::Status same = CompareWithAlone(run, Larger, kRounds);
  return Outcome{
      .held = same.ok(),
      .what = absl::StrCat(served.load(), " pulls served, ", refused.load(), " refused; ", kRounds,
                           " honest rounds in ", static_cast<int>(seconds * 10) / 10.0, " s, ",
                           same.ok() ? "the bits of the honest run" : same.message())};
}

}  // namespace

std::vector<Scenario> MembershipScenarios() {
  return {
      {"step", "Ready at step 2000 of a run at step 30", Step},
      {"speed_grace", "adaptive grace: a step of a microsecond, and the first to push",
       SpeedAndGrace},
      {"speed_pace", "max_pace 4: a step a thousand times faster than the others'", SpeedAndPace},
      {"token_budget", "a heartbeat of 2^48 tokens, in a run of 2^20", TokenBudget},
      {"record_flush", "2,000 late headers and repeated Readys", Flush},
      {"expired_certificate", "a connection stays open when its certificate ends",
       ExpiredCertificate},
      {"greedy_pulls",
       "400 pulls of the state over 8 connections, and 100 more over each lane, none of them read",
       GreedyPulls},
  };
}

}  // namespace causeway::hostile
