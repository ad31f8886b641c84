#include "worker/sync/host_part.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

constexpr auto kValueBytes = static_cast<int64_t>(sizeof(float));
// Values that are copied and mixed while they are in a cache.
constexpr size_t kMixedSlice = size_t{1} << 13;

// The values of an arena, or of a fragment that begins at `begin`, that a piece has.
template <typename T>
std::span<T> Of(const ShardPiece& piece, std::span<T> values, int64_t begin = 0) {
  return values.subspan(static_cast<size_t>(piece.begin - begin),
                        static_cast<size_t>(piece.size()));
}

}  // namespace

absl::StatusOr<SparseArena> SparseArena::Create(int64_t values, bool is_whole) {
  SparseArena arena;
  if (values == 0) return arena;
  const size_t bytes = static_cast<size_t>(values) * sizeof(float);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the system gives no ", bytes,
        " bytes of addresses for the run's values: see `ulimit -v` and vm.overcommit_memory"));
  }
  // A large page would hold what others own.
  (void)madvise(memory, bytes, is_whole ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  arena.values_ = {static_cast<float*>(memory), static_cast<size_t>(values)};
  return arena;
}

SparseArena::~SparseArena() {
  if (!values_.empty()) munmap(values_.data(), values_.size_bytes());
}

HostPart::HostPart(const FragmentPlan& plan, const ShardPlan& shard_plan, int rank,
                   const v1::SyncConfig& sync, std::span<float> parameters,
                   std::span<const float> gradients)
    : plan_(plan),
      shard_plan_(shard_plan),
      rank_(rank),
      codec_up_(*FindCodec(sync.codec_up()).value()),
      codec_down_(*FindCodec(sync.codec_down()).value()),
      decay_(sync.has_error_feedback_decay() ? static_cast<float>(sync.error_feedback_decay())
                                             : 1.0F),
      keep_(sync.keep_in_flight()),
      most_staged_(rank == 0 ? 2 : std::numeric_limits<int>::max()),
      contributes_gradients_(sync.contribution() == v1::SyncConfig::GRADIENT),
      parameters_(parameters),
      gradients_(gradients),
      fragments_(static_cast<size_t>(plan.fragments())) {}

absl::StatusOr<std::unique_ptr<HostPart>> HostPart::Create(
    const FragmentPlan& plan, const ShardPlan& shard_plan, int rank, const v1::SyncConfig& sync,
    std::span<float> parameters, std::span<const float> gradients,
    std::span<const FragmentRange> untrained) {
  std::unique_ptr<HostPart> part(new HostPart(plan, shard_plan, rank, sync, parameters, gradients));
  ASSIGN_OR_RETURN(part->published_,
                   SparseArena::Create(plan.arena_size(), shard_plan.ranks() == 1));
  for (int i = 0; i < plan.fragments(); ++i) {
    Fragment& own = part->fragment(i);
    own.pieces = shard_plan.pieces(rank, i);
    if (sync.error_feedback()) part->KeepResidual(i);
    for (const ShardPiece& piece : own.pieces) {
      if (part->contributes_gradients_) {
        part->zeros_.resize(std::max(part->zeros_.size(), static_cast<size_t>(piece.size())));
      }
      for (const FragmentRange& range : untrained) {
        const FragmentRange both = {std::max(range.begin, piece.begin),
                                    std::min(range.end, piece.end)};
        if (both.begin < both.end) own.untrained.push_back(both);
      }
    }
  }
  return part;
}

template <typename Body>
absl::Status HostPart::ForEach(int fragment, const Codec& codec, const Body& body) {
  const int64_t begin = plan_.range(fragment).begin;
  size_t place = 0;
  for (const ShardPiece& piece : this->fragment(fragment).pieces) {
    RETURN_IF_ERROR(body(piece, place, codec.EncodedBytes(static_cast<size_t>(piece.begin - begin)),
                         codec.EncodedBytes(static_cast<size_t>(piece.size()))));
    place += static_cast<size_t>(piece.size());
  }
  return absl::OkStatus();
}

void HostPart::KeepResidual(int fragment) {
  this->fragment(fragment).residual.resize(Size(fragment));
}

std::span<float> HostPart::Residual(const ShardPiece& piece) {
  Fragment& own = fragment(piece.fragment);
  if (own.residual.empty()) return {};
  return std::span(own.residual)
      .subspan(static_cast<size_t>(piece.offset - own.pieces.front().offset),
               static_cast<size_t>(piece.size()));
}

