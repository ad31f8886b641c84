#include "server/outer/merge.h"

#include <numeric>

#include "absl/strings/str_format.h"
#include "server/outer/step_kernels.h"

namespace causeway::server {
namespace {

double SquaresOf(std::span<const float> values, Range slice) {
  return SumOfSquares(values.subspan(slice.begin, slice.size));
}

class Merge {
 public:
  Merge(const MergeInput& input, const FragmentState& state, ThreadPool* pool)
      : input_(input),
        state_(state),
        pool_(pool),
        deltas_({.contributions = input.contributions,
                 .kind = input.kind,
                 .rule = input.rule,
                 .published = state.published},
                pool) {}

  absl::StatusOr<MergeResult> Run() {
    RETURN_IF_ERROR(CheckState());
    RETURN_IF_ERROR(deltas_.Prepare());
    if (!deltas_.empty() && input_.optimizer->needs_gradient_norm()) {
      ASSIGN_OR_RETURN(gradient_norm_, deltas_.Norm());
    }
    if (input_.rehearse) RETURN_IF_ERROR(Rehearse());
    MergeResult result;
    result.answer.resize(input_.answer_codec->EncodedBytes(size()));
    LeafHasher answer_hasher(result.answer);
    LeafHasher published_hasher(
        {reinterpret_cast<const uint8_t*>(state_.published.data()), state_.published.size_bytes()});
    std::vector<double> squares((size() + kMergeSlice - 1) / kMergeSlice);
    const auto merge_slice = [&](size_t index, Range slice) -> absl::Status {
      RETURN_IF_ERROR(MergeSlice(slice, result.answer));
      squares[index] = SquaresOf(state_.published, slice);
      published_hasher.Written(slice.begin * sizeof(float), slice.size * sizeof(float));
      answer_hasher.Written(input_.answer_codec->EncodedBytes(slice.begin),
                            input_.answer_codec->EncodedBytes(slice.size));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(ForEachSlice(size(), kMergeSlice, pool_, merge_slice));
    result.answer_hash = answer_hasher.Root();
    result.answer_leaves = answer_hasher.checksums();
    result.published_hash = published_hasher.Root();
    result.published_norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
    return result;
  }

 private:
  size_t size() const { return state_.theta.size(); }

  absl::Status CheckState() const {
    if (state_.published.size() != size() ||
        state_.optimizer.size() != input_.optimizer->state_names().size() ||
        std::any_of(state_.optimizer.begin(), state_.optimizer.end(),
                    [&](std::span<float> array) { return array.size() != size(); })) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "published (%d values) and %d arrays of optimizer state must be as long as theta (%d)",
          state_.published.size(), input_.optimizer->state_names().size(), size()));
    }
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
    DeltaCombiner::Scratch scratch;
    return ForEachChunk(slice, [&](Range chunk) {
      return MergeChunk(chunk, Part(chunk), scratch,
                        answer.subspan(input_.answer_codec->EncodedBytes(chunk.begin),
                                       input_.answer_codec->EncodedBytes(chunk.size)));
    });
  }

  // The whole round on copies of one chunk after the other.
  absl::Status Rehearse() const {
    return ForEachSlice(size(), kMergeSlice, pool_, [&](size_t, Range slice) {
      DeltaCombiner::Scratch scratch;
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
        return MergeChunk(chunk, part, scratch,
                          std::span(answer).first(input_.answer_codec->EncodedBytes(chunk.size)));
      });
    });
  }

  absl::Status MergeChunk(Range chunk, const FragmentState& part, DeltaCombiner::Scratch& scratch,
                          std::span<uint8_t> answer) const {
    if (!deltas_.empty()) {
      alignas(kCacheLine) std::array<double, kCodecChunk> store;
      const auto g = std::span(store).first(chunk.size);
      absl::InlinedVector<const float*, 4> upcoming = {state_.theta.data() + chunk.begin,
                                                       state_.published.data() + chunk.begin};
      for (const std::span<float> array : state_.optimizer) {
        upcoming.push_back(array.data() + chunk.begin);
      }
      RETURN_IF_ERROR(deltas_.Combine(chunk, upcoming, scratch, g));
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
  DeltaCombiner deltas_;
  double gradient_norm_ = 0;
};

}  // namespace

