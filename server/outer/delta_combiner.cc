#include "server/outer/delta_combiner.h"

#include "absl/strings/str_format.h"
#include "common/base/checksum.h"
#include "common/params/run_config.h"
#include "server/outer/step_kernels.h"

namespace causeway::server {
namespace {

// Weights may be off 1 by the rounding of their division.
constexpr double kWeightSumTolerance = 1e-9;

// A norm's squares are summed over so many values, chunk by chunk (SumOfSquares) before these sums
// are added: part of the result's definition, as floating-point sums depend on their order.
constexpr size_t kNormSlice = 4 * kCodecChunk;
constexpr size_t kValidationSlice = 64 * kCodecChunk;

// From one contribution's values of a chunk to the next one's: not a multiple of what a set of a
// cache repeats by.
constexpr size_t kTrimStride = kCodecChunk + kCacheLine / sizeof(double);

std::span<const uint8_t> EncodedPart(const Contribution& contribution, Range range) {
  return contribution.encoded.subspan(contribution.codec->EncodedBytes(range.begin),
                                      contribution.codec->EncodedBytes(range.size));
}

// An error in what was validated before.
absl::Status AsInternal(const Contribution& contribution, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("contribution of ", contribution.worker_id,
                                          ", taken for valid: ", status.message()));
}

// values = factor * delta
absl::Status Decode(const Contribution& contribution, Range chunk, std::span<const float> base,
                    double factor, std::span<double> values) {
  const WeightedPart part = {EncodedPart(contribution, chunk), factor};
  return AsInternal(contribution, contribution.codec->WeightedSum({&part, 1}, base, {}, values));
}

}  // namespace

MergeRule MergeRuleOf(const v1::OuterConfig& outer) {
  return {.merge = outer.merge(), .clip_factor = outer.clip_factor(), .trim = outer.trim()};
}

DeltaCombiner::DeltaCombiner(Input input, ThreadPool* pool)
    : input_(std::move(input)), pool_(pool), contributions_(input_.contributions) {
  std::ranges::sort(contributions_, {}, &Contribution::worker_id);
  scales_.resize(contributions_.size(), 1.0);
  const bool alike = std::ranges::all_of(contributions_, [&](const Contribution& contribution) {
    return contribution.codec == contributions_.front().codec;
  });
  if (!contributions_.empty() && alike) one_codec_ = contributions_.front().codec;
}

absl::Status DeltaCombiner::Prepare() {
  RETURN_IF_ERROR(CheckContributions());
  RETURN_IF_ERROR(Validate());
  if (contributions_.size() <= 1) return absl::OkStatus();  // Taken as it is by every rule.
  if (input_.rule.merge == v1::OuterConfig::TRIMMED_MEAN) {
    const auto weighty = static_cast<size_t>(std::ranges::count_if(
        contributions_, [](const Contribution& contribution) { return contribution.weight > 0; }));
    if (weighty >= size_t{kFewestToTrim}) {
      trim_ = std::min(static_cast<size_t>(std::max(0, input_.rule.trim)), (weighty - 1) / 2);
    }
  }
  if (input_.rule.clip_factor > 0 || input_.rule.merge == v1::OuterConfig::NORM_AND_DIRECTION) {
    return WeighByNorms();
  }
  return absl::OkStatus();
}

absl::Status DeltaCombiner::CheckContributions() const {
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
    return absl::InvalidArgumentError(absl::StrCat("the weights must sum to 1, not ", weight_sum));
  }
  return absl::OkStatus();
}

std::span<const float> DeltaCombiner::Base(Range chunk) const {
  static constexpr std::array<float, kCodecChunk> kZeros = {};
  return input_.kind == v1::SyncConfig::GRADIENT
             ? std::span(kZeros).first(chunk.size)
             : input_.published.subspan(chunk.begin, chunk.size);
}

