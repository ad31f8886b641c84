#include "worker/backend/cuda/sync/device_part.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/backend/cuda/sync/replica_shard.h"

namespace causeway::worker::cuda {

class DevicePart::DeviceCodes final : public ReplicaPart::Codes {
 public:
  explicit DeviceCodes(DevicePart& part) : part_(part), slots_(part.shards_.size()) {}
  ~DeviceCodes() override {
    for (size_t i = 0; i < slots_.size(); ++i) part_.shards_[i]->Abandon(slots_[i]);
  }

  absl::Status Begin(int fragment) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      ASSIGN_OR_RETURN(slots_[i], part_.shards_[i]->Snapshot(fragment));
    }
    return absl::OkStatus();
  }

  absl::Status Read(std::span<uint8_t> object) override {
    for (size_t i = 0; i < slots_.size(); ++i) {
      RETURN_IF_ERROR(part_.shards_[i]->Read(std::exchange(slots_[i], nullptr), object));
    }
    return absl::OkStatus();
  }

 private:
  DevicePart& part_;
  std::vector<ReplicaShard::Slot*> slots_;  // By shard.
};

int64_t DeviceReplicaBytes(const FragmentPlan& plan, const ShardPlan& shard_plan,
                           const v1::SyncConfig& sync, int rank, bool published_on_device) {
  return ReplicaShard::Bytes(plan, shard_plan, sync, rank, published_on_device);
}

DevicePart::DevicePart(DevicePartOptions options) : options_(std::move(options)) {}

DevicePart::~DevicePart() = default;

absl::StatusOr<std::unique_ptr<DevicePart>> DevicePart::Create(const FragmentPlan& plan,
                                                               const ShardPlan& shard_plan,
                                                               const v1::SyncConfig& sync,
                                                               std::vector<DeviceShard> shards,
                                                               DevicePartOptions options) {
  std::unique_ptr<DevicePart> part(new DevicePart(std::move(options)));
  for (const DeviceShard& device : shards) {
    ASSIGN_OR_RETURN(
        std::unique_ptr<ReplicaShard> shard,
        ReplicaShard::Create(plan, shard_plan, sync, device, part->options_.published_on_device));
    part->shards_.push_back(std::move(shard));
  }
  return part;
}

absl::StatusOr<std::unique_ptr<ReplicaPart::Codes>> DevicePart::Snapshot(int fragment) {
  auto codes = std::make_unique<DeviceCodes>(*this);
  RETURN_IF_ERROR(codes->Begin(fragment));
  return codes;
}

absl::Status DevicePart::FoldLate(int fragment, std::span<const uint8_t> object) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->FoldLate(fragment, object));
  return absl::OkStatus();
}

absl::Status DevicePart::StageAnswer(int fragment, std::span<const uint8_t> answer) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->StageAnswer(fragment, answer));
  return absl::OkStatus();
}

absl::Status DevicePart::Merge(int fragment, std::span<const uint8_t> answer, float alpha) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->Merge(fragment, answer, alpha));
  if (options_.weights_changed) options_.weights_changed(fragment);
  return absl::OkStatus();
}

absl::Status DevicePart::SetPublished(int fragment, std::span<const uint8_t> values) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->SetPublished(fragment, values));
  return absl::OkStatus();
}

absl::Status DevicePart::FinishHash(int fragment, LeafSink& leaves) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->FinishHash(fragment, leaves));
  return absl::OkStatus();
}

bool DevicePart::IsHashed(int fragment) {
  return std::ranges::all_of(shards_, [&](const auto& shard) { return shard->IsHashed(fragment); });
}

absl::Status DevicePart::Mix(int fragment, float alpha) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->Mix(fragment, alpha));
  if (options_.weights_changed) options_.weights_changed(fragment);
  return absl::OkStatus();
}

absl::Status DevicePart::Hold(int fragment) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->Hold(fragment));
  return absl::OkStatus();
}

absl::Status DevicePart::CopyHeld(int fragment, std::span<float> values) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->CopyHeld(fragment, values));
  return absl::OkStatus();
}

absl::Status DevicePart::SetHeld(int fragment, std::span<const float> values) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->SetHeld(fragment, values));
  return absl::OkStatus();
}

absl::Status DevicePart::CopyPublished(std::span<float> arena) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->CopyPublished(arena));
  return absl::OkStatus();
}

bool DevicePart::KeepsResiduals() const {
  return std::ranges::any_of(shards_, [](const auto& shard) { return shard->keeps_residuals(); });
}

absl::Status DevicePart::CopyResiduals(std::span<float> arena) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->CopyResiduals(arena));
  return absl::OkStatus();
}

absl::Status DevicePart::Restore(std::span<const float> published,
                                 std::span<const float> residual) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->Restore(published, residual));
  return absl::OkStatus();
}

const float* DevicePart::published_on_device(int rank) const {
  for (const auto& shard : shards_) {
    if (shard->rank() == rank) return shard->published_on_device();
  }
  return nullptr;
}

void DevicePart::UseStream(cudaStream_t training) {
  for (const auto& shard : shards_) shard->UseStream(training);
}

absl::Status DevicePart::HoldUp(cudaStream_t stream) {
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->HoldUp(stream));
  return absl::OkStatus();
}

const float* DevicePart::PublishedValues(int fragment) const {
  return shards_.front()->PublishedValues(fragment);
}

}  // namespace causeway::worker::cuda
