// Lies about what was trained: deltas and the weight that they claim.
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tests/security/hostile_client/scenarios.h"
#include "tests/security/hostile_client/team.h"

namespace causeway::hostile {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 48;
constexpr int64_t kRounds = 6;

Outcome Failed(const absl::Status& status) {
  return {.held = false, .what = std::string(status.message())};
}

// Whether what is published is what the three would have published alone.
Outcome SameBits(Run& run, const ConfigChange& change, int64_t rounds) {
  const absl::StatusOr<std::vector<float>> alone = PublishedAlone(change, rounds);
  if (!alone.ok()) return Failed(alone.status());
  const bool same = run.coordinator().PublishedParameters() == *alone;
  return {.held = same, .what = same ? "the bits of the honest run" : "other bits"};
}

// The three and a liar, who is expected from `first_lie` on; `lie` is what it sends, in rounds
// first_lie to last_lie. Then it leaves.
absl::Status PlayRounds(Run& run, Team& team, Site& liar, int64_t first_lie, int64_t last_lie,
                        const std::function<Push(int64_t)>& lie) {
  RETURN_IF_ERROR(team.Enter());
  RETURN_IF_ERROR(liar.Enter((first_lie - 1) * kInterval));
  for (int64_t round = 1; round <= kRounds; ++round) {
    if (round >= first_lie && round <= last_lie) {
      // A refusal is as good as a quarantine.
      liar.Deliver(lie(round)).IgnoreError();
    }
    if (round == last_lie + 1) liar.Leave();
    const absl::Status done = team.DoRound(round);
    RETURN_IF_ERROR(run.coordinator().Health());
    RETURN_IF_ERROR(done);
    if (round <= last_lie) RETURN_IF_ERROR(liar.Merge(round));
  }
  return absl::OkStatus();
}

Outcome Overflow() {
  Run run({});
  if (const absl::Status status = run.Start(); !status.ok()) return Failed(status);
  Team team(run);
  Site liar(run, "liar");
  const absl::Status played = PlayRounds(run, team, liar, 1, 2, [&](int64_t round) {
    Push push =
        round == 1 ? liar.MakePush(1) : liar.MakePushTo(2, -std::numeric_limits<float>::max());
    if (round == 1) push.header.set_tokens(0);
    if (round == 2) push.header.set_tokens(kMostTokens);
    return push;
  });
  if (!played.ok()) {
    // Does its successor get any further?
    liar.Disconnect();
    run.Kill();
    const absl::Status again = run.Start();
    if (!again.ok()) return Failed(again);
    team.Return().IgnoreError();
    team.Merge(2).IgnoreError();
    const absl::Status health = run.coordinator().Health();
    return Failed(health.ok() ? played
                              : absl::InternalError(absl::StrCat("for good: ", health.message())));
  }
  Outcome outcome = SameBits(run, {}, kRounds);
  if (outcome.held) absl::StrAppend(&outcome.what, ", its delta of round 2 quarantined");
  return outcome;
}

Outcome LargeNormInTheFirstRound() {
  const ConfigChange guarded = [](v1::RunConfig& config) {
    config.mutable_membership()->set_outlier_factor(10);
  };
  Run run({.change = guarded});
  if (const absl::Status status = run.Start(); !status.ok()) return Failed(status);
  Team team(run);
  Site liar(run, "liar");
  const absl::Status played =
      PlayRounds(run, team, liar, 1, 1, [&](int64_t round) { return liar.MakePush(round, 1e6); });
  return played.ok() ? SameBits(run, guarded, kRounds) : Failed(played);
}

Outcome Tokens() {
  Run run({});
  if (const absl::Status status = run.Start(); !status.ok()) return Failed(status);
  Team team(run);
  Site liar(run, "liar");
  const absl::Status played = PlayRounds(run, team, liar, 1, kRounds, [&](int64_t round) {
    Push push = liar.MakePush(round);
    push.header.set_tokens(kMostTokens);
    return push;
  });
  if (!played.ok()) return Failed(played);
  liar.Disconnect();
  run.Kill();
  const absl::StatusOr<std::vector<server::RoundRecord>> rounds = run.Rounds();
  if (!rounds.ok()) return Failed(rounds.status());
  double largest = 0;
  for (const server::RoundRecord& round : *rounds) {
    for (size_t i = 0; i < round.contributors.size(); ++i) {
      if (round.contributors[i] == "liar") largest = std::max(largest, round.weights[i]);
    }
  }
  return {.held = largest < 0.25 + 1e-9, .what = absl::StrCat("its weight is ", largest)};
}

// Small deltas that all point away from what the others do: no norm gives them away.
Outcome Rejected() {
  constexpr int64_t kRejectedFrom = 3;
  Run run({});
  if (const absl::Status status = run.Start(); !status.ok()) return Failed(status);
  Team team(run);
  Site liar(run, "liar");
  const auto play = [&]() -> absl::Status {
    RETURN_IF_ERROR(team.Enter());
    RETURN_IF_ERROR(liar.Enter(0));
    for (int64_t round = 1; round <= kRounds; ++round) {
      if (round == kRejectedFrom) {
        v1::RejectRequest request;
        request.set_worker_id("liar");
        request.set_reason("its deltas point away from all others'");
        v1::RejectResponse response;
        grpc::ClientContext context;
        const grpc::Status rejected = liar.admin().Reject(&context, request, &response);
        if (!rejected.ok()) return absl::UnimplementedError(rejected.error_message());
      }
      if (round == kRejectedFrom + 1) {
        run.Kill();
        RETURN_IF_ERROR(run.Start());
        RETURN_IF_ERROR(team.Return());
        RETURN_IF_ERROR(liar.Return());
      }
      RETURN_IF_ERROR(liar.Deliver(liar.MakePush(round)));
      RETURN_IF_ERROR(team.DoRound(round));
      RETURN_IF_ERROR(liar.Merge(round));
    }
    return absl::OkStatus();
  };
  const absl::Status played = play();
  if (!played.ok()) return Failed(played);
  liar.Disconnect();
  run.Kill();
  const absl::StatusOr<std::vector<server::RoundRecord>> rounds = run.Rounds();
  if (!rounds.ok()) return Failed(rounds.status());
  int merged = 0;
  for (const server::RoundRecord& round : *rounds) {
    if (round.round < kRejectedFrom) continue;
    for (const std::string& id : round.contributors) merged += id == "liar";
  }
  return {.held = merged == 0,
          .what = absl::StrCat(merged, " of ", kRounds - kRejectedFrom + 1,
                               " rounds after the order have its delta, a restart among them")};
}

}  // namespace

std::vector<Scenario> ContributionScenarios() {
  return {
      {"overflow", "round 2: every value -3.4e38, 2^48 tokens", Overflow},
      {"large_norm_first", "round 1: a delta a million times too large, outlier_factor 10",
       LargeNormInTheFirstRound},
      {"tokens", "every delta claims 2^48 tokens", Tokens},
      {"rejected", "small deltas against everybody; an operator rejects the worker", Rejected},
  };
}

}  // namespace causeway::hostile
