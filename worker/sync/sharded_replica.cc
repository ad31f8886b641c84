#include "worker/sync/sharded_replica.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

absl::Status CheckBytes(const Codec& codec, size_t bytes, int64_t values) {
  const size_t expected = codec.EncodedBytes(static_cast<size_t>(values));
  if (bytes == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%d values in %s take %d bytes, not %d", values,
                                                    codec.name(), expected, bytes));
}

}  // namespace

class ShardedReplica::ShardedDelta final : public Replica::Delta {
 public:
  ShardedDelta(size_t bytes, std::vector<std::unique_ptr<ReplicaPart::Codes>> codes)
      : bytes_(bytes), codes_(std::move(codes)) {}

  absl::StatusOr<EncodedObject> Encode() override {
    EncodedObject object;
    object.bytes.resize(bytes_);
    for (const std::unique_ptr<ReplicaPart::Codes>& codes : codes_) {
      RETURN_IF_ERROR(codes->Read(object.bytes));
    }
    object.leaves = LeafChecksums(object.bytes);
    return object;
  }

 private:
  const size_t bytes_;
  const std::vector<std::unique_ptr<ReplicaPart::Codes>> codes_;
};

ShardedReplica::ShardedReplica(const FragmentPlan& plan, const v1::SyncConfig& sync,
                               std::vector<std::unique_ptr<ReplicaPart>> parts)
    : plan_(plan),
      codec_up_(FindCodec(sync.codec_up()).value()),
      codec_down_(FindCodec(sync.codec_down()).value()),
      parts_(std::move(parts)) {}

int64_t ShardedReplica::FragmentBytes(int fragment) const {
  return plan_.range(fragment).size() * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<std::unique_ptr<Replica::Delta>> ShardedReplica::Snapshot(int fragment) {
  std::vector<std::unique_ptr<ReplicaPart::Codes>> codes(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    ASSIGN_OR_RETURN(codes[i], parts_[i]->Snapshot(fragment));
  }
  const auto values = static_cast<size_t>(plan_.range(fragment).size());
  return std::make_unique<ShardedDelta>(codec_up_->EncodedBytes(values), std::move(codes));
}

absl::Status ShardedReplica::FoldLate(int fragment, std::span<const uint8_t> object) {
  RETURN_IF_ERROR(CheckBytes(*codec_up_, object.size(), plan_.range(fragment).size()));
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->FoldLate(fragment, object));
  }
  return absl::OkStatus();
}

absl::Status ShardedReplica::StageAnswer(int fragment, std::span<const uint8_t> answer) {
  RETURN_IF_ERROR(CheckBytes(*codec_down_, answer.size(), plan_.range(fragment).size()));
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->StageAnswer(fragment, answer));
  }
  return absl::OkStatus();
}

absl::Status ShardedReplica::Merge(int fragment, std::span<const uint8_t> answer, float alpha) {
  RETURN_IF_ERROR(CheckBytes(*codec_down_, answer.size(), plan_.range(fragment).size()));
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->Merge(fragment, answer, alpha));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ShardedReplica::FinishHash(int fragment) {
  LeafAssembly hash(FragmentBytes(fragment));
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->FinishHash(fragment, hash));
  }
  return hash.Root();
}

absl::StatusOr<uint64_t> ShardedReplica::FinishMerge(int fragment) { return FinishHash(fragment); }

bool ShardedReplica::IsMerged(int fragment) {
  return std::ranges::all_of(parts_, [&](const auto& part) { return part->IsHashed(fragment); });
}

absl::StatusOr<uint64_t> ShardedReplica::SetPublished(int fragment,
                                                      std::span<const uint8_t> values) {
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->SetPublished(fragment, values));
  }
  return FinishHash(fragment);
}

absl::Status ShardedReplica::Mix(int fragment, float alpha) {
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->Mix(fragment, alpha));
  }
  return absl::OkStatus();
}

absl::Status ShardedReplica::Hold(int fragment) {
  for (const std::unique_ptr<ReplicaPart>& part : parts_) RETURN_IF_ERROR(part->Hold(fragment));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ShardedReplica::Held(int fragment) {
  std::vector<float> values(static_cast<size_t>(plan_.range(fragment).size()));
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->CopyHeld(fragment, values));
  }
  return values;
}

absl::Status ShardedReplica::SetHeld(int fragment, std::span<const float> values) {
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->SetHeld(fragment, values));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> ShardedReplica::Published() {
  published_.resize(static_cast<size_t>(plan_.arena_size()));
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->CopyPublished(published_));
  }
  return published_;
}

absl::StatusOr<Replica::State> ShardedReplica::Save() {
  State state;
  state.published.resize(static_cast<size_t>(plan_.arena_size()));
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->CopyPublished(state.published));
    if (!part->KeepsResiduals()) continue;
    state.residual.resize(state.published.size());
    RETURN_IF_ERROR(part->CopyResiduals(state.residual));
  }
  return state;
}

absl::Status ShardedReplica::Restore(State state) {
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->Restore(state.published, state.residual));
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