bool HostPart::KeepsResiduals() const {
  return std::ranges::any_of(fragments_, [](const Fragment& own) { return !own.residual.empty(); });
}

HostPart::Values HostPart::Copy(int fragment, std::span<const float> arena) {
  Values values(Size(fragment));
  auto at = values.begin();
  for (const ShardPiece& piece : this->fragment(fragment).pieces) {
    at = std::ranges::copy(Of(piece, arena), at).out;
  }
  return values;
}

void HostPart::FillUntrained(int fragment) {
  for (const FragmentRange& range : this->fragment(fragment).untrained) {
    std::copy(published().begin() + range.begin, published().begin() + range.end,
              parameters_.begin() + range.begin);
  }
}

// --- Sending -------------------------------------------------------------------------------------

// Encoding takes long enough to be done beside the next steps, which change the local values: they
// are copied first.
class HostPart::HostCodes final : public ReplicaPart::Codes {
 public:
  HostCodes(HostPart& part, int fragment, Values target)
      : part_(part), fragment_(fragment), target_(std::move(target)) {}

  absl::Status Read(std::span<uint8_t> object) override {
    Values target = std::exchange(target_, {});
    const int64_t begin = part_.plan_.range(fragment_).begin;
    return part_.ForEach(
        fragment_, part_.codec_up_,
        [&](const ShardPiece& piece, size_t place, size_t at, size_t bytes) {
          const auto size = static_cast<size_t>(piece.size());
          const std::span<const float> base = part_.contributes_gradients_
                                                  ? std::span(part_.zeros_).first(size)
                                                  : Of(piece, part_.published());
          const std::span<float> local = std::span(target).subspan(place, size);
          const std::span<float> residual = part_.Residual(piece);
          if (MirrorsGaps(part_.codec_up_, part_.codec_down_)) {
            MirrorIntoGaps(part_.plan_, piece.begin, base, local, residual);
          }
          const absl::Status status =
              part_.codec_up_.Encode(base, local, {.residual = residual, .decay = part_.decay_},
                                     object.subspan(at, bytes));
          if (piece.begin == begin) return status;
          return Annotate(status, absl::StrCat("counted from value ", piece.begin - begin));
        });
  }

 private:
  HostPart& part_;
  const int fragment_;
  Values target_;
};

absl::StatusOr<std::unique_ptr<ReplicaPart::Codes>> HostPart::Snapshot(int fragment) {
  FillUntrained(fragment);
  Values target = Copy(fragment, contributes_gradients_ ? gradients_ : parameters_);
  if (contributes_gradients_) std::ranges::transform(target, target.begin(), std::negate<>());
  return std::make_unique<HostCodes>(*this, fragment, std::move(target));
}

absl::Status HostPart::FoldLate(int fragment, std::span<const uint8_t> object) {
  KeepResidual(fragment);
  return ForEach(
      fragment, codec_up_,
      [&](const ShardPiece& piece, size_t /*place*/, size_t at, size_t bytes) -> absl::Status {
        const std::span<float> residual = Residual(piece);
        std::vector<double> sum(residual.begin(), residual.end());
        RETURN_IF_ERROR(codec_up_.Accumulate(
            object.subspan(at, bytes), Of(piece, std::span<const float>(published())), 1.0, sum));
        for (size_t i = 0; i < residual.size(); ++i) residual[i] = static_cast<float>(sum[i]);
        return absl::OkStatus();
      });
}

// --- Merging -------------------------------------------------------------------------------------

absl::Status HostPart::Apply(int fragment, std::span<const uint8_t> answer,
                             std::span<float> values) {
  return ForEach(
      fragment, codec_down_, [&](const ShardPiece& piece, size_t place, size_t at, size_t bytes) {
        return codec_down_.Apply(answer.subspan(at, bytes),
                                 values.subspan(place, static_cast<size_t>(piece.size())));
      });
}

