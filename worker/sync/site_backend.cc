#include "worker/sync/site_backend.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

// A process's word on its part in a step.
struct StepShare {
  double loss = 0;
  int64_t tokens = 0;
};

PieceBytes PiecesOfRanks(const v1::RunConfig& config, const FragmentPlan& plan,
                         const ShardPlan& shards, const RankRange& ranks) {
  return PieceBytes(plan, shards, config.sync(), ranks.first, ranks.count);
}

}  // namespace

// --- Tokens --------------------------------------------------------------------------------------

absl::Status CheckShares(const v1::TrainConfig& train, int ranks) {
  const int micro_batches = train.batch_sequences() / train.micro_batch_sequences();
  if (micro_batches % ranks == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a step has ", micro_batches,
      " micro-batches (train.batch_sequences = ", train.batch_sequences(),
      " / train.micro_batch_sequences = ", train.micro_batch_sequences(), "), which ", ranks,
      " GPUs cannot share evenly: name fewer with --device=cuda:0,.. or start the run with a "
      "smaller train.micro_batch_sequences"));
}

StepTokens::StepTokens(const v1::RunConfig& config, int ranks, const RankRange& own)
    : micro_batches_(config.train().batch_sequences() / config.train().micro_batch_sequences()),
      ranks_(ranks),
      own_(own),
      tokens_(static_cast<size_t>(config.train().micro_batch_sequences()) *
              static_cast<size_t>(config.model().sequence_length())),
      documents_(config.train().document_masking()),
      bytes_(static_cast<size_t>(micro_batches_ / ranks * own.count) * (documents_ ? 3 : 2) *
             tokens_ * sizeof(int32_t)) {}

bool StepTokens::Has(int64_t index) const {
  const int64_t place = index % ranks_ - own_.first;
  return index >= 0 && index < micro_batches_ && place >= 0 && place < own_.count;
}

MicroBatch StepTokens::At(int64_t index) {
  const int64_t slot = index / ranks_ * own_.count + index % ranks_ - own_.first;
  const size_t stride = (documents_ ? 3 : 2) * tokens_;
  int32_t* const at =
      reinterpret_cast<int32_t*>(bytes_.data()) + static_cast<size_t>(slot) * stride;
  return {.inputs = {at, tokens_},
          .targets = {at + tokens_, tokens_},
          .document_starts = {at + 2 * tokens_, documents_ ? tokens_ : 0}};
}

MicroBatchReader StepTokens::Reader() {
  return [this](int64_t index, const MicroBatch& out) -> absl::Status {
    if (!Has(index)) {
      return absl::InvalidArgumentError(
          absl::StrCat("micro-batch ", index, " is none of this process's"));
    }
    const MicroBatch from = At(index);
    std::ranges::copy(from.inputs, out.inputs.begin());
    std::ranges::copy(from.targets, out.targets.begin());
    std::ranges::copy(from.document_starts, out.document_starts.begin());
    return absl::OkStatus();
  };
}

absl::Status StepTokens::Take(ByteBuffer bytes) {
  if (bytes.size() != bytes_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a share of a step's tokens takes ", bytes_.size(), " bytes; ", bytes.size(), " came"));
  }
  bytes_ = std::move(bytes);
  return absl::OkStatus();
}

// --- Process 0 -----------------------------------------------------------------------------------

SiteBackend::SiteBackend(const v1::RunConfig& config, const FragmentPlan& plan,
                         std::unique_ptr<ShardedBackend> own, const std::vector<Other>& others)
    : config_(config), plan_(plan), own_(std::move(own)) {
  const ShardPlan& shards = own_->shards();
  tokens_.emplace_back(config, shards.ranks(), own_->range());
  for (const Other& other : others) {
    others_.push_back({other.link, PiecesOfRanks(config, plan, shards, other.range)});
    tokens_.emplace_back(config, shards.ranks(), other.range);
  }
}

BytesFor SiteBackend::PiecesOf(std::span<const float> arena) const {
  return [this, arena](size_t other) { return others_[other].pieces.PackArena(arena); };
}

TakeFrom SiteBackend::PiecesInto(std::span<float> arena) const {
  return [this, arena](size_t other, const ByteBuffer& answer) {
    return others_[other].pieces.UnpackArena(answer, arena);
  };
}

absl::StatusOr<StepReport> SiteBackend::Step(int64_t step, const MicroBatchReader& read) {
  if (others_.empty()) return own_->Step(step, read);
  // All of them first: nobody has begun the step when a window cannot be read.
  for (int64_t i = 0; i < tokens_.front().micro_batches(); ++i) {
    const auto whose =
        std::ranges::find_if(tokens_, [i](const StepTokens& of) { return of.Has(i); });
    RETURN_IF_ERROR(read(i, whose->At(i)));
  }
  StepReport report;
  RETURN_IF_ERROR(CallAll(
      others_, kSiteStep, step, [&](size_t other) { return tokens_[other + 1].bytes(); },
      [&]() -> absl::Status {
        ASSIGN_OR_RETURN(report, own_->Step(step, tokens_.front().Reader()));
        return absl::OkStatus();
      },
      [&](size_t other, const ByteBuffer& answer) {
        StepShare share;
        if (answer.size() != sizeof(share)) {
          return absl::DataLossError(absl::StrCat(others_[other].link->peer(),
                                                  " reports a step in ", answer.size(), " bytes"));
        }
        std::memcpy(&share, answer.data(), sizeof(share));
        report.loss += share.loss;
        report.tokens += share.tokens;
        return absl::OkStatus();
      }));
  return report;
}

