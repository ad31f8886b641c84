#include "worker/sync/remote_part.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/sync/host_part.h"

namespace causeway::worker {
namespace {

// Each waits for a device's copy of codes: some of them at once are plenty.
constexpr int kThreads = 4;

struct Contents {
  PartData in = PartData::kNone;
  PartData out = PartData::kNone;
  bool of_fragment = true;
};

// Of every method but Snapshot and FinishHash. A merge finds its answer staged.
Contents ContentsOf(PartMethod method) {
  switch (method) {
    case kPartFoldLate:
      return {.in = PartData::kCodesUp};
    case kPartStageAnswer:
      return {.in = PartData::kCodesDown};
    case kPartSetPublished:
    case kPartSetHeld:
    case kPartSetLocal:
      return {.in = PartData::kFragment};
    case kPartCopyHeld:
    case kPartCopyLocal:
      return {.out = PartData::kFragment};
    case kPartSetGaps:
      return {.in = PartData::kGaps};
    case kPartCopyGaps:
      return {.out = PartData::kGaps};
    case kPartCopyPublished:
    case kPartCopyResiduals:
      return {.out = PartData::kArena, .of_fragment = false};
    case kPartRestorePublished:
    case kPartRestoreResidual:
      return {.in = PartData::kArena, .of_fragment = false};
    case kPartSnapshot:
    case kPartMerge:
    case kPartFinishHash:
    case kPartMix:
    case kPartHold:
      break;
  }
  return {};
}

}  // namespace

// --- Pieces --------------------------------------------------------------------------------------

PieceBytes::PieceBytes(const FragmentPlan& plan, const ShardPlan& shard_plan,
                       const v1::SyncConfig& sync, int first_rank, int ranks)
    : plan_(plan),
      shard_plan_(shard_plan),
      codec_up_(FindCodec(sync.codec_up()).value()),
      codec_down_(FindCodec(sync.codec_down()).value()),
      first_rank_(first_rank),
      ranks_(ranks) {}

size_t PieceBytes::BytesOfValues(PartData data, int64_t values) const {
  const auto count = static_cast<size_t>(values);
  if (data == PartData::kCodesUp) return codec_up_->EncodedBytes(count);
  if (data == PartData::kCodesDown) return codec_down_->EncodedBytes(count);
  return count * sizeof(float);
}

size_t PieceBytes::WholeBytes(PartData data, int fragment) const {
  if (data == PartData::kNone) return 0;
  if (data == PartData::kGaps) return BytesOfValues(data, GapSize(plan_, fragment));
  return BytesOfValues(
      data, data == PartData::kArena ? plan_.arena_size() : plan_.range(fragment).size());
}

template <typename Copy>
size_t PieceBytes::ForEach(PartData data, int fragment, const Copy& copy) const {
  if (data == PartData::kNone) return 0;
  const bool all = data == PartData::kArena;
  size_t packed = 0;
  for (int i = all ? 0 : fragment; i < (all ? plan_.fragments() : fragment + 1); ++i) {
    const int64_t begin = all ? 0 : plan_.range(i).begin;  // Of the whole, in the arena.
    const auto add = [&](int64_t place, int64_t values) {
      const size_t size = BytesOfValues(data, values);
      copy(BytesOfValues(data, place), packed, size);
      packed += size;
    };
    for (int rank = first_rank_; rank < first_rank_ + ranks_; ++rank) {
      if (data == PartData::kGaps) {
        for (const GapPiece& gap : GapPieces(plan_, shard_plan_, rank, i)) add(gap.place, gap.size);
        continue;
      }
      for (const ShardPiece& piece : shard_plan_.pieces(rank, i)) {
        add(piece.begin - begin, piece.size());
      }
    }
  }
  return packed;
}

ByteBuffer PieceBytes::Pack(PartData data, int fragment, std::span<const uint8_t> whole) const {
  ByteBuffer packed(ForEach(data, fragment, [](size_t, size_t, size_t) {}));
  ForEach(data, fragment, [&](size_t in_whole, size_t in_packed, size_t size) {
    std::memcpy(packed.data() + in_packed, whole.data() + in_whole, size);
  });
  return packed;
}

absl::Status PieceBytes::Unpack(PartData data, int fragment, std::span<const uint8_t> packed,
                                std::span<uint8_t> whole) const {
  const size_t expected = ForEach(data, fragment, [](size_t, size_t, size_t) {});
  if (packed.size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        "another process of this site sends ", packed.size(), " bytes of ",
        data == PartData::kArena ? "all fragments" : absl::StrCat("fragment ", fragment),
        "; its pieces take ", expected));
  }
  ForEach(data, fragment, [&](size_t in_whole, size_t in_packed, size_t size) {
    std::memcpy(whole.data() + in_whole, packed.data() + in_packed, size);
  });
  return absl::OkStatus();
}