absl::StatusOr<MergeResult> MergeFragment(const MergeInput& input, const FragmentState& state,
                                          ThreadPool* pool) {
  return Merge(input, state, pool).Run();
}

double Norm(std::span<const float> values) {
  double squares = 0;
  for (size_t begin = 0; begin < values.size(); begin += kMergeSlice) {
    squares += SquaresOf(values, {begin, std::min(kMergeSlice, values.size() - begin)});
  }
  return std::sqrt(squares);
}

absl::StatusOr<std::vector<double>> ContributionWeights(std::span<const int64_t> tokens,
                                                        v1::MembershipConfig::Weighting weighting) {
  int64_t total = 0;
  for (const int64_t count : tokens) {
    if (count < 0 || __builtin_add_overflow(total, count, &total)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a contribution's tokens must be a count, and all together fit 63 bits; one has ",
          count));
    }
  }
  if (weighting != v1::MembershipConfig::TOKENS || total == 0) {
    return std::vector<double>(tokens.size(), 1.0 / static_cast<double>(tokens.size()));
  }
  std::vector<double> weights;
  weights.reserve(tokens.size());
  for (const int64_t count : tokens) {
    weights.push_back(static_cast<double>(count) / static_cast<double>(total));
  }
  return weights;
}

absl::StatusOr<MergeResult> MergeForParent(const RegionMergeInput& input, std::span<float> residual,
                                           ThreadPool* pool) {
  const std::span<const float> published = input.deltas.published;
  const bool gradients = input.deltas.kind == v1::SyncConfig::GRADIENT;
  // FP32 says which float is meant, given the one before; the others round a difference, which is
  // best formed without the values that it is one of.
  const bool against_published = !gradients && input.codec->id() == v1::FP32;
  DeltaCombiner deltas(input.deltas, pool);
  RETURN_IF_ERROR(deltas.Prepare());
  MergeResult result;
  result.answer.resize(input.codec->EncodedBytes(published.size()));
  const auto merge_chunk = [&](Range chunk, DeltaCombiner::Scratch& scratch) -> absl::Status {
    alignas(64) std::array<double, kCodecChunk> g_store;
    alignas(64) std::array<float, kCodecChunk> target_store;
    alignas(64) std::array<float, kCodecChunk> base_store;
    const auto target = std::span(target_store).first(chunk.size);
    const auto base = std::span(base_store).first(chunk.size);
    if (against_published) {
      std::ranges::copy(published.subspan(chunk.begin, chunk.size), base.begin());
    } else {
      std::ranges::fill(base, 0.0F);
    }
    std::ranges::copy(base, target.begin());
    ErrorFeedback feedback;
    if (!deltas.empty()) {
      const auto g = std::span(g_store).first(chunk.size);
      RETURN_IF_ERROR(deltas.Combine(chunk, {}, scratch, g));
      for (size_t i = 0; i < chunk.size; ++i) target[i] = static_cast<float>(base[i] - g[i]);
      if (!residual.empty()) {
        feedback = {.residual = residual.subspan(chunk.begin, chunk.size), .decay = input.decay};
      }
    }
    return input.codec->Encode(base, target, feedback,
                               std::span(result.answer)
                                   .subspan(input.codec->EncodedBytes(chunk.begin),
                                            input.codec->EncodedBytes(chunk.size)));
  };
  RETURN_IF_ERROR(ForEachSlice(published.size(), kMergeSlice, pool, [&](size_t, Range slice) {
    DeltaCombiner::Scratch scratch;
    return ForEachChunk(slice, [&](Range chunk) { return merge_chunk(chunk, scratch); });
  }));
  result.answer_leaves = LeafChecksums(result.answer);
  result.answer_hash = TreeRoot(result.answer_leaves);
  return result;
}

absl::Status FoldBack(const Codec& codec, std::span<const uint8_t> object,
                      std::span<const float> base, std::span<float> residual) {
  std::vector<double> delta(residual.size(), 0.0);
  RETURN_IF_ERROR(codec.Accumulate(object, base, 1.0, delta));
  for (size_t i = 0; i < residual.size(); ++i) {
    residual[i] = static_cast<float>(residual[i] + delta[i]);
  }
  return absl::OkStatus();
}

}  // namespace causeway::server
