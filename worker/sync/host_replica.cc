#include "worker/sync/host_replica.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/checksum.h"
#include "common/base/status_macros.h"

namespace causeway::worker {

// Encoding takes long enough to be done beside the next steps, which change the local values: they
// are copied first.
class HostReplica::HostDelta final : public Replica::Delta {
 public:
  HostDelta(HostReplica& replica, int fragment, std::vector<float> target)
      : replica_(replica), fragment_(fragment), target_(std::move(target)) {}

  absl::StatusOr<EncodedObject> Encode() override {
    const std::vector<float> target = std::exchange(target_, {});
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
  std::vector<float> target_;
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
      held_(static_cast<size_t>(plan.fragments())) {
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
  std::vector<float> target;
  if (contributes_gradients_) {
    const std::span<const float> gradients = Part(gradients_, fragment);
    target.resize(gradients.size());
    std::ranges::transform(gradients, target.begin(), std::negate<>());
  } else {
    const std::span<const float> local = Part(parameters_, fragment);
    target.assign(local.begin(), local.end());
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

absl::StatusOr<std::optional<uint64_t>> HostReplica::Merge(int fragment,
                                                           std::span<const uint8_t> answer,
                                                           float alpha, uint64_t expected) {
  const std::span<float> published = PublishedPart(fragment);
  RETURN_IF_ERROR(codec_down_->Apply(answer, published));
  const uint64_t hash = TreeHash(std::span<const float>(published));
  if (hash == expected) RETURN_IF_ERROR(Mix(fragment, alpha));
  return hash;
}

absl::StatusOr<uint64_t> HostReplica::SetPublished(int fragment, std::span<const uint8_t> values) {
  const std::span<float> published = PublishedPart(fragment);
  std::memcpy(published.data(), values.data(), published.size_bytes());
  return TreeHash(std::span<const float>(published));
}

absl::Status HostReplica::Mix(int fragment, float alpha) {
  const std::span<const float> published = PublishedPart(fragment);
  const std::span<float> local = Part(parameters_, fragment);
  if (const std::vector<float> held = std::exchange(this->held(fragment), {}); !held.empty()) {
    for (size_t i = 0; i < local.size(); ++i) {
      const double in_flight = double{local[i]} - double{held[i]};
      local[i] = static_cast<float>(double{published[i]} + keep_ * in_flight);
    }
    return absl::OkStatus();
  }
  if (alpha == 0) {
    std::ranges::copy(published, local.begin());
    return absl::OkStatus();
  }
  const float beta = 1.0F - alpha;
  for (size_t i = 0; i < local.size(); ++i) local[i] = alpha * local[i] + beta * published[i];
  return absl::OkStatus();
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