absl::Status SiteBackend::SetParameters(std::span<const float> parameters) {
  return CallAll(others_, kSiteSetParameters, 0, PiecesOf(parameters),
                 [&] { return own_->SetParameters(parameters); });
}

absl::Status SiteBackend::CopyParameters(std::span<float> parameters) {
  return CallAll(
      others_, kSiteCopyParameters, 0, nullptr, [&] { return own_->CopyParameters(parameters); },
      PiecesInto(parameters));
}

absl::StatusOr<OptimizerState> SiteBackend::SaveOptimizer() {
  ASSIGN_OR_RETURN(OptimizerState state, own_->SaveOptimizer());
  if (state.first_moments.empty()) return state;
  RETURN_IF_ERROR(
      CallAll(others_, kSiteCopyMoments, 0, nullptr, nullptr, PiecesInto(state.first_moments)));
  RETURN_IF_ERROR(
      CallAll(others_, kSiteCopyMoments, 1, nullptr, nullptr, PiecesInto(state.second_moments)));
  return state;
}

absl::Status SiteBackend::RestoreOptimizer(int64_t updates, std::span<const float> first_moments,
                                           std::span<const float> second_moments) {
  // Checks the lengths.
  RETURN_IF_ERROR(own_->RestoreOptimizer(updates, first_moments, second_moments));
  if (first_moments.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CallAll(others_, kSiteRestoreFirst, 0, PiecesOf(first_moments)));
  return CallAll(others_, kSiteRestoreMoments, updates, PiecesOf(second_moments));
}

absl::StatusOr<std::unique_ptr<Replica>> SiteBackend::MakeReplica() {
  return MakeDividedReplica(
      plan_, config_.sync(), [this] { return own_->MakeParts(); }, others_);
}

absl::Status SiteBackend::UseParameters(std::span<const float> parameters) {
  return CallAll(others_, kSiteRefreshWeights, 0, nullptr,
                 [&] { return own_->evaluation().UseParameters(parameters); });
}

std::string SiteBackend::Describe() const {
  if (others_.empty()) return own_->Describe();
  return absl::StrCat(own_->Describe(), ", the first of ", 1 + others_.size(), " processes with ",
                      own_->shards().ranks(), " GPUs");
}

// --- The others ----------------------------------------------------------------------------------

ShardServer::ShardServer(SiteLink& link, const v1::RunConfig& config, const FragmentPlan& plan,
                         std::unique_ptr<ShardedBackend> backend)
    : link_(link),
      plan_(plan),
      backend_(std::move(backend)),
      pieces_(PiecesOfRanks(config, plan, backend_->shards(), backend_->range())),
      tokens_(config, backend_->shards().ranks(), backend_->range()),
      parts_(link, pieces_, [this] { return backend_->MakeParts(); }) {}

void ShardServer::Close() {
  parts_.Drop();
  backend_.reset();
}

absl::Status ShardServer::Handle(SiteCall& call) {
  if (call.method < kFirstOtherMethod) return parts_.Handle(call);
  const absl::StatusOr<ByteBuffer> bytes = Do(call);
  return link_.Answer(call.id, bytes.status(),
                      bytes.ok() ? std::span<const uint8_t>(*bytes) : std::span<const uint8_t>());
}

absl::StatusOr<ByteBuffer> ShardServer::Do(SiteCall& call) {
  std::vector<float> arena;
  switch (call.method) {
    case kSiteStep: {
      RETURN_IF_ERROR(tokens_.Take(std::move(call.bytes)));
      ASSIGN_OR_RETURN(const StepReport report, backend_->Step(call.argument, tokens_.Reader()));
      const StepShare share = {.loss = report.loss, .tokens = report.tokens};
      ByteBuffer bytes(sizeof(share));
      std::memcpy(bytes.data(), &share, sizeof(share));
      return bytes;
    }
    case kSiteSetParameters:
      arena = Arena();
      RETURN_IF_ERROR(pieces_.UnpackArena(call.bytes, arena));
      RETURN_IF_ERROR(backend_->SetParameters(arena));
      break;
    case kSiteCopyParameters:
      arena = Arena();
      RETURN_IF_ERROR(backend_->CopyParameters(arena));
      return pieces_.PackArena(arena);
    case kSiteCopyMoments: {
      ASSIGN_OR_RETURN(const OptimizerState state, backend_->SaveOptimizer());
      return pieces_.PackArena(call.argument == 0 ? state.first_moments : state.second_moments);
    }
    case kSiteRestoreFirst:
      first_moments_ = Arena();
      RETURN_IF_ERROR(pieces_.UnpackArena(call.bytes, first_moments_));
      break;
    case kSiteRestoreMoments: {
      arena = Arena();
      RETURN_IF_ERROR(pieces_.UnpackArena(call.bytes, arena));
      const std::vector<float> first = std::exchange(first_moments_, {});
      RETURN_IF_ERROR(backend_->RestoreOptimizer(call.argument, first, arena));
      break;
    }
    case kSiteRefreshWeights:
      backend_->RefreshWeights();
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("there is no method ", call.method));
  }
  return ByteBuffer();
}

}  // namespace causeway::worker
