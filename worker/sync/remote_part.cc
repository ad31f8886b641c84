#include "worker/sync/remote_part.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

// Each waits for a device's copy of codes: some of them at once are plenty.
constexpr int kThreads = 4;

std::span<const uint8_t> BytesOf(std::span<const float> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

std::span<uint8_t> MutableBytesOf(std::span<float> values) {
  return {reinterpret_cast<uint8_t*>(values.data()), values.size_bytes()};
}

size_t BytesOfValues(const Codec* codec, int64_t values) {
  const auto count = static_cast<size_t>(values);
  return codec == nullptr ? count * sizeof(float) : codec->EncodedBytes(count);
}

// Writes a part's leaves as bytes: {leaf, checksum} with a count before them, then {offset, size,
// bytes} to the end; all numbers in 8 bytes.
class LeafWriter final : public LeafSink {
 public:
  void SetLeaf(int64_t leaf, uint64_t checksum) override {
    ++count_;
    Append(leaves_, static_cast<uint64_t>(leaf));
    Append(leaves_, checksum);
  }
  void AddShared(int64_t offset, std::span<const uint8_t> bytes) override {
    Append(shared_, static_cast<uint64_t>(offset));
    Append(shared_, bytes.size());
    shared_.insert(shared_.end(), bytes.begin(), bytes.end());
  }
  ByteBuffer Take() {
    ByteBuffer all;
    Append(all, count_);
    all.insert(all.end(), leaves_.begin(), leaves_.end());
    all.insert(all.end(), shared_.begin(), shared_.end());
    return all;
  }

 private:
  static void Append(ByteBuffer& bytes, uint64_t number) {
    const auto* const at = reinterpret_cast<const uint8_t*>(&number);
    bytes.insert(bytes.end(), at, at + sizeof(number));
  }

  uint64_t count_ = 0;
  ByteBuffer leaves_;
  ByteBuffer shared_;
};

absl::Status ReadLeaves(std::span<const uint8_t> bytes, LeafSink& leaves) {
  bool is_short = false;
  const auto number = [&]() -> uint64_t {
    uint64_t value = 0;
    if (bytes.size() < sizeof(value)) {
      is_short = true;
      return 0;
    }
    std::memcpy(&value, bytes.data(), sizeof(value));
    bytes = bytes.subspan(sizeof(value));
    return value;
  };
  for (uint64_t count = number(); count > 0 && !is_short; --count) {
    const auto leaf = static_cast<int64_t>(number());
    leaves.SetLeaf(leaf, number());
  }
  while (!bytes.empty() && !is_short) {
    const auto offset = static_cast<int64_t>(number());
    const uint64_t size = number();
    is_short = is_short || size > bytes.size();
    if (is_short) break;
    leaves.AddShared(offset, bytes.first(size));
    bytes = bytes.subspan(size);
  }
  if (!is_short) return absl::OkStatus();
  return absl::DataLossError("another process of this site sends leaves that are cut off");
}

}  // namespace

// --- Pieces --------------------------------------------------------------------------------------

template <typename Copy>
size_t PieceBytes::ForEach(const Codec* codec, int fragment, const Copy& copy) const {
  size_t packed = 0;
  for (int rank = first_rank_; rank < first_rank_ + ranks_; ++rank) {
    for (const ShardPiece& piece : shard_plan_.pieces(rank, fragment)) {
      const size_t size = BytesOfValues(codec, piece.size());
      copy(BytesOfValues(codec, piece.begin - plan_.range(fragment).begin), packed, size);
      packed += size;
    }
  }
  return packed;
}

size_t PieceBytes::ObjectBytes(const Codec* codec, int fragment) const {
  return BytesOfValues(codec, plan_.range(fragment).size());
}

ByteBuffer PieceBytes::Pack(const Codec* codec, int fragment,
                            std::span<const uint8_t> object) const {
  ByteBuffer packed(ForEach(codec, fragment, [](size_t, size_t, size_t) {}));
  ForEach(codec, fragment, [&](size_t in_object, size_t in_packed, size_t size) {
    std::memcpy(packed.data() + in_packed, object.data() + in_object, size);
  });
  return packed;
}

