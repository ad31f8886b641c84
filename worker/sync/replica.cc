#include "worker/sync/replica.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

// Values that are encoded at once: small beside a leaf, and whole codec chunks.
constexpr size_t kEncodedSlice = 16 * kCodecChunk;

}  // namespace

absl::StatusOr<EncodedObject> EncodeObject(const Codec& codec, std::span<const float> base,
                                           std::span<const float> target,
                                           const ErrorFeedback& feedback) {
  if (target.size() != base.size() ||
      (!feedback.residual.empty() && feedback.residual.size() != base.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("base, target and residual must be equally long, not ", base.size(), ", ",
                     target.size(), " and ", feedback.residual.size()));
  }
  EncodedObject object;
  object.bytes.resize(codec.EncodedBytes(base.size()));
  const std::span<uint8_t> bytes = object.bytes;
  size_t hashed = 0;
  for (size_t begin = 0; begin < base.size(); begin += kEncodedSlice) {
    const size_t size = std::min(kEncodedSlice, base.size() - begin);
    const size_t offset = codec.EncodedBytes(begin);
    const size_t end = offset + codec.EncodedBytes(size);
    ErrorFeedback part = feedback;
    if (!feedback.residual.empty()) part.residual = feedback.residual.subspan(begin, size);
    const absl::Status status = codec.Encode(base.subspan(begin, size), target.subspan(begin, size),
                                             part, bytes.subspan(offset, end - offset));
    if (begin > 0) {
      RETURN_IF_ERROR(Annotate(status, absl::StrCat("counted from value ", begin)));
    }
    RETURN_IF_ERROR(status);
    while (hashed < end && (end - hashed >= kTreeLeafBytes || end == bytes.size())) {
      const std::span<const uint8_t> leaf =
          bytes.subspan(hashed, std::min(kTreeLeafBytes, end - hashed));
      object.leaves.push_back(Checksum64(leaf));
      hashed += leaf.size();
    }
  }
  return object;
}

void MixValues(std::span<const float> published, std::span<const float> held, double keep_in_flight,
               float alpha, std::span<float> local) {
  const float beta = 1.0F - alpha;
  if (!held.empty()) {
    for (size_t i = 0; i < local.size(); ++i) {
      const double in_flight = double{local[i]} - double{held[i]};
      local[i] = static_cast<float>(double{published[i]} + keep_in_flight * in_flight);
    }
  } else if (alpha == 0) {
    std::ranges::copy(published, local.begin());
  } else {
    for (size_t i = 0; i < local.size(); ++i) local[i] = alpha * local[i] + beta * published[i];
  }
}

size_t ObjectBytesInFlight(const FragmentPlan& plan, const v1::SyncConfig& sync) {
  size_t bytes = 0;
  for (const v1::Codec id : {sync.codec_up(), sync.codec_down()}) {
    const Codec& codec = *FindCodec(id).value();
    for (int i = 0; i < plan.fragments(); ++i) {
      bytes += codec.EncodedBytes(static_cast<size_t>(plan.range(i).size()));
    }
  }
  return bytes;
}

namespace {

// Values that are copied and mixed while they are in a cache.
constexpr size_t kMixedSlice = size_t{1} << 13;

}  // namespace

// Encoding takes long enough to be done beside the next steps, which change the local values: they
// are copied first.
class HostReplica::HostDelta final : public Replica::Delta {
 public:
  HostDelta(HostReplica& replica, int fragment, Values target)
      : replica_(replica), fragment_(fragment), target_(std::move(target)) {}

  absl::StatusOr<EncodedObject> Encode() override {
    const Values target = std::exchange(target_, {});
    const std::span<const float> base =
        replica_.contributes_gradients_
            ? std::span<const float>(replica_.zeros_).first(target.size())
            : std::span<const float>(replica_.PublishedPart(fragment_));
    return EncodeObject(*replica_.codec_up_, base, target,
                        {.residual = replica_.residual(fragment_), .decay = replica_.decay_});
  }

 private:
  HostReplica& replica_;
  const int fragment_;
  Values target_;
};

HostReplica::HostReplica(const FragmentPlan& plan, const v1::SyncConfig& sync,
                         std::span<float> parameters, std::span<const float> gradients)
    : plan_(plan),
      codec_up_(FindCodec(sync.codec_up()).value()),
      codec_down_(FindCodec(sync.codec_down()).value()),
      decay_(sync.has_error_feedback_decay() ? static_cast<float>(sync.error_feedback_decay())
                                             : 1.0F),
      keep_(sync.keep_in_flight()),
      contributes_gradients_(sync.contribution() == v1::SyncConfig::GRADIENT),
      parameters_(parameters),
      gradients_(gradients),
      published_(static_cast<size_t>(plan.arena_size())),
      residuals_(static_cast<size_t>(plan.fragments())),
      held_(static_cast<size_t>(plan.fragments())),
      staged_(static_cast<size_t>(plan.fragments())) {
  for (int i = 0; i < plan.fragments(); ++i) {
    if (sync.error_feedback()) EnsureResidual(i);
    if (contributes_gradients_) {
      zeros_.resize(std::max(zeros_.size(), static_cast<size_t>(plan.range(i).size())));
    }
  }
}

