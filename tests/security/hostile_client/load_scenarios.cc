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

namespace causeway::hostile {
namespace {

constexpr int kConnections = 8;
constexpr int kPullsOfConnection = 50;
constexpr int64_t kRounds = 3;

Outcome Failed(const absl::Status& status) {
  return {.held = false, .what = std::string(status.message())};
}

// A model whose state is worth copying: some 5 MiB.
void Larger(v1::RunConfig& config) {
  config.mutable_model()->set_width(128);
  config.mutable_model()->set_vocabulary_size(8192);
}

// Pulls of states that are begun and not read.
class Hoard {
 public:
  Hoard(Run& run, const std::string& id, int connection)
      : stub_(v1::Exchange::NewStub(
            MakeChannel(run.address(), connection, ChannelSecurity::Plaintext()))) {
    request_.set_run_id(run.coordinator().run_id());
    request_.set_worker_id(id);
    request_.set_object(v1::PullRequest::STATE);
  }
  ~Hoard() {
    for (const auto& context : contexts_) context->TryCancel();
  }
  // Whether one more is served.
  bool Pull() {
    grpc::ClientContext& context = *contexts_.emplace_back(new grpc::ClientContext);
    auto& reader = readers_.emplace_back(stub_->Pull(&context, request_));
    v1::PullResponse header;
    return reader->Read(&header);
  }

 private:
  const std::unique_ptr<v1::Exchange::Stub> stub_;
  v1::PullRequest request_;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::PullResponse>>> readers_;
};

Outcome GreedyPulls() {
  Run run({.change = Larger});
  if (const absl::Status status = run.Start(); !status.ok()) return Failed(status);
  Team team(run);
  if (const absl::Status entered = team.Enter(); !entered.ok()) return Failed(entered);
  std::atomic<int> served = 0;
  std::atomic<int> refused = 0;
  std::vector<std::thread> attackers;
  for (int i = 0; i < kConnections; ++i) {
    attackers.emplace_back([&, i] {
      Hoard hoard(run, "liar", i);
      for (int pull = 0; pull < kPullsOfConnection; ++pull) ++(hoard.Pull() ? served : refused);
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
  if (!played.ok()) return Failed(played);
  const absl::Status same = CompareWithAlone(run, Larger, kRounds);
  return {.held = same.ok(),
          .what = absl::StrCat(served.load(), " pulls served, ", refused.load(), " refused; ",
                               kRounds, " honest rounds in ", static_cast<int>(seconds * 10) / 10.0,
                               " s, ", same.ok() ? "the bits of the honest run" : same.message())};
}

}  // namespace

std::vector<Scenario> LoadScenarios() {
  return {{"greedy_pulls", "400 pulls of the state over 8 connections, none of them read",
           GreedyPulls}};
}

}  // namespace causeway::hostile