absl::Status PieceBytes::Unpack(const Codec* codec, int fragment, std::span<const uint8_t> packed,
                                std::span<uint8_t> object) const {
  const size_t expected = ForEach(codec, fragment, [](size_t, size_t, size_t) {});
  if (packed.size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat("another process of this site sends ",
                                                   packed.size(), " bytes of fragment ", fragment,
                                                   "; its pieces take ", expected));
  }
  ForEach(codec, fragment, [&](size_t in_object, size_t in_packed, size_t size) {
    std::memcpy(object.data() + in_object, packed.data() + in_packed, size);
  });
  return absl::OkStatus();
}

ByteBuffer PieceBytes::PackArena(std::span<const float> arena) const {
  ByteBuffer packed;
  for (int fragment = 0; fragment < plan_.fragments(); ++fragment) {
    const FragmentRange& range = plan_.range(fragment);
    const ByteBuffer part = Pack(nullptr, fragment,
                                 BytesOf(arena.subspan(static_cast<size_t>(range.begin),
                                                       static_cast<size_t>(range.size()))));
    packed.insert(packed.end(), part.begin(), part.end());
  }
  return packed;
}

absl::Status PieceBytes::UnpackArena(std::span<const uint8_t> packed,
                                     std::span<float> arena) const {
  for (int fragment = 0; fragment < plan_.fragments(); ++fragment) {
    const FragmentRange& range = plan_.range(fragment);
    const size_t size =
        std::min(packed.size(), ForEach(nullptr, fragment, [](size_t, size_t, size_t) {}));
    const std::span<float> part =
        arena.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
    RETURN_IF_ERROR(Unpack(nullptr, fragment, packed.first(size), MutableBytesOf(part)));
    packed = packed.subspan(size);
  }
  return absl::OkStatus();
}

// --- Process 0 -----------------------------------------------------------------------------------

class RemotePart::RemoteCodes final : public ReplicaPart::Codes {
 public:
  RemoteCodes(RemotePart& part, int fragment, uint64_t call)
      : part_(part), fragment_(fragment), call_(call) {}

  absl::Status Read(std::span<uint8_t> object) override {
    ASSIGN_OR_RETURN(const ByteBuffer packed, part_.link_.Await(call_));
    return part_.pieces_.Unpack(part_.codec_up_, fragment_, packed, object);
  }

 private:
  RemotePart& part_;
  const int fragment_;
  const uint64_t call_;
};

RemotePart::RemotePart(SiteLink& link, const FragmentPlan& plan, const ShardPlan& shard_plan,
                       const v1::SyncConfig& sync, int first_rank, int ranks)
    : link_(link),
      codec_up_(FindCodec(sync.codec_up()).value()),
      codec_down_(FindCodec(sync.codec_down()).value()),
      pieces_(plan, shard_plan, first_rank, ranks),
      keeps_residuals_(sync.error_feedback()) {}

absl::StatusOr<std::unique_ptr<ReplicaPart::Codes>> RemotePart::Snapshot(int fragment) {
  ASSIGN_OR_RETURN(const uint64_t call, link_.Call(kPartSnapshot, fragment, 0, {}));
  return std::make_unique<RemoteCodes>(*this, fragment, call);
}

absl::Status RemotePart::FoldLate(int fragment, std::span<const uint8_t> object) {
  keeps_residuals_ = true;
  return link_.CallAndAwait(kPartFoldLate, fragment, 0, pieces_.Pack(codec_up_, fragment, object))
      .status();
}

absl::Status RemotePart::StageAnswer(int fragment, std::span<const uint8_t> answer) {
  RETURN_IF_ERROR(
      link_.CallAndAwait(kPartStageAnswer, fragment, 0, pieces_.Pack(codec_down_, fragment, answer))
          .status());
  absl::MutexLock lock(&mutex_);
  staged_.insert(fragment);
  return absl::OkStatus();
}

absl::Status RemotePart::Merge(int fragment, std::span<const uint8_t> answer, float alpha) {
  bool is_staged = false;
  {
    absl::MutexLock lock(&mutex_);
    is_staged = staged_.erase(fragment) > 0;
  }
  if (!is_staged) {
    RETURN_IF_ERROR(StageAnswer(fragment, answer));
    absl::MutexLock lock(&mutex_);
    staged_.erase(fragment);
  }
  // How it went is asked with the hash: no step waits for it.
  ASSIGN_OR_RETURN(merges_[fragment], link_.Call(kPartMerge, fragment, alpha, {}));
  return absl::OkStatus();
}