// --- Process 0 -----------------------------------------------------------------------------------

class RemotePart::RemoteCodes final : public ReplicaPart::Codes {
 public:
  RemoteCodes(RemotePart& part, int fragment, uint64_t call)
      : part_(part), fragment_(fragment), call_(call) {}

  absl::Status Read(std::span<uint8_t> object) override {
    ASSIGN_OR_RETURN(const ByteBuffer packed, part_.link_.Await(call_));
    return part_.pieces_.Unpack(PartData::kCodesUp, fragment_, packed, object);
  }

 private:
  RemotePart& part_;
  const int fragment_;
  const uint64_t call_;
};

absl::StatusOr<std::unique_ptr<ReplicaPart::Codes>> RemotePart::Snapshot(int fragment) {
  ASSIGN_OR_RETURN(const uint64_t call, link_.Call(kPartSnapshot, fragment, 0, {}));
  return std::make_unique<RemoteCodes>(*this, fragment, call);
}

absl::Status RemotePart::Do(const PartCall& call) {
  ASSIGN_OR_RETURN(const Rest rest, Begin(call));
  return rest == nullptr ? absl::OkStatus() : rest();
}

absl::StatusOr<ReplicaPart::Rest> RemotePart::Begin(const PartCall& call) {
  if (call.method == kPartMerge) return BeginMerge(call);
  if (call.method == kPartFoldLate || call.method == kPartRestoreResidual) keeps_residuals_ = true;
  const Contents contents = ContentsOf(call.method);
  ASSIGN_OR_RETURN(const uint64_t id,
                   link_.Call(call.method, call.fragment, call.alpha,
                              pieces_.Pack(contents.in, call.fragment, call.in)));
  return [this, call, id, out = contents.out]() -> absl::Status {
    ASSIGN_OR_RETURN(const ByteBuffer answer, link_.Await(id));
    if (call.method == kPartStageAnswer) {
      absl::MutexLock lock(&mutex_);
      staged_.insert(call.fragment);
    }
    if (out == PartData::kNone) return absl::OkStatus();
    return pieces_.Unpack(out, call.fragment, answer, call.out);
  };
}

absl::StatusOr<ReplicaPart::Rest> RemotePart::BeginMerge(const PartCall& call) {
  const auto take_staged = [this, fragment = call.fragment] {
    absl::MutexLock lock(&mutex_);
    return staged_.erase(fragment) > 0;
  };
  // How it went is asked with the hash: no step waits for it.
  const auto merge = [this, call]() -> absl::Status {
    ASSIGN_OR_RETURN(merges_[call.fragment], link_.Call(kPartMerge, call.fragment, call.alpha, {}));
    return absl::OkStatus();
  };
  if (take_staged()) {
    RETURN_IF_ERROR(merge());
    return Rest();
  }
  ASSIGN_OR_RETURN(const Rest stage,
                   Begin({.method = kPartStageAnswer, .fragment = call.fragment, .in = call.in}));
  return [stage, take_staged, merge]() -> absl::Status {
    RETURN_IF_ERROR(stage());
    take_staged();
    return merge();
  };
}

