#include "server/core/replay.h"

#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "server/outer/merge.h"
#include "server/outer/outer_optimizer.h"

namespace causeway::server {
namespace {

// theta of one fragment under one optimizer.
struct Trajectory {
  Trajectory(const OuterOptimizer& by, std::span<const float> initial)
      : optimizer(&by),
        theta(initial.begin(), initial.end()),
        state(by.state_names().size(), std::vector<float>(initial.size(), 0.0F)) {}

  std::vector<std::span<float>> StateViews() {
    std::vector<std::span<float>> views;
    for (std::vector<float>& array : state) views.emplace_back(array);
    return views;
  }

  const OuterOptimizer* optimizer;
  std::vector<float> theta;
  std::vector<std::vector<float>> state;
};

class Replayer {
 public:
  Replayer(const ReplayOptions& options, const FragmentPlan& plan)
      : options_(options), config_(options.run->identity.config()), plan_(plan) {}

  absl::StatusOr<ReplayResult> Run() {
    ASSIGN_OR_RETURN(codec_up_, FindCodec(config_.sync().codec_up()));
    ASSIGN_OR_RETURN(codec_down_, FindCodec(config_.sync().codec_down()));
    ASSIGN_OR_RETURN(optimizer_,
                     CreateOuterOptimizer(config_.outer(), config_.train(), plan_.tensors()));
    if (options_.outer.has_value() || !options_.without.empty()) {
      const v1::OuterConfig& outer = options_.outer.has_value() ? *options_.outer : config_.outer();
      other_rule_ = MergeRuleOf(outer);
      ASSIGN_OR_RETURN(other_optimizer_,
                       CreateOuterOptimizer(outer, config_.train(), plan_.tensors()));
      if (other_optimizer_->needs_gradient_norm()) {
        return absl::InvalidArgumentError(
            "outer.optimizer ADAMW is for gradients; deltas can be replayed with NESTEROV, SGD or "
            "ADAM");
      }
    }
    result_.parameters.resize(static_cast<size_t>(plan_.arena_size()));
    auto round = options_.run->rounds.begin();
    for (int i = 0; i < plan_.fragments(); ++i) {
      auto end = round;
      while (end != options_.run->rounds.end() && end->fragment() == i) ++end;
      RETURN_IF_ERROR(ReplayFragment(i, std::span<const v1::Round>(round, end)));
      round = end;
    }
    if (squares_ > 0) result_.relative_difference = std::sqrt(difference_squares_ / squares_);
    return std::move(result_);
  }