absl::Status RemotePart::SetPublished(int fragment, std::span<const uint8_t> values) {
  return link_.CallAndAwait(kPartSetPublished, fragment, 0, pieces_.Pack(nullptr, fragment, values))
      .status();
}

absl::Status RemotePart::FinishHash(int fragment, LeafSink& leaves) {
  const auto merge = merges_.find(fragment);
  if (merge != merges_.end()) {
    const uint64_t call = merge->second;
    merges_.erase(merge);
    RETURN_IF_ERROR(link_.Await(call).status());
  }
  ASSIGN_OR_RETURN(const ByteBuffer bytes, link_.CallAndAwait(kPartFinishHash, fragment));
  return ReadLeaves(bytes, leaves);
}

absl::Status RemotePart::Mix(int fragment, float alpha) {
  return link_.CallAndAwait(kPartMix, fragment, alpha).status();
}

absl::Status RemotePart::Hold(int fragment) {
  return link_.CallAndAwait(kPartHold, fragment).status();
}

absl::Status RemotePart::CopyHeld(int fragment, std::span<float> values) {
  ASSIGN_OR_RETURN(const ByteBuffer packed, link_.CallAndAwait(kPartCopyHeld, fragment));
  return pieces_.Unpack(nullptr, fragment, packed, MutableBytesOf(values));
}

absl::Status RemotePart::SetHeld(int fragment, std::span<const float> values) {
  return link_
      .CallAndAwait(kPartSetHeld, fragment, 0, pieces_.Pack(nullptr, fragment, BytesOf(values)))
      .status();
}

absl::Status RemotePart::CopyPublished(std::span<float> arena) {
  ASSIGN_OR_RETURN(const ByteBuffer packed, link_.CallAndAwait(kPartCopyPublished));
  return pieces_.UnpackArena(packed, arena);
}

absl::Status RemotePart::CopyResiduals(std::span<float> arena) {
  ASSIGN_OR_RETURN(const ByteBuffer packed, link_.CallAndAwait(kPartCopyResiduals));
  return pieces_.UnpackArena(packed, arena);
}

absl::Status RemotePart::Restore(std::span<const float> published,
                                 std::span<const float> residual) {
  RETURN_IF_ERROR(
      link_.CallAndAwait(kPartRestorePublished, 0, 0, pieces_.PackArena(published)).status());
  keeps_residuals_ = keeps_residuals_ || !residual.empty();
  return link_
      .CallAndAwait(kPartRestoreResidual, residual.empty() ? 0 : 1, 0,
                    residual.empty() ? ByteBuffer() : pieces_.PackArena(residual))
      .status();
}

// --- The others ----------------------------------------------------------------------------------

PartServer::PartServer(SiteLink& link, ReplicaPart& part, const FragmentPlan& plan,
                       const ShardPlan& shard_plan, const v1::SyncConfig& sync, int first_rank,
                       int ranks)
    : link_(link),
      part_(part),
      plan_(plan),
      codec_up_(FindCodec(sync.codec_up()).value()),
      codec_down_(FindCodec(sync.codec_down()).value()),
      pieces_(plan, shard_plan, first_rank, ranks),
      threads_(kThreads) {}

bool PartServer::HandleAtOnce(SiteCall& call) {
  if (call.method != kPartStageAnswer) return false;
  // An error of the link has a cause, which the training thread finds.
  Handle(call).IgnoreError();
  return true;
}

absl::Status PartServer::Handle(SiteCall& call) {
  const bool has_fragment =
      call.method <= kPartMix || (call.method >= kPartHold && call.method <= kPartSetHeld);
  if (has_fragment && (call.argument < 0 || call.argument >= plan_.fragments())) {
    return link_.Answer(
        call.id, absl::InvalidArgumentError(absl::StrCat("there is no fragment ", call.argument)));
  }
  if (call.method == kPartSnapshot) return Snapshot(call);
  const absl::StatusOr<ByteBuffer> bytes = Do(call);
  return link_.Answer(call.id, bytes.status(),
                      bytes.ok() ? std::span<const uint8_t>(*bytes) : std::span<const uint8_t>());
}