absl::Status RemotePart::AskForHash(int fragment) {
  ASSIGN_OR_RETURN(hash_call_, link_.Call(kPartFinishHash, fragment, 0, {}));
  return absl::OkStatus();
}

absl::Status RemotePart::FinishHash(int fragment, LeafSink& leaves) {
  const auto merge = merges_.find(fragment);
  if (merge != merges_.end()) {
    const uint64_t call = merge->second;
    merges_.erase(merge);
    RETURN_IF_ERROR(link_.Await(call).status());
  }
  ASSIGN_OR_RETURN(const ByteBuffer bytes, link_.Await(hash_call_));
  v1::SiteLeaves theirs;
  if (!theirs.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("another process of this site sends leaves that are cut off");
  }
  leaves.Take(theirs);
  return absl::OkStatus();
}

absl::Status CallAll(std::span<const RemoteRanks> others, int method, int64_t argument,
                     const BytesFor& bytes, const std::function<absl::Status()>& own,
                     const TakeFrom& take) {
  std::vector<uint64_t> calls;
  for (size_t i = 0; i < others.size(); ++i) {
    const ByteBuffer sent = bytes ? bytes(i) : ByteBuffer();
    ASSIGN_OR_RETURN(calls.emplace_back(), others[i].link->Call(method, argument, 0, sent));
  }
  absl::Status first = own ? own() : absl::OkStatus();
  // A gradient that is not finite is so everywhere. After another error the others may wait for
  // this process's GPUs.
  if (!first.ok() && !absl::IsOutOfRange(first)) return first;
  for (size_t i = 0; i < others.size(); ++i) {
    const absl::StatusOr<ByteBuffer> answer = others[i].link->Await(calls[i]);
    absl::Status status = OfPeer(*others[i].link, answer.status());
    if (status.ok() && take) status = take(i, *answer);
    if (first.ok()) first = status;
  }
  return first;
}

absl::StatusOr<std::unique_ptr<Replica>> MakeDividedReplica(const FragmentPlan& plan,
                                                            const v1::SyncConfig& sync,
                                                            const MakeParts& make_own,
                                                            std::span<const RemoteRanks> others) {
  std::vector<std::unique_ptr<ReplicaPart>> parts;
  RETURN_IF_ERROR(CallAll(others, kReplicaMake, 0, nullptr, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(parts, make_own());
    return absl::OkStatus();
  }));
  for (const RemoteRanks& other : others) {
    parts.push_back(std::make_unique<RemotePart>(*other.link, other.pieces, sync));
  }
  return std::make_unique<Replica>(plan, sync, std::move(parts));
}

// --- The others ----------------------------------------------------------------------------------

void PartServer::Drop() {
  absl::MutexLock lock(&mutex_);
  if (threads_ != nullptr) threads_->Drop();
  threads_ = nullptr;  // Before the parts, which they use.
  parts_.clear();
}

absl::Status PartServer::Make() {
  Drop();
  ASSIGN_OR_RETURN(std::vector<std::unique_ptr<ReplicaPart>> parts, make_());
  auto threads = std::make_unique<WorkQueue>(kThreads);
  RETURN_IF_ERROR(threads->started());
  absl::MutexLock lock(&mutex_);
  parts_ = std::move(parts);
  threads_ = std::move(threads);
  return absl::OkStatus();
}

bool PartServer::HandleAtOnce(SiteCall& call) {
  if (call.method != kPartStageAnswer) return false;
  absl::ReaderMutexLock lock(&mutex_);
  // An error of the link has a cause, which the training thread finds.
  HandlePart(call).IgnoreError();
  return true;
}

absl::Status PartServer::Handle(SiteCall& call) {
  if (call.method == kReplicaMake) return link_.Answer(call.id, Make());
  if (call.method == kReplicaSettle) return link_.Answer(call.id, absl::OkStatus());
  absl::ReaderMutexLock lock(&mutex_);
  return HandlePart(call);
}