 private:
  absl::Status ReplayFragment(int fragment, std::span<const v1::Round> rounds) {
    const FragmentRange& range = plan_.range(fragment);
    const std::span<const float> initial =
        std::span(options_.initial_parameters)
            .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
    const uint64_t hash = TreeHash(initial);
    const uint64_t recorded = options_.run->identity.initial_hashes(fragment);
    std::copy(initial.begin(), initial.end(), result_.parameters.begin() + range.begin);
    if (hash != recorded) return Differs(fragment, 0, hash, recorded);
    Trajectory run(*optimizer_, initial);
    std::optional<Trajectory> other;
    if (other_optimizer_ != nullptr) other.emplace(*other_optimizer_, initial);
    std::vector<float> published(initial.begin(), initial.end());
    for (const v1::Round& round : rounds) {
      RETURN_IF_ERROR(ReplayRound(round, run, other, published));
      ++result_.rounds;
      if (options_.progress) {
        options_.progress(result_.rounds, static_cast<int64_t>(options_.run->rounds.size()));
      }
    }
    const std::vector<float>& final = other.has_value() ? other->theta : published;
    std::copy(final.begin(), final.end(), result_.parameters.begin() + range.begin);
    if (other.has_value()) {
      for (size_t i = 0; i < final.size(); ++i) {
        const double difference = double{other->theta[i]} - double{run.theta[i]};
        difference_squares_ += difference * difference;
        squares_ += double{run.theta[i]} * double{run.theta[i]};
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReplayRound(const v1::Round& round, Trajectory& run,
                           std::optional<Trajectory>& other, std::vector<float>& published) {
    if (round.weights_size() != round.contributors_size()) {
      return absl::DataLossError(absl::StrCat(
          "round ", round.round(), " of fragment ", round.fragment(), " has ", round.weights_size(),
          " weights for ", round.contributors_size(), " contributors"));
    }
    std::vector<std::vector<uint8_t>> objects;
    Store& store = *options_.store;
    for (const std::string& id : round.contributors()) {
      absl::StatusOr<std::vector<uint8_t>> object =
          store.ReadContribution(round.fragment(), round.round(), id);
      if (absl::IsNotFound(object.status())) {
        return absl::NotFoundError(
            absl::StrCat(object.status().message(),
                         ": a run can be replayed if its coordinator was started "
                         "with --retain_deltas"));
      }
      RETURN_IF_ERROR(object.status());
      objects.push_back(*std::move(object));
    }
    const auto merge = [&](Trajectory& by, const MergeRule& rule,
                           std::vector<Contribution> contributions,
                           std::span<float> published_copy) -> absl::StatusOr<MergeResult> {
      MergeInput input;
      input.contributions = std::move(contributions);
      input.kind = config_.sync().contribution();
      input.rule = rule;
      input.optimizer = by.optimizer;
      input.answer_codec = codec_down_;
      input.round = round.round();
      input.arena_begin = plan_.range(round.fragment()).begin;
      const FragmentState state{
          .theta = by.theta, .published = published_copy, .optimizer = by.StateViews()};
      absl::StatusOr<MergeResult> result = MergeFragment(input, state, options_.pool);
      RETURN_IF_ERROR(Annotate(result.status(), absl::StrCat("round ", round.round(),
                                                             " of fragment ", round.fragment())));
      return result;
    };
    std::vector<Contribution> all;
    std::vector<Contribution> kept;
    double kept_weight = 0;
    for (size_t i = 0; i < objects.size(); ++i) {
      const auto index = static_cast<int>(i);
      all.push_back({round.contributors(index), codec_up_, objects[i], round.weights(index),
                     /*validated=*/false});
      if (round.weights(index) == 0 || options_.without.contains(all.back().worker_id)) continue;
      kept.push_back(all.back());
      kept_weight += round.weights(index);
    }
    std::vector<float> beside;
    if (other.has_value()) beside = published;
    ASSIGN_OR_RETURN(const MergeResult merged,
                     merge(run, MergeRuleOf(config_.outer()), std::move(all), published));
    if (merged.published_hash != round.published_hash()) {
      return Differs(round.fragment(), round.round(), merged.published_hash,
                     round.published_hash());
    }
    if (merged.answer_hash != round.answer_hash()) {
      return Differs(round.fragment(), round.round(), merged.answer_hash, round.answer_hash());
    }
    if (!other.has_value() || kept.empty()) return absl::OkStatus();
    // Nobody left out: the bits of the weights as they were.
    for (Contribution& one : kept) one.weight /= options_.without.empty() ? 1 : kept_weight;
    return Annotate(merge(*other, other_rule_, std::move(kept), beside).status(),
                    "with --outer or --without");
  }

  static absl::Status Differs(int fragment, int64_t version, uint64_t found, uint64_t recorded) {
    return absl::DataLossError(absl::StrCat("version ", version, " of fragment ", fragment,
                                            " comes out as ", HashToHex(found), ", recorded is ",
                                            HashToHex(recorded)));
  }

  const ReplayOptions& options_;
  const v1::RunConfig& config_;
  const FragmentPlan& plan_;
  const Codec* codec_up_ = nullptr;
  const Codec* codec_down_ = nullptr;
  std::unique_ptr<const OuterOptimizer> optimizer_;
  std::unique_ptr<const OuterOptimizer> other_optimizer_;
  MergeRule other_rule_;
  ReplayResult result_;
  double difference_squares_ = 0;
  double squares_ = 0;
};

}  // namespace

absl::StatusOr<ReplayResult> Replay(const ReplayOptions& options) {
  const v1::RunIdentity& identity = options.run->identity;
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(identity.config()));
  if (identity.plan_hash() != plan.hash() || identity.initial_hashes_size() != plan.fragments() ||
      std::ssize(options.initial_parameters) != plan.arena_size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this release cuts the model of run ", identity.run_id(),
                     " into other fragments than the one that wrote it: replay it with that one"));
  }
  if ((options.outer.has_value() || !options.without.empty()) &&
      identity.config().sync().contribution() != v1::SyncConfig::PARAMETER_DELTA) {
    return absl::InvalidArgumentError(
        "a run that exchanged gradients can be verified, but not replayed with another optimizer: "
        "its gradients belong to the parameters that they were taken at");
  }
  return Replayer(options, plan).Run();
}

}  // namespace causeway::server