void HostPart::Hash(int fragment, std::span<const float> values) {
  const FragmentRange& range = plan_.range(fragment);
  const int64_t total = range.size() * kValueBytes;
  LeafSink leaves;
  for (const ShardPiece& piece : this->fragment(fragment).pieces) {
    const std::span<const uint8_t> bytes = BytesOf(values.first(static_cast<size_t>(piece.size())));
    values = values.subspan(static_cast<size_t>(piece.size()));
    const int64_t begin = (piece.begin - range.begin) * kValueBytes;
    const LeafRanges of_piece(begin, (piece.end - range.begin) * kValueBytes, total);
    for (int64_t leaf = of_piece.first_leaf; leaf < of_piece.first_leaf + of_piece.leaves; ++leaf) {
      const auto at = static_cast<size_t>(leaf) * kTreeLeafBytes - static_cast<size_t>(begin);
      leaves.SetLeaf(leaf,
                     Checksum64(bytes.subspan(at, std::min(kTreeLeafBytes, bytes.size() - at))));
    }
    for (const LeafRanges::Range& shared : of_piece.shared) {
      leaves.AddShared(shared.begin, bytes.subspan(static_cast<size_t>(shared.begin - begin),
                                                   static_cast<size_t>(shared.end - shared.begin)));
    }
  }
  this->fragment(fragment).leaves = std::move(leaves);
}

absl::Status HostPart::FinishHash(int fragment, LeafSink& leaves) {
  leaves.Take(this->fragment(fragment).leaves.taken());
  return absl::OkStatus();
}

absl::Status HostPart::StageAnswer(int fragment, std::span<const uint8_t> answer) {
  if (this->fragment(fragment).pieces.empty()) return absl::OkStatus();
  if (staged_count_.fetch_add(1) >= most_staged_) {
    --staged_count_;
    return absl::OkStatus();
  }
  Values values = Copy(fragment, published());
  const absl::Status applied = Apply(fragment, answer, values);
  if (!applied.ok()) {
    --staged_count_;
    return applied;
  }
  Hash(fragment, values);
  this->fragment(fragment).staged = std::move(values);
  return absl::OkStatus();
}

absl::Status HostPart::Merge(const PartCall& call) {
  Fragment& own = fragment(call.fragment);
  if (own.pieces.empty()) return absl::OkStatus();
  FillUntrained(call.fragment);
  Values values = std::exchange(own.staged, {});
  if (!values.empty()) {
    --staged_count_;
  } else if (own.pieces.size() == 1) {
    const std::span<float> copy = Of(own.pieces.front(), published());
    RETURN_IF_ERROR(Apply(call.fragment, call.in, copy));
    Hash(call.fragment, copy);
  } else {
    values = Copy(call.fragment, published());
    RETURN_IF_ERROR(Apply(call.fragment, call.in, values));
    Hash(call.fragment, values);
  }
  PublishAndMix(call.fragment, values, call.alpha);
  return absl::OkStatus();
}

void HostPart::PublishAndMix(int fragment, std::span<const float> values, float alpha) {
  const std::vector<float> held = std::exchange(this->fragment(fragment).held, {});
  size_t place = 0;
  for (const ShardPiece& piece : this->fragment(fragment).pieces) {
    const std::span<float> of_piece = Of(piece, published());
    const std::span<float> local = Of(piece, parameters_);
    for (size_t begin = 0; begin < of_piece.size(); begin += kMixedSlice) {
      const size_t count = std::min(kMixedSlice, of_piece.size() - begin);
      const std::span<float> slice = of_piece.subspan(begin, count);
      if (!values.empty()) std::ranges::copy(values.subspan(place, count), slice.begin());
      MixValues(slice,
                held.empty() ? std::span<const float>() : std::span(held).subspan(place, count),
                keep_, alpha, local.subspan(begin, count));
      place += count;
    }
  }
}

// --- Values --------------------------------------------------------------------------------------

