#include "server/outer/merge.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"

namespace causeway::server {
namespace {

// Weights may be off 1 by the rounding of their division.
constexpr double kWeightSumTolerance = 1e-9;

struct SliceRange {
  size_t begin;
  size_t size;
};

// A merge in two passes, so that nothing changes before everything is known to succeed. The first
// computes the step on a copy of each slice, checks it and writes the answer; the second decodes
// the contributions again, steps in place and applies the answer.
class Merge {
 public:
  Merge(const MergeInput& input, const FragmentState& state, ThreadPool* pool)
      : input_(input), state_(state), pool_(pool), contributions_(input.contributions) {
    std::sort(
        contributions_.begin(), contributions_.end(),
        [](const Contribution& a, const Contribution& b) { return a.worker_id < b.worker_id; });
  }

  absl::StatusOr<MergeResult> Run() {
    RETURN_IF_ERROR(CheckInput());
    if (!contributions_.empty() && input_.optimizer->needs_gradient_norm()) {
      RETURN_IF_ERROR(ComputeGradientNorm());
    }
    MergeResult result;
    result.answer.resize(input_.answer_codec->EncodedBytes(size()));
    RETURN_IF_ERROR(
        ForEachSlice([&](size_t, SliceRange slice) { return TryStep(slice, result.answer); }));
    RETURN_IF_ERROR(
        ForEachSlice([&](size_t, SliceRange slice) { return Commit(slice, result.answer); }));
    result.answer_hash = TreeHash(std::span<const uint8_t>(result.answer));
    result.published_hash = TreeHash(std::span<const float>(state_.published));
    return result;
  }

 private:
  size_t size() const { return state_.theta.size(); }

