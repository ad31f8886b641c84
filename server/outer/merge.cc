#include "server/outer/merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "server/outer/leaf_hasher.h"
#include "server/outer/step_kernels.h"

namespace causeway::server {
namespace {

// Weights may be off 1 by the rounding of their division.
constexpr double kWeightSumTolerance = 1e-9;

// What a norm's squares are summed over chunk by chunk (SumOfSquares) before these sums are added:
// part of the result's definition, as floating-point sums depend on their order.
constexpr size_t kNormSlice = 4 * kCodecChunk;

constexpr size_t kCacheLine = 64;

struct Range {
  size_t begin;
  size_t size;
};

// Calls visit(chunk) for the codec chunks of `range`, until it returns an error.
template <typename Visit>
absl::Status ForEachChunk(Range range, const Visit& visit) {
  for (size_t done = 0; done < range.size; done += kCodecChunk) {
    const Range chunk{range.begin + done, std::min(kCodecChunk, range.size - done)};
    const absl::Status status = visit(chunk);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("in the chunk from value ", chunk.begin));
    }
  }
  return absl::OkStatus();
}

class Merge {
 public:
  Merge(const MergeInput& input, const FragmentState& state, ThreadPool* pool)
      : input_(input), state_(state), pool_(pool), contributions_(input.contributions) {
    std::sort(
        contributions_.begin(), contributions_.end(),
        [](const Contribution& a, const Contribution& b) { return a.worker_id < b.worker_id; });
    if (!contributions_.empty() && std::all_of(contributions_.begin(), contributions_.end(),
                                               [&](const Contribution& contribution) {
                                                 return contribution.codec ==
                                                        contributions_.front().codec;
                                               })) {
      one_codec_ = contributions_.front().codec;
    }
  }