absl::Status HostPart::Do(const PartCall& call) {
  const int number = call.fragment;
  const std::span<const float> in = FloatsOf(call.in);
  const std::span<float> out = FloatsOf(call.out);
  // Pieces of whole fragments, or arenas, from and to one that begins at `begin`.
  const auto copy = [&](std::span<const ShardPiece> pieces, std::span<const float> from,
                        int64_t from_begin, std::span<float> to, int64_t to_begin) {
    for (const ShardPiece& piece : pieces) {
      std::ranges::copy(Of(piece, from, from_begin), Of(piece, to, to_begin).begin());
    }
    return absl::OkStatus();
  };
  const auto hold = [&](std::span<const float> from, int64_t from_begin) {
    std::vector<float>& held = fragment(number).held;
    held.clear();
    for (const ShardPiece& piece : fragment(number).pieces) {
      const std::span<const float> values = Of(piece, from, from_begin);
      held.insert(held.end(), values.begin(), values.end());
    }
    return absl::OkStatus();
  };
  const std::span<const ShardPiece> all = shard_plan_.pieces(rank_);
  const auto begin = [&] { return plan_.range(number).begin; };
  switch (call.method) {
    case kPartFoldLate:
      return FoldLate(number, call.in);
    case kPartStageAnswer:
      return StageAnswer(number, call.in);
    case kPartMerge:
      return Merge(call);
    case kPartSetPublished:
      copy(fragment(number).pieces, in, begin(), published(), 0).IgnoreError();
      Hash(number, Copy(number, published()));
      return absl::OkStatus();
    case kPartMix:
      FillUntrained(number);
      PublishAndMix(number, {}, call.alpha);
      return absl::OkStatus();
    case kPartHold:
      FillUntrained(number);
      return hold(parameters_, 0);
    case kPartCopyHeld: {
      std::span<const float> held = fragment(number).held;
      if (held.empty()) return absl::OkStatus();
      for (const ShardPiece& piece : fragment(number).pieces) {
        const auto size = static_cast<size_t>(piece.size());
        std::ranges::copy(held.first(size), Of(piece, out, begin()).begin());
        held = held.subspan(size);
      }
      return absl::OkStatus();
    }
    case kPartSetHeld:
      return hold(in, begin());
    case kPartCopyLocal:
      return copy(fragment(number).pieces, parameters_, 0, out, begin());
    case kPartSetLocal:
      return copy(fragment(number).pieces, in, begin(), parameters_, 0);
    case kPartCopyGaps:
      for (const GapPiece& gap : GapPieces(plan_, shard_plan_, rank_, number)) {
        std::copy_n(parameters_.begin() + gap.begin, gap.size, out.begin() + gap.place);
      }
      return absl::OkStatus();
    case kPartSetGaps:
      for (const GapPiece& gap : GapPieces(plan_, shard_plan_, rank_, number)) {
        std::copy_n(in.begin() + gap.place, gap.size, parameters_.begin() + gap.begin);
      }
      return absl::OkStatus();
    case kPartCopyPublished:
      return copy(all, published(), 0, out, 0);
    case kPartRestorePublished:
      return copy(all, in, 0, published(), 0);
    case kPartCopyResiduals:
      for (const ShardPiece& piece : all) {
        std::ranges::copy(Residual(piece), Of(piece, out).begin());  // Of some there is none.
      }
      return absl::OkStatus();
    case kPartRestoreResidual:
      for (int i = 0; i < plan_.fragments(); ++i) KeepResidual(i);
      for (const ShardPiece& piece : all) {
        std::ranges::copy(Of(piece, in), Residual(piece).begin());
      }
      return absl::OkStatus();
    case kPartSnapshot:
    case kPartFinishHash:
      break;
  }
  return absl::InternalError("Snapshot and FinishHash are methods of their own");
}

absl::StatusOr<std::unique_ptr<Replica>> MakeHostReplica(const FragmentPlan& plan,
                                                         const v1::SyncConfig& sync,
                                                         std::span<float> parameters,
                                                         std::span<const float> gradients) {
  auto shards = std::make_unique<const ShardPlan>(ShardPlan::Whole(plan));
  ASSIGN_OR_RETURN(std::unique_ptr<HostPart> part,
                   HostPart::Create(plan, *shards, /*rank=*/0, sync, parameters, gradients, {}));
  part->whole_ = std::move(shards);
  std::vector<std::unique_ptr<ReplicaPart>> parts;
  parts.push_back(std::move(part));
  return std::make_unique<Replica>(plan, sync, std::move(parts));
}

absl::StatusOr<std::unique_ptr<HostShare>> HostShare::Create(const FragmentPlan& plan,
                                                             const ShardPlan& shard_plan, int rank,
                                                             const v1::SyncConfig& sync,
                                                             std::vector<FragmentRange> untrained) {
  std::unique_ptr<HostShare> share(
      new HostShare(plan, shard_plan, rank, sync, std::move(untrained)));
  ASSIGN_OR_RETURN(share->arena_, SparseArena::Create(plan.arena_size(), shard_plan.ranks() == 1));
  return share;
}

absl::StatusOr<std::span<const float>> HostShare::published() const {
  if (part_ == nullptr) {
    return absl::FailedPreconditionError("there is no published copy: the last part was not made");
  }
  return part_->published();
}

absl::StatusOr<std::unique_ptr<ReplicaPart>> HostShare::MakePart() {
  part_ = nullptr;
  ASSIGN_OR_RETURN(std::unique_ptr<HostPart> part,
                   HostPart::Create(plan_, shard_plan_, rank_, sync_, arena(), {}, untrained_));
  part_ = part.get();
  return part;
}

}  // namespace causeway::worker
