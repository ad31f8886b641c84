// Lies about what was trained: deltas and the weight that they claim.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "common/codec/codec.h"
#include "tests/security/hostile_client/scenarios.h"

namespace causeway::hostile {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 48;
constexpr int64_t kHonestRounds = 6;

using MergeRuleChange = std::function<void(v1::OuterConfig&)>;

// Whether what is published is what the three would have published alone.
absl::StatusOr<Outcome> SameBits(Run& run, const ConfigChange& change, int64_t rounds) {
  RETURN_IF_ERROR(CompareWithAlone(run, change, rounds));
  return Outcome{.held = true, .what = "the bits of the honest run"};
}

// The three and a liar, who is expected from `first_lie` on; `lie` is what it sends, in rounds
// first_lie to last_lie. Then it leaves.
absl::Status PlayRounds(Stage& stage, int64_t first_lie, int64_t last_lie,
                        const std::function<Push(int64_t)>& lie) {
  RETURN_IF_ERROR(stage.Begin((first_lie - 1) * kInterval));
  Site& liar = *stage.liar;
  for (int64_t round = 1; round <= kHonestRounds; ++round) {
    if (round >= first_lie && round <= last_lie) {
      // A refusal is as good as a quarantine.
      liar.Deliver(lie(round)).IgnoreError();
    }
    if (round == last_lie + 1) liar.Leave();
    const absl::Status done = stage.team->DoRound(round);
    RETURN_IF_ERROR(stage.run.coordinator().Health());
    RETURN_IF_ERROR(done);
    if (round <= last_lie) RETURN_IF_ERROR(liar.Merge(round));
  }
  return absl::OkStatus();
}

absl::StatusOr<Outcome> Overflow() {
  Stage stage;
  Run& run = stage.run;
  const absl::Status played = PlayRounds(stage, 1, 2, [&](int64_t round) {
    Push push = round == 1 ? stage.liar->MakePush(1)
                           : stage.liar->MakePushTo(2, -std::numeric_limits<float>::max());
    if (round == 1) push.header.set_tokens(0);
    if (round == 2) push.header.set_tokens(kMostTokens);
    return push;
  });
  if (!played.ok()) {
    // Does its successor get any further?
    if (!stage.liar.has_value()) return played;
    stage.liar->Disconnect();
    run.Kill();
    RETURN_IF_ERROR(run.Start());
    stage.team->Return().IgnoreError();
    stage.team->Merge(2).IgnoreError();
    const absl::Status health = run.coordinator().Health();
    return health.ok() ? played : absl::InternalError(absl::StrCat("for good: ", health.message()));
  }
  ASSIGN_OR_RETURN(Outcome outcome, SameBits(run, {}, kHonestRounds));
  if (outcome.held) absl::StrAppend(&outcome.what, ", its delta of round 2 quarantined");
  return outcome;
}

absl::StatusOr<Outcome> LargeNormInTheFirstRound() {
  const ConfigChange guarded = [](v1::RunConfig& config) {
    config.mutable_membership()->set_outlier_factor(10);
  };
  Stage stage({.change = guarded});
  RETURN_IF_ERROR(
      PlayRounds(stage, 1, 1, [&](int64_t round) { return stage.liar->MakePush(round, 1e6); }));
  return SameBits(stage.run, guarded, kHonestRounds);
}

absl::StatusOr<Outcome> Tokens() {
  Stage stage;
  RETURN_IF_ERROR(PlayRounds(stage, 1, kHonestRounds, [&](int64_t round) {
    Push push = stage.liar->MakePush(round);
    push.header.set_tokens(kMostTokens);
    return push;
  }));
  stage.liar->Disconnect();
  stage.run.Kill();
  ASSIGN_OR_RETURN(const std::vector<v1::Round> rounds, stage.run.Rounds());
  double largest = 0;
  for (const v1::Round& round : rounds) {
    for (int i = 0; i < round.contributors_size(); ++i) {
      if (round.contributors(i) == "liar") largest = std::max(largest, round.weights(i));
    }
  }
  return Outcome{.held = largest < 0.25 + 1e-9, .what = absl::StrCat("its weight is ", largest)};
}

// Small deltas that all point away from what the others do: no norm gives them away.
absl::StatusOr<Outcome> Rejected() {
  constexpr int64_t kRejectedFrom = 3;
  Stage stage;
  RETURN_IF_ERROR(stage.Begin(0));
  Run& run = stage.run;
  Team& team = *stage.team;
  Site& liar = *stage.liar;
  for (int64_t round = 1; round <= kHonestRounds; ++round) {
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
  liar.Disconnect();
  run.Kill();
  ASSIGN_OR_RETURN(const std::vector<v1::Round> rounds, run.Rounds());
  int merged = 0;
  for (const v1::Round& round : rounds) {
    if (round.round() < kRejectedFrom) continue;
    for (const std::string& id : round.contributors()) merged += id == "liar";
  }
  return Outcome{
      .held = merged == 0,
      .what = absl::StrCat(merged, " of ", kHonestRounds - kRejectedFrom + 1,
                           " rounds after the order have its delta, a restart among them")};
}

// One round of honest sites and a liar, whose delta is as large as the bounds let pass, with an
// outer step that is the merged delta itself.
struct OneRound {
  std::vector<double> step;
  std::vector<std::vector<double>> honest;  // Their deltas.
};

absl::StatusOr<OneRound> PlayOneRound(const MergeRuleChange& rule, int more_honest) {
  // Within norm_cap, which is ten times the parameters.
  constexpr double kLargest = 100;
  Stage stage({.change = [&](v1::RunConfig& config) {
    config.mutable_outer()->set_optimizer(v1::OuterConfig::SGD);
    config.mutable_outer()->set_learning_rate(1);
    rule(*config.mutable_outer());
  }});
  RETURN_IF_ERROR(stage.Begin(0));
  Site& liar = *stage.liar;
  std::vector<std::unique_ptr<Site>> others;
  std::vector<Site*> honest;
  for (int i = 0; i < kHonest; ++i) honest.push_back(&stage.team->site(i));
  for (int i = 1; i <= more_honest; ++i) {
    others.push_back(std::make_unique<Site>(stage.run, absl::StrCat("other-", i)));
    honest.push_back(others.back().get());
    RETURN_IF_ERROR(honest.back()->Enter(0));
  }
  const std::vector<float> before = liar.published();
  OneRound result;
  RETURN_IF_ERROR(liar.Deliver(liar.MakePush(1, kLargest)));
  for (Site* const site : honest) {
    const Push push = site->MakePush(1);
    ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(push.header.codec()));
    std::vector<double>& delta = result.honest.emplace_back(before.size(), 0.0);
    RETURN_IF_ERROR(codec->Accumulate(push.object, before, 1.0, delta));
    RETURN_IF_ERROR(site->Deliver(push));
  }
  RETURN_IF_ERROR(liar.Merge(1));
  for (size_t i = 0; i < before.size(); ++i) {
    result.step.push_back(double{before[i]} - double{liar.published()[i]});
  }
  if (stage.run.record().Count("contribution_quarantined") > 0) {
    return absl::InternalError("the delta was quarantined: it was to be as large as may be merged");
  }
  return result;
}

double Length(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

// Measures the liar's step, as a multiple of what an honest site has in it.
absl::StatusOr<double> ShareOfTheLiar(const MergeRuleChange& rule) {
  ASSIGN_OR_RETURN(OneRound round, PlayOneRound(rule, 0));
  const double weight = 1 / (static_cast<double>(round.honest.size()) + 1);
  std::vector<double> lengths;
  for (const std::vector<double>& delta : round.honest) {
    lengths.push_back(Length(delta));
    for (size_t i = 0; i < delta.size(); ++i) round.step[i] -= weight * delta[i];
  }
  std::ranges::sort(lengths);
  return Length(round.step) / (weight * lengths[lengths.size() / 2]);
}

absl::StatusOr<Outcome> Clipped() {
  ASSIGN_OR_RETURN(const double unclipped, ShareOfTheLiar([](v1::OuterConfig&) {}));
  ASSIGN_OR_RETURN(const double clipped,
                   ShareOfTheLiar([](v1::OuterConfig& outer) { outer.set_clip_factor(1); }));
  // The rounding of the published values is in it, too.
  return Outcome{
      .held = clipped < 1 + 1e-3 && unclipped > 50,
      .what = absl::StrFormat("it counts for %.2f of an honest delta, unclipped for %.0f", clipped,
                              unclipped)};
}

absl::StatusOr<Outcome> Trimmed() {
  const auto round = PlayOneRound(
      [](v1::OuterConfig& outer) { outer.set_merge(v1::OuterConfig::TRIMMED_MEAN); }, 2);
  RETURN_IF_ERROR(round.status());
  constexpr double kRounding = 1e-6;
  int64_t beyond = 0;
  for (size_t i = 0; i < round->step.size(); ++i) {
    double least = round->honest[0][i];
    double most = least;
    for (const std::vector<double>& delta : round->honest) {
      least = std::min(least, delta[i]);
      most = std::max(most, delta[i]);
    }
    beyond += round->step[i] < least - kRounding || round->step[i] > most + kRounding;
  }
  return Outcome{.held = beyond == 0,
                 .what = absl::StrCat(beyond, " of ", round->step.size(),
                                      " values moved beyond what the five honest sites sent")};
}

}  // namespace

std::vector<Scenario> ContributionScenarios() {
  return {
      {"overflow", "round 2: every value -3.4e38, 2^48 tokens", Overflow},
      {"large_norm_first", "round 1: a delta a million times too large, outlier_factor 10",
       LargeNormInTheFirstRound},
      {"tokens", "every delta claims 2^48 tokens", Tokens},
      {"rejected", "small deltas against everybody; an operator rejects the worker", Rejected},
      {"clipped", "a delta 100 times too long, within all bounds; clip_factor 1", Clipped},
      {"trimmed", "the same beside five honest ones; TRIMMED_MEAN", Trimmed},
  };
}

}  // namespace causeway::hostile