absl::Status PartServer::Snapshot(const SiteCall& call) {
  const auto fragment = static_cast<int>(call.argument);
  absl::StatusOr<std::unique_ptr<ReplicaPart::Codes>> codes = part_.Snapshot(fragment);
  if (!codes.ok()) return link_.Answer(call.id, codes.status());
  threads_.Add([this, fragment, id = call.id,
                read = std::shared_ptr<ReplicaPart::Codes>(*std::move(codes))] {
    ByteBuffer object(pieces_.ObjectBytes(codec_up_, fragment));
    const absl::Status status = read->Read(object);
    // An error of the link has a cause, which the training thread finds.
    link_.Answer(id, status, status.ok() ? pieces_.Pack(codec_up_, fragment, object) : ByteBuffer())
        .IgnoreError();
  });
  return absl::OkStatus();
}

absl::StatusOr<ByteBuffer> PartServer::Do(SiteCall& call) {
  const auto fragment = static_cast<int>(call.argument);
  const auto alpha = static_cast<float>(call.number);
  const auto unpack = [&](const Codec* codec) -> absl::StatusOr<ByteBuffer> {
    ByteBuffer object(pieces_.ObjectBytes(codec, fragment));
    RETURN_IF_ERROR(pieces_.Unpack(codec, fragment, call.bytes, object));
    return object;
  };
  std::vector<float> arena;
  switch (call.method) {
    case kPartFoldLate: {
      ASSIGN_OR_RETURN(const ByteBuffer object, unpack(codec_up_));
      RETURN_IF_ERROR(part_.FoldLate(fragment, object));
      break;
    }
    case kPartStageAnswer: {
      ASSIGN_OR_RETURN(const ByteBuffer object, unpack(codec_down_));
      RETURN_IF_ERROR(part_.StageAnswer(fragment, object));
      break;
    }
    case kPartMerge:
      RETURN_IF_ERROR(part_.Merge(fragment, {}, alpha));  // It is staged.
      break;
    case kPartSetPublished: {
      ASSIGN_OR_RETURN(const ByteBuffer values, unpack(nullptr));
      RETURN_IF_ERROR(part_.SetPublished(fragment, values));
      break;
    }
    case kPartFinishHash: {
      LeafWriter leaves;
      RETURN_IF_ERROR(part_.FinishHash(fragment, leaves));
      return leaves.Take();
    }
    case kPartMix:
      RETURN_IF_ERROR(part_.Mix(fragment, alpha));
      break;
    case kPartHold:
      RETURN_IF_ERROR(part_.Hold(fragment));
      break;
    case kPartCopyHeld:
      arena.resize(static_cast<size_t>(plan_.range(fragment).size()));
      RETURN_IF_ERROR(part_.CopyHeld(fragment, arena));
      return pieces_.Pack(nullptr, fragment, BytesOf(arena));
    case kPartSetHeld:
      arena.resize(static_cast<size_t>(plan_.range(fragment).size()));
      RETURN_IF_ERROR(pieces_.Unpack(nullptr, fragment, call.bytes, MutableBytesOf(arena)));
      RETURN_IF_ERROR(part_.SetHeld(fragment, arena));
      break;
    case kPartCopyPublished:
      arena.resize(static_cast<size_t>(plan_.arena_size()));
      RETURN_IF_ERROR(part_.CopyPublished(arena));
      return pieces_.PackArena(arena);
    case kPartCopyResiduals:
      arena.resize(static_cast<size_t>(plan_.arena_size()));
      RETURN_IF_ERROR(part_.CopyResiduals(arena));
      return pieces_.PackArena(arena);
    case kPartRestorePublished:
      restored_.resize(static_cast<size_t>(plan_.arena_size()));
      RETURN_IF_ERROR(pieces_.UnpackArena(call.bytes, restored_));
      break;
    case kPartRestoreResidual: {
      if (call.argument != 0) {
        arena.resize(static_cast<size_t>(plan_.arena_size()));
        RETURN_IF_ERROR(pieces_.UnpackArena(call.bytes, arena));
      }
      const std::vector<float> published = std::exchange(restored_, {});
      RETURN_IF_ERROR(part_.Restore(published, arena));
      break;
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat("there is no method ", call.method));
  }
  return ByteBuffer();
}

}  // namespace causeway::worker