  absl::StatusOr<MergeResult> Run() {
    RETURN_IF_ERROR(CheckInput());
    RETURN_IF_ERROR(ValidateContributions());
    if (input_.merge == v1::OuterConfig::NORM_AND_DIRECTION && contributions_.size() > 1) {
      RETURN_IF_ERROR(WeighByDirection());
    }
    if (!contributions_.empty() && input_.optimizer->needs_gradient_norm()) {
      ASSIGN_OR_RETURN(gradient_norm_, SumsNorm());
    }
    if (input_.rehearse) RETURN_IF_ERROR(Rehearse());
    MergeResult result;
    result.answer.resize(input_.answer_codec->EncodedBytes(size()));
    LeafHasher answer_hasher(result.answer);
    LeafHasher published_hasher(
        {reinterpret_cast<const uint8_t*>(state_.published.data()), state_.published.size_bytes()});
    const absl::Status merged = ForEachSlice(kMergeSlice, [&](size_t, Range slice) -> absl::Status {
      RETURN_IF_ERROR(MergeSlice(slice, result.answer));
      published_hasher.Written(slice.begin * sizeof(float), slice.size * sizeof(float));
      answer_hasher.Written(input_.answer_codec->EncodedBytes(slice.begin),
                            input_.answer_codec->EncodedBytes(slice.size));
      return absl::OkStatus();
    });
    RETURN_IF_ERROR(merged);
    result.answer_hash = answer_hasher.Root();
    result.answer_leaves = answer_hasher.checksums();
    result.published_hash = published_hasher.Root();
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

  // Runs task(index, slice) on every slice of `values` values. Of several errors the first
  // slice's is returned.
  absl::Status ForEachSlice(size_t values,
                            const std::function<absl::Status(size_t, Range)>& task) const {
    const size_t slices = (size() + values - 1) / values;
    std::vector<absl::Status> statuses(slices);
    const auto run = [&](int64_t index) {
      const auto i = static_cast<size_t>(index);
      const size_t begin = i * values;
      statuses[i] = task(i, Range{begin, std::min(values, size() - begin)});
    };
    if (pool_ != nullptr) {
      pool_->ParallelFor(static_cast<int64_t>(slices), run);
    } else {
      for (size_t i = 0; i < slices; ++i) run(static_cast<int64_t>(i));
    }
    for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }

  static std::span<const uint8_t> EncodedPart(const Contribution& contribution, Range range) {
    return contribution.encoded.subspan(contribution.codec->EncodedBytes(range.begin),
                                        contribution.codec->EncodedBytes(range.size));
  }

  // What the contributions of a chunk were encoded against.
  std::span<const float> Base(Range chunk) const {
    static constexpr std::array<float, kCodecChunk> kZeros = {};
    return input_.kind == v1::SyncConfig::GRADIENT
               ? std::span(kZeros).first(chunk.size)
               : std::span<const float>(state_.published.subspan(chunk.begin, chunk.size));
  }

  absl::Status ValidateContributions() const {
    std::vector<const Contribution*> unknown;
    for (const Contribution& contribution : contributions_) {
      if (!contribution.validated) unknown.push_back(&contribution);
    }
    if (unknown.empty()) return absl::OkStatus();
    return ForEachSlice(kMergeSlice, [&](size_t, Range slice) {
      return ForEachChunk(slice, [&](Range chunk) {
        for (const Contribution* contribution : unknown) {
          const absl::Status status =
              contribution->codec->Validate(EncodedPart(*contribution, chunk), Base(chunk));
          if (!status.ok()) {
            return Annotate(status, absl::StrCat("contribution of ", contribution->worker_id));
          }
        }
        return absl::OkStatus();
      });
    });
  }

  // An error in what was validated before.
  static absl::Status AsInternal(const Contribution& contribution, const absl::Status& status) {
    if (status.ok()) return status;
    return absl::InternalError(absl::StrCat("contribution of ", contribution.worker_id,
                                            ", taken for valid: ", status.message()));
  }

  // The weighted sum of a chunk's contributions, in order of worker id.
  absl::Status SumContributions(Range chunk, std::span<double> sum) const {
    if (one_codec_ != nullptr) {
      absl::InlinedVector<const float*, 4> upcoming = {state_.theta.data() + chunk.begin,
                                                       state_.published.data() + chunk.begin};
      for (const std::span<float> array : state_.optimizer) {
        upcoming.push_back(array.data() + chunk.begin);
      }
      absl::InlinedVector<WeightedPart, 16> parts;
      for (const Contribution& contribution : contributions_) {
        parts.push_back({EncodedPart(contribution, chunk), contribution.weight});
      }
      if (one_codec_->WeightedSum(parts, Base(chunk), upcoming, sum).ok()) return absl::OkStatus();
      // What follows names the worker.
    }
    std::fill(sum.begin(), sum.end(), 0.0);
    for (const Contribution& contribution : contributions_) {
      RETURN_IF_ERROR(AsInternal(
          contribution, contribution.codec->Accumulate(EncodedPart(contribution, chunk),
                                                       Base(chunk), contribution.weight, sum)));
    }
    return absl::OkStatus();
  }

  // The norm of what `read(chunk, values)` makes of the fragment's chunks.
  absl::StatusOr<double> Norm(
      const std::function<absl::Status(Range, std::span<double>)>& read) const {
    std::vector<double> squares((size() + kNormSlice - 1) / kNormSlice, 0.0);
    const absl::Status summed = ForEachSlice(kNormSlice, [&](size_t index, Range slice) {
      alignas(kCacheLine) std::array<double, kCodecChunk> store;
      return ForEachChunk(slice, [&](Range chunk) -> absl::Status {
        const auto values = std::span(store).first(chunk.size);
        RETURN_IF_ERROR(read(chunk, values));
        squares[index] += SumOfSquares(values);
        return absl::OkStatus();
      });
    });
    RETURN_IF_ERROR(summed);
    double total = 0;
    for (const double square : squares) total += square;
    return std::sqrt(total);
  }

  absl::StatusOr<double> SumsNorm() const {
    return Norm([this](Range chunk, std::span<double> g) { return SumContributions(chunk, g); });
  }

  // Replaces the weights by those with which the sum has the mean direction and the mean norm.
  absl::Status WeighByDirection() {
    double mean_norm = 0;
    for (Contribution& contribution : contributions_) {
      ASSIGN_OR_RETURN(const double norm, Norm([&](Range chunk, std::span<double> delta) {
                         const WeightedPart part = {EncodedPart(contribution, chunk), 1.0};
                         return AsInternal(contribution, contribution.codec->WeightedSum(
                                                             {&part, 1}, Base(chunk), {}, delta));
                       }));
      mean_norm += contribution.weight * norm;
      contribution.weight = norm > 0 ? contribution.weight / norm : 0;
    }
    ASSIGN_OR_RETURN(const double length, SumsNorm());
    const double scale = length > 0 ? mean_norm / length : 0;
    for (Contribution& contribution : contributions_) contribution.weight *= scale;
    return absl::OkStatus();
  }

  // The state of one chunk.
  FragmentState Part(Range chunk) const {
    FragmentState part{.theta = state_.theta.subspan(chunk.begin, chunk.size),
                       .published = state_.published.subspan(chunk.begin, chunk.size),
                       .optimizer = {}};
    part.optimizer.reserve(state_.optimizer.size());
    for (const std::span<float> array : state_.optimizer) {
      part.optimizer.push_back(array.subspan(chunk.begin, chunk.size));
    }
    return part;
  }

  absl::Status MergeSlice(Range slice, std::span<uint8_t> answer) const {
    return ForEachChunk(slice, [&](Range chunk) {
      return MergeChunk(chunk, Part(chunk),
                        answer.subspan(input_.answer_codec->EncodedBytes(chunk.begin),
                                       input_.answer_codec->EncodedBytes(chunk.size)));
    });
  }

  // The whole round on copies of one chunk after the other.
  absl::Status Rehearse() const {
    return ForEachSlice(kMergeSlice, [&](size_t, Range slice) {
      std::vector<std::vector<float>> copies(2 + state_.optimizer.size());
      std::vector<uint8_t> answer(input_.answer_codec->EncodedBytes(kCodecChunk));
      return ForEachChunk(slice, [&](Range chunk) {
        const auto copy = [&](size_t index, std::span<const float> values) {
          copies[index].assign(values.begin(), values.end());
          return std::span(copies[index]);
        };
        FragmentState part = Part(chunk);
        part.theta = copy(0, part.theta);
        part.published = copy(1, part.published);
        for (size_t i = 0; i < part.optimizer.size(); ++i) {
          part.optimizer[i] = copy(2 + i, part.optimizer[i]);
        }
        return MergeChunk(chunk, part,
                          std::span(answer).first(input_.answer_codec->EncodedBytes(chunk.size)));
      });
    });
  }

  absl::Status MergeChunk(Range chunk, const FragmentState& part, std::span<uint8_t> answer) const {
    if (!contributions_.empty()) {
      alignas(kCacheLine) std::array<double, kCodecChunk> store;
      const auto g = std::span(store).first(chunk.size);
      RETURN_IF_ERROR(SumContributions(chunk, g));
      RETURN_IF_ERROR(Step(chunk, g, part));
    }
    return Answer(part, answer);
  }

  absl::Status Step(Range chunk, std::span<const double> g, const FragmentState& part) const {
    const OuterSlice slice{.arena_begin = input_.arena_begin + static_cast<int64_t>(chunk.begin),
                           .round = input_.round,
                           .gradient_norm = gradient_norm_,
                           .g = g,
                           .theta = part.theta,
                           .state = {part.optimizer.begin(), part.optimizer.end()}};
    input_.optimizer->Step(slice);
    RETURN_IF_ERROR(CheckFinite("theta", slice.theta));
    for (size_t i = 0; i < slice.state.size(); ++i) {
      RETURN_IF_ERROR(CheckFinite(input_.optimizer->state_names()[i], slice.state[i]));
    }
    return absl::OkStatus();
  }

  // `answer`: of this chunk.
  absl::Status Answer(const FragmentState& part, std::span<uint8_t> answer) const {
    const Codec& codec = *input_.answer_codec;
    absl::Status status = codec.Encode(part.published, part.theta, {}, answer);
    if (status.ok()) status = codec.Apply(answer, part.published);
    if (!status.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the answer cannot be encoded: ", status.message()));
    }
    return absl::OkStatus();
  }

  static absl::Status CheckFinite(const std::string& name, std::span<const float> values) {
    if (AllFinite(values)) return absl::OkStatus();
    for (size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(values[i])) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "value %d of %s became %g: the training has diverged; lower the learning rates "
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
  const Codec* one_codec_ = nullptr;         // If all contributions have the same.
  double gradient_norm_ = 0;
};

}  // namespace

absl::StatusOr<MergeResult> MergeFragment(const MergeInput& input, const FragmentState& state,
                                          ThreadPool* pool) {
  return Merge(input, state, pool).Run();
}

}  // namespace causeway::server