absl::Status DeltaCombiner::Validate() const {
  std::vector<const Contribution*> unknown;
  for (const Contribution& contribution : contributions_) {
    if (!contribution.validated) unknown.push_back(&contribution);
  }
  if (unknown.empty()) return absl::OkStatus();
  return ForEachSlice(size(), kValidationSlice, pool_, [&](size_t, Range slice) {
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

absl::Status DeltaCombiner::Combine(Range chunk, std::span<const float* const> upcoming,
                                    Scratch& scratch, std::span<double> g) const {
  return trim_ > 0 ? SumTrimmed(chunk, scratch, g) : Sum(chunk, upcoming, g);
}

absl::Status DeltaCombiner::Sum(Range chunk, std::span<const float* const> upcoming,
                                std::span<double> g) const {
  if (one_codec_ != nullptr) {
    absl::InlinedVector<WeightedPart, 16> parts;
    for (const Contribution& contribution : contributions_) {
      parts.push_back({EncodedPart(contribution, chunk), contribution.weight});
    }
    if (one_codec_->WeightedSum(parts, Base(chunk), upcoming, g).ok()) return absl::OkStatus();
    // The code below names the worker.
  }
  std::ranges::fill(g, 0.0);
  for (const Contribution& contribution : contributions_) {
    RETURN_IF_ERROR(AsInternal(
        contribution, contribution.codec->Accumulate(EncodedPart(contribution, chunk), Base(chunk),
                                                     contribution.weight, g)));
  }
  return absl::OkStatus();
}

absl::Status DeltaCombiner::SumTrimmed(Range chunk, Scratch& scratch, std::span<double> g) const {
  scratch.resize(contributions_.size() * kTrimStride);
  absl::InlinedVector<double, 16> weights;
  for (size_t i = 0; i < contributions_.size(); ++i) {
    if (contributions_[i].weight == 0) continue;
    const auto values = std::span(scratch).subspan(weights.size() * kTrimStride, chunk.size);
    RETURN_IF_ERROR(Decode(contributions_[i], chunk, Base(chunk), scales_[i], values));
    weights.push_back(contributions_[i].weight);
  }
  TrimmedMean(weights, trim_, scratch, kTrimStride, g);
  return absl::OkStatus();
}

absl::StatusOr<double> DeltaCombiner::NormOf(
    const std::function<absl::Status(Range, std::span<double>)>& read) const {
  std::vector<double> squares((size() + kNormSlice - 1) / kNormSlice, 0.0);
  const absl::Status summed =
      ForEachSlice(size(), kNormSlice, pool_, [&](size_t index, Range slice) {
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

absl::StatusOr<double> DeltaCombiner::NormOf(const Contribution& contribution) const {
  return NormOf([&](Range chunk, std::span<double> delta) {
    return Decode(contribution, chunk, Base(chunk), 1.0, delta);
  });
}

absl::StatusOr<double> DeltaCombiner::Norm() const {
  return NormOf([&](Range chunk, std::span<double> g) {
    Scratch scratch;
    return Combine(chunk, {}, scratch, g);
  });
}

absl::Status DeltaCombiner::WeighByNorms() {
  std::vector<double> norms;
  std::vector<double> ordered;
  for (const Contribution& contribution : contributions_) {
    ASSIGN_OR_RETURN(const double norm, NormOf(contribution));
    norms.push_back(norm);
    if (contribution.weight > 0 && norm > 0) ordered.push_back(norm);
  }
  double mean_norm = 0;
  const bool clips = input_.rule.clip_factor > 0 && !ordered.empty();
  std::ranges::sort(ordered);
  const double longest = clips ? input_.rule.clip_factor * ordered[(ordered.size() - 1) / 2] : 0;
  for (size_t i = 0; i < contributions_.size(); ++i) {
    const bool too_long = clips && norms[i] > longest;
    if (too_long) scales_[i] = longest / norms[i];
    mean_norm += contributions_[i].weight * (too_long ? longest : norms[i]);
  }
  if (input_.rule.merge == v1::OuterConfig::NORM_AND_DIRECTION) {
    return WeighByDirection(norms, mean_norm);
  }
  if (trim_ > 0) return absl::OkStatus();
  for (size_t i = 0; i < contributions_.size(); ++i) contributions_[i].weight *= scales_[i];
  return absl::OkStatus();
}

absl::Status DeltaCombiner::WeighByDirection(const std::vector<double>& norms, double mean_norm) {
  for (size_t i = 0; i < contributions_.size(); ++i) {
    Contribution& contribution = contributions_[i];
    contribution.weight = norms[i] > 0 ? contribution.weight / norms[i] : 0;
  }
  ASSIGN_OR_RETURN(const double length, Norm());
  const double scale = length > 0 ? mean_norm / length : 0;
  for (Contribution& contribution : contributions_) contribution.weight *= scale;
  return absl::OkStatus();
}

absl::Status ForEachSlice(size_t values, size_t slice_size, ThreadPool* pool,
                          const std::function<absl::Status(size_t, Range)>& task) {
  const size_t slices = (values + slice_size - 1) / slice_size;
  std::vector<absl::Status> statuses(slices);
  const auto run = [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    const size_t begin = i * slice_size;
    statuses[i] = task(i, Range{begin, std::min(slice_size, values - begin)});
  };
  if (pool != nullptr) {
    pool->ParallelFor(static_cast<int64_t>(slices), run);
  } else {
    for (size_t i = 0; i < slices; ++i) run(static_cast<int64_t>(i));
  }
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

LeafHasher::LeafHasher(std::span<const uint8_t> data)
    : data_(data),
      missing_((data.size() + kTreeLeafBytes - 1) / kTreeLeafBytes),
      checksums_(missing_.size()) {
  for (size_t i = 0; i < missing_.size(); ++i) {
    missing_[i].store(Leaf(i).size(), std::memory_order_relaxed);
  }
}

std::span<const uint8_t> LeafHasher::Leaf(size_t index) const {
  const size_t begin = index * kTreeLeafBytes;
  return data_.subspan(begin, std::min(kTreeLeafBytes, data_.size() - begin));
}

void LeafHasher::Written(size_t begin, size_t size) {
  const size_t end = begin + size;
  while (begin < end) {
    const size_t leaf = begin / kTreeLeafBytes;
    const size_t part = std::min(end, (leaf + 1) * kTreeLeafBytes) - begin;
    // Acquires what the others wrote into the leaf before they reported it.
    if (missing_[leaf].fetch_sub(part, std::memory_order_acq_rel) == part) {
      checksums_[leaf] = Checksum64(Leaf(leaf));
    }
    begin += part;
  }
}

uint64_t LeafHasher::Root() const { return TreeRoot(checksums_); }

}  // namespace causeway::server