absl::Status PartServer::HandlePart(SiteCall& call) {
  if (call.method < kPartSnapshot || call.method > kPartSetGaps) {
    return link_.Answer(
        call.id, absl::InvalidArgumentError(absl::StrCat("there is no method ", call.method)));
  }
  const auto method = static_cast<PartMethod>(call.method);
  if (ContentsOf(method).of_fragment &&
      (call.argument < 0 || call.argument >= pieces_.fragments())) {
    return link_.Answer(
        call.id, absl::InvalidArgumentError(absl::StrCat("there is no fragment ", call.argument)));
  }
  if (parts_.empty()) {
    return link_.Answer(call.id, absl::FailedPreconditionError(
                                     "it has no part of the replica, since it failed before"));
  }
  if (method == kPartSnapshot) return Snapshot(call);
  const absl::StatusOr<ByteBuffer> bytes = Do(call);
  return link_.Answer(call.id, bytes.status(),
                      bytes.ok() ? std::span<const uint8_t>(*bytes) : std::span<const uint8_t>());
}

absl::Status PartServer::Snapshot(const SiteCall& call) {
  const auto fragment = static_cast<int>(call.argument);
  const auto codes = std::make_shared<std::vector<std::unique_ptr<ReplicaPart::Codes>>>();
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    absl::StatusOr<std::unique_ptr<ReplicaPart::Codes>> made = part->Snapshot(fragment);
    if (!made.ok()) return link_.Answer(call.id, made.status());
    codes->push_back(*std::move(made));
  }
  threads_->Run([this, fragment, codes, id = call.id] {
    ByteBuffer object(pieces_.WholeBytes(PartData::kCodesUp, fragment));
    absl::Status status;
    for (const std::unique_ptr<ReplicaPart::Codes>& each : *codes) {
      if (status.ok()) status = each->Read(object);
    }
    // An error of the link has a cause, which the training thread finds.
    link_
        .Answer(id, status,
                status.ok() ? pieces_.Pack(PartData::kCodesUp, fragment, object) : ByteBuffer())
        .IgnoreError();
  });
  return absl::OkStatus();
}

absl::StatusOr<ByteBuffer> PartServer::Do(const SiteCall& call) {
  const auto method = static_cast<PartMethod>(call.method);
  const auto fragment = static_cast<int>(call.argument);
  if (method == kPartFinishHash) {
    LeafSink leaves;
    for (const std::unique_ptr<ReplicaPart>& part : parts_) {
      RETURN_IF_ERROR(part->FinishHash(fragment, leaves));
    }
    ByteBuffer bytes(leaves.taken().ByteSizeLong());
    leaves.taken().SerializeToArray(bytes.data(), static_cast<int>(bytes.size()));
    return bytes;
  }
  const Contents contents = ContentsOf(method);
  ByteBuffer in_bytes;
  ByteBuffer out_bytes;
  SparseArena arena;  // Has the own pieces alone in memory.
  const auto whole = [&](PartData data, ByteBuffer& bytes) -> absl::StatusOr<std::span<uint8_t>> {
    const size_t size = pieces_.WholeBytes(data, fragment);
    if (data == PartData::kArena) {
      ASSIGN_OR_RETURN(arena, SparseArena::Create(static_cast<int64_t>(size / sizeof(float)),
                                                  /*is_whole=*/false));
      return MutableBytesOf(arena.values());
    }
    bytes.resize(size);
    return bytes;
  };
  ASSIGN_OR_RETURN(const std::span<uint8_t> in, whole(contents.in, in_bytes));
  ASSIGN_OR_RETURN(const std::span<uint8_t> out, whole(contents.out, out_bytes));
  RETURN_IF_ERROR(pieces_.Unpack(contents.in, fragment, call.bytes, in));
  for (const std::unique_ptr<ReplicaPart>& part : parts_) {
    RETURN_IF_ERROR(part->Do({.method = method,
                              .fragment = fragment,
                              .alpha = static_cast<float>(call.number),
                              .in = in,
                              .out = out}));
  }
  return pieces_.Pack(contents.out, fragment, out);
}

}  // namespace causeway::worker
