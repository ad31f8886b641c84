// A member that asks for more than it can use.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "tests/security/hostile_client/scenarios.h"
#include "tests/security/hostile_client/team.h"
#include "tests/unit/common/rpc/plain_lane.h"

namespace causeway::hostile {
namespace {

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
  Run run({.change = Larger});
  RETURN_IF_ERROR(run.Start());
  Team team(run);
  RETURN_IF_ERROR(team.Enter());
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
    for (int64_t round = 1; round <= kRounds; ++round) RETURN_IF_ERROR(team.DoRound(round));
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

std::vector<Scenario> LoadScenarios() {
  return {
      {"greedy_pulls",
       "400 pulls of the state over 8 connections, and 100 more over each lane, none of them read",
       GreedyPulls}};
}

}  // namespace causeway::hostile