  absl::Status CheckInput() const {
    if (state_.published.size() != size() ||
        state_.optimizer.size() != input_.optimizer->state_names().size() ||
        std::any_of(state_.optimizer.begin(), state_.optimizer.end(),
                    [&](std::span<float> array) { return array.size() != size(); })) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "published (%d values) and %d arrays of optimizer state must be as long as theta (%d)",
          state_.published.size(), input_.optimizer->state_names().size(), size()));
    }
    double weight_sum = 0;
    for (size_t i = 0; i < contributions_.size(); ++i) {
      const Contribution& contribution = contributions_[i];
      if (i > 0 && contributions_[i - 1].worker_id == contribution.worker_id) {
        return absl::InvalidArgumentError(
            absl::StrCat("two contributions of ", contribution.worker_id));
      }
      if (!(contribution.weight >= 0)) {
        return absl::InvalidArgumentError(
            absl::StrCat("the weight of ", contribution.worker_id, " is ", contribution.weight));
      }
      weight_sum += contribution.weight;
      const size_t expected = contribution.codec->EncodedBytes(size());
      if (contribution.encoded.size() != expected) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "the contribution of %s has %d bytes; %d values in %s take %d", contribution.worker_id,
            contribution.encoded.size(), size(), contribution.codec->name(), expected));
      }
    }
    if (!contributions_.empty() && !(std::abs(weight_sum - 1) <= kWeightSumTolerance)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the weights must sum to 1, not ", weight_sum));
    }
    return absl::OkStatus();
  }

  // Runs `task` on every slice. Of several errors the first slice's is returned.
  absl::Status ForEachSlice(const std::function<absl::Status(size_t, SliceRange)>& task) const {
    const size_t slices = (size() + kMergeSlice - 1) / kMergeSlice;
    std::vector<absl::Status> statuses(slices);
    const auto run = [&](int64_t index) {
      const auto i = static_cast<size_t>(index);
      const size_t begin = i * kMergeSlice;
      statuses[i] = task(i, SliceRange{begin, std::min(kMergeSlice, size() - begin)});
    };
    if (pool_ != nullptr) {
      pool_->ParallelFor(static_cast<int64_t>(slices), run);
    } else {
      for (size_t i = 0; i < slices; ++i) run(static_cast<int64_t>(i));
    }
    for (size_t i = 0; i < slices; ++i) {
      if (!statuses[i].ok()) {
        return Annotate(statuses[i], absl::StrCat("in the slice from value ", i * kMergeSlice));
      }
    }
    return absl::OkStatus();
  }

  // The weighted sum of the slice's contributions, in order of worker id.
  absl::StatusOr<std::vector<double>> Gradient(SliceRange slice) const {
    std::vector<double> sum(slice.size, 0.0);
    const std::vector<float> zeros(input_.kind == v1::SyncConfig::GRADIENT ? slice.size : 0, 0.0F);
    const std::span<const float> base = input_.kind == v1::SyncConfig::GRADIENT
                                            ? std::span<const float>(zeros)
                                            : state_.published.subspan(slice.begin, slice.size);
    for (const Contribution& contribution : contributions_) {
      const Codec& codec = *contribution.codec;
      const absl::Status status =
          codec.Accumulate(contribution.encoded.subspan(codec.EncodedBytes(slice.begin),
                                                        codec.EncodedBytes(slice.size)),
                           base, contribution.weight, sum);
      if (!status.ok()) {
        return Annotate(status, absl::StrCat("contribution of ", contribution.worker_id));
      }
    }
    return sum;
  }

  absl::Status ComputeGradientNorm() {
    std::vector<double> squares((size() + kMergeSlice - 1) / kMergeSlice, 0.0);
    RETURN_IF_ERROR(ForEachSlice([&](size_t index, SliceRange slice) -> absl::Status {
      ASSIGN_OR_RETURN(const std::vector<double> g, Gradient(slice));
      for (const double value : g) squares[index] += value * value;
      return absl::OkStatus();
    }));
    double total = 0;
    for (const double square : squares) total += square;
    gradient_norm_ = std::sqrt(total);
    return absl::OkStatus();
  }

  void Step(SliceRange slice, std::span<const double> g, std::span<float> theta,
            std::vector<std::span<float>> optimizer_state) const {
    if (contributions_.empty()) return;
    input_.optimizer->Step(
        OuterSlice{.arena_begin = input_.arena_begin + static_cast<int64_t>(slice.begin),
                   .round = input_.round,
                   .gradient_norm = gradient_norm_,
                   .g = g,
                   .theta = theta,
                   .state = std::move(optimizer_state)});
  }

  absl::Status TryStep(SliceRange slice, std::span<uint8_t> answer) const {
    ASSIGN_OR_RETURN(const std::vector<double> g, Gradient(slice));
    const auto copy = [&](std::span<const float> array) {
      const auto part = array.subspan(slice.begin, slice.size);
      return std::vector<float>(part.begin(), part.end());
    };
    std::vector<float> theta = copy(state_.theta);
    std::vector<std::vector<float>> optimizer_state;
    for (const std::span<float> array : state_.optimizer) optimizer_state.push_back(copy(array));
    Step(slice, g, theta, {optimizer_state.begin(), optimizer_state.end()});

    RETURN_IF_ERROR(CheckFinite("theta", theta));
    for (size_t i = 0; i < optimizer_state.size(); ++i) {
      RETURN_IF_ERROR(CheckFinite(input_.optimizer->state_names()[i], optimizer_state[i]));
    }
    const std::span<const float> published = state_.published.subspan(slice.begin, slice.size);
    const std::span<uint8_t> part = AnswerPart(slice, answer);
    absl::Status status = input_.answer_codec->Encode(published, theta, {}, part);
    if (status.ok()) status = input_.answer_codec->Validate(part, published);
    if (!status.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the answer cannot be encoded: ", status.message()));
    }
    return absl::OkStatus();
  }

  // Repeats what TryStep found to succeed.
  absl::Status Commit(SliceRange slice, std::span<uint8_t> answer) const {
    ASSIGN_OR_RETURN(const std::vector<double> g, Gradient(slice));
    std::vector<std::span<float>> optimizer_state;
    for (const std::span<float> array : state_.optimizer) {
      optimizer_state.push_back(array.subspan(slice.begin, slice.size));
    }
    Step(slice, g, state_.theta.subspan(slice.begin, slice.size), std::move(optimizer_state));
    return input_.answer_codec->Apply(AnswerPart(slice, answer),
                                      state_.published.subspan(slice.begin, slice.size));
  }

  std::span<uint8_t> AnswerPart(SliceRange slice, std::span<uint8_t> answer) const {
    return answer.subspan(input_.answer_codec->EncodedBytes(slice.begin),
                          input_.answer_codec->EncodedBytes(slice.size));
  }

  static absl::Status CheckFinite(const std::string& name, std::span<const float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(values[i])) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "value %d of %s would become %g: the training has diverged; lower the learning rates "
            "or the momentum",
            i, name, values[i]));
      }
    }
    return absl::OkStatus();
  }

  const MergeInput& input_;
  const FragmentState& state_;
  ThreadPool* pool_;
  std::vector<Contribution> contributions_;  // In order of worker id.
  double gradient_norm_ = 0;
};

}  // namespace

absl::StatusOr<MergeResult> MergeFragment(const MergeInput& input, const FragmentState& state,
                                          ThreadPool* pool) {
  return Merge(input, state, pool).Run();
}

}  // namespace causeway::server