template <typename T>
std::span<T> HostReplica::Part(std::span<T> arena, int fragment) const {
  const FragmentRange& range = plan_.range(fragment);
  return arena.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

std::span<float> HostReplica::EnsureResidual(int fragment) {
  residual(fragment).resize(static_cast<size_t>(plan_.range(fragment).size()));
  return residual(fragment);
}

absl::StatusOr<std::unique_ptr<Replica::Delta>> HostReplica::Snapshot(int fragment) {
  Values target(static_cast<size_t>(plan_.range(fragment).size()));
  if (contributes_gradients_) {
    std::ranges::transform(Part(gradients_, fragment), target.begin(), std::negate<>());
  } else {
    std::ranges::copy(Part(parameters_, fragment), target.begin());
  }
  return std::make_unique<HostDelta>(*this, fragment, std::move(target));
}

absl::Status HostReplica::FoldLate(int fragment, std::span<const uint8_t> object) {
  const std::span<float> residual = EnsureResidual(fragment);
  std::vector<double> sum(residual.begin(), residual.end());
  RETURN_IF_ERROR(codec_up_->Accumulate(object, PublishedPart(fragment), 1.0, sum));
  for (size_t i = 0; i < residual.size(); ++i) residual[i] = static_cast<float>(sum[i]);
  return absl::OkStatus();
}

absl::Status HostReplica::StageAnswer(int fragment, std::span<const uint8_t> answer) {
  if (staged_count_.fetch_add(1) >= kMostStaged) {
    --staged_count_;
    return absl::OkStatus();
  }
  Staged& staged = staged_[static_cast<size_t>(fragment)];
  const std::span<const float> published = PublishedPart(fragment);
  staged.published.resize(published.size());
  std::ranges::copy(published, staged.published.begin());
  RETURN_IF_ERROR(codec_down_->Apply(answer, staged.published));
  staged.hash = TreeHash(std::span<const float>(staged.published));
  return absl::OkStatus();
}

absl::Status HostReplica::Merge(int fragment, std::span<const uint8_t> answer, float alpha) {
  Staged& staged = staged_[static_cast<size_t>(fragment)];
  const Values published = std::exchange(staged.published, {});
  if (!published.empty()) {
    --staged_count_;
  } else {
    const std::span<float> copy = PublishedPart(fragment);
    RETURN_IF_ERROR(codec_down_->Apply(answer, copy));
    staged.hash = TreeHash(std::span<const float>(copy));
  }
  PublishAndMix(fragment, published, alpha);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> HostReplica::FinishMerge(int fragment) {
  return staged_[static_cast<size_t>(fragment)].hash;
}

absl::StatusOr<uint64_t> HostReplica::SetPublished(int fragment, std::span<const uint8_t> values) {
  const std::span<float> published = PublishedPart(fragment);
  std::memcpy(published.data(), values.data(), published.size_bytes());
  return TreeHash(std::span<const float>(published));
}

absl::Status HostReplica::Mix(int fragment, float alpha) {
  PublishAndMix(fragment, {}, alpha);
  return absl::OkStatus();
}

void HostReplica::PublishAndMix(int fragment, std::span<const float> staged, float alpha) {
  const std::vector<float> held = std::exchange(this->held(fragment), {});
  const size_t size = PublishedPart(fragment).size();
  for (size_t begin = 0; begin < size; begin += kMixedSlice) {
    const size_t count = std::min(kMixedSlice, size - begin);
    const std::span<float> published = PublishedPart(fragment).subspan(begin, count);
    const std::span<float> local = Part(parameters_, fragment).subspan(begin, count);
    if (!staged.empty()) std::ranges::copy(staged.subspan(begin, count), published.begin());
    MixValues(published,
              held.empty() ? std::span<const float>() : std::span(held).subspan(begin, count),
              keep_, alpha, local);
  }
}

absl::Status HostReplica::Hold(int fragment) {
  return SetHeld(fragment, Part(parameters_, fragment));
}

absl::Status HostReplica::SetHeld(int fragment, std::span<const float> values) {
  held(fragment).assign(values.begin(), values.end());
  return absl::OkStatus();
}

absl::StatusOr<Replica::State> HostReplica::Save() {
  State state;
  state.published = published_;
  for (int i = 0; i < plan_.fragments(); ++i) {
    if (residual(i).empty()) continue;
    state.residual.resize(published_.size());
    std::ranges::copy(residual(i), Part(std::span(state.residual), i).begin());
  }
  return state;
}

absl::Status HostReplica::Restore(State state) {
  published_ = std::move(state.published);
  if (state.residual.empty()) return absl::OkStatus();
  for (int i = 0; i < plan_.fragments(); ++i) {
    std::ranges::copy(Part(std::span(state.residual), i), EnsureResidual(i).begin());
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
