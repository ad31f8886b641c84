#include "worker/sync/site_backend.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {

SiteBackend::SiteBackend(const v1::RunConfig& config, const FragmentPlan& plan,
                         std::unique_ptr<ShardedBackend> own, const std::vector<Other>& others)
    : config_(config), plan_(plan), own_(std::move(own)), tokens_(config.train(), config.model()) {
  for (const Other& other : others) {
    others_.push_back(
        {other.link, other.range,
         PieceBytes(plan, own_->shards(), config.sync(), other.range.first, other.range.count)});
  }
}

absl::Status SiteBackend::OnAll(int method, int64_t argument, const Bytes& bytes,
                                const std::function<absl::Status()>& own, const Take& take) {
  std::vector<uint64_t> calls;
  for (const Process& other : others_) {
    const ByteBuffer sent = bytes ? bytes(other) : ByteBuffer();
    ASSIGN_OR_RETURN(const uint64_t call, other.link->Call(method, argument, 0, sent));
    calls.push_back(call);
  }
  absl::Status first = own ? own() : absl::OkStatus();
  // A gradient that is not finite is so everywhere. After another error the others may wait for
  // this process's GPUs.
  if (!first.ok() && !absl::IsOutOfRange(first)) return first;
  for (size_t i = 0; i < others_.size(); ++i) {
    const Process& other = others_[i];
    const absl::StatusOr<ByteBuffer> answer = other.link->Await(calls[i]);
    absl::Status status = OfPeer(*other.link, answer.status());
    if (status.ok() && take) status = take(other, *answer);
    if (first.ok()) first = status;
  }
  return first;
}

absl::StatusOr<StepReport> SiteBackend::Step(int64_t step, const MicroBatchReader& read) {
  if (others_.empty()) return own_->Step(step, read);
  RETURN_IF_ERROR(tokens_.Read(read));
  StepReport report;
  RETURN_IF_ERROR(OnAll(
      kSiteStep, step, [&](const Process& other) { return tokens_.Share(other.range); },
      [&]() -> absl::Status {
        ASSIGN_OR_RETURN(report, own_->Step(step, tokens_.Reader()));
        return absl::OkStatus();
      },
      [&](const Process& other, const ByteBuffer& answer) {
        StepShare share;
        if (answer.size() != sizeof(share)) {
          return absl::DataLossError(
              absl::StrCat(other.link->peer(), " reports a step in ", answer.size(), " bytes"));
        }
        std::memcpy(&share, answer.data(), sizeof(share));
        report.loss += share.loss;
        report.tokens += share.tokens;
        return absl::OkStatus();
      }));
  return report;
}

absl::Status SiteBackend::SetParameters(std::span<const float> parameters) {
  return OnAll(
      kSiteSetParameters, 0,
      [&](const Process& other) { return other.pieces.PackArena(parameters); },
      [&] { return own_->SetParameters(parameters); }, nullptr);
}

absl::Status SiteBackend::CopyParameters(std::span<float> parameters) {
  return OnAll(
      kSiteCopyParameters, 0, nullptr, [&] { return own_->CopyParameters(parameters); },
      [&](const Process& other, const ByteBuffer& answer) {
        return other.pieces.UnpackArena(answer, parameters);
      });
}

absl::StatusOr<OptimizerState> SiteBackend::SaveOptimizer() {
  ASSIGN_OR_RETURN(OptimizerState state, own_->SaveOptimizer());
  if (state.first_moments.empty()) return state;
  for (const auto& [which, moments] :
       {std::pair(0, &state.first_moments), std::pair(1, &state.second_moments)}) {
    RETURN_IF_ERROR(OnAll(kSiteCopyMoments, which, nullptr, nullptr,
                          [to = moments](const Process& other, const ByteBuffer& answer) {
                            return other.pieces.UnpackArena(answer, *to);
                          }));
  }
  return state;
}

absl::Status SiteBackend::RestoreOptimizer(int64_t updates, std::span<const float> first_moments,
                                           std::span<const float> second_moments) {
  // Checks the lengths.
  RETURN_IF_ERROR(own_->RestoreOptimizer(updates, first_moments, second_moments));
  if (first_moments.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(OnAll(
      kSiteRestoreFirst, 0,
      [&](const Process& other) { return other.pieces.PackArena(first_moments); }, nullptr,
      nullptr));
  return OnAll(
      kSiteRestoreMoments, updates,
      [&](const Process& other) { return other.pieces.PackArena(second_moments); }, nullptr,
      nullptr);
}

absl::StatusOr<std::unique_ptr<Replica>> SiteBackend::MakeReplica() {
  std::vector<std::unique_ptr<ReplicaPart>> parts;
  RETURN_IF_ERROR(OnAll(
      kSiteMakeParts, 0, nullptr,
      [&]() -> absl::Status {
        ASSIGN_OR_RETURN(parts, own_->MakeParts());
        return absl::OkStatus();
      },
      nullptr));
  for (const Process& other : others_) {
    parts.push_back(std::make_unique<RemotePart>(*other.link, other.pieces, config_.sync()));
  }
  return std::make_unique<ShardedReplica>(plan_, config_.sync(), std::move(parts));
}

absl::Status SiteBackend::UseParameters(std::span<const float> parameters) {
  return OnAll(
      kSiteRefreshWeights, 0, nullptr, [&] { return own_->evaluation().UseParameters(parameters); },
      nullptr);
}

std::string SiteBackend::Describe() const {
  if (others_.empty()) return own_->Describe();
  return absl::StrCat(own_->Describe(), ", the first of ", 1 + others_.size(), " processes with ",
                      own_->shards().ranks(), " GPUs");
}

ShardServer::ShardServer(SiteLink& link, const v1::RunConfig& config, const FragmentPlan& plan,
                         std::unique_ptr<ShardedBackend> backend)
    : link_(link),
      config_(config),
      plan_(plan),
      backend_(std::move(backend)),
      range_(backend_->range()),
      pieces_(plan, backend_->shards(), config.sync(), range_.first, range_.count),
      layout_(config.train(), config.model()) {}

bool ShardServer::HandleAtOnce(SiteCall& call) {
  absl::MutexLock lock(&mutex_);
  return part_server_ != nullptr && part_server_->HandleAtOnce(call);
}

absl::Status ShardServer::Handle(SiteCall& call) {
  if (call.method < kFirstOtherMethod) {
    PartServer* server = nullptr;
    {
      // Replaced by this thread alone.
      absl::MutexLock lock(&mutex_);
      server = part_server_.get();
    }
    if (server != nullptr) return server->Handle(call);
  }
  const absl::StatusOr<ByteBuffer> bytes = Do(call);
  return link_.Answer(call.id, bytes.status(),
                      bytes.ok() ? std::span<const uint8_t>(*bytes) : std::span<const uint8_t>());
}

absl::StatusOr<ByteBuffer> ShardServer::Do(SiteCall& call) {
  std::vector<float> arena;
  switch (call.method) {
    case kSiteStep:
      return Step(call);
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
    case kSiteMakeParts:
      RETURN_IF_ERROR(MakeParts());
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("there is no method ", call.method));
  }
  return ByteBuffer();
}

absl::StatusOr<ByteBuffer> ShardServer::Step(const SiteCall& call) {
  ASSIGN_OR_RETURN(const MicroBatchReader read, layout_.ReaderOf(call.bytes, range_));
  ASSIGN_OR_RETURN(const StepReport report, backend_->Step(call.argument, read));
  const StepShare share = {.loss = report.loss, .tokens = report.tokens};
  ByteBuffer bytes(sizeof(share));
  std::memcpy(bytes.data(), &share, sizeof(share));
  return bytes;
}

absl::Status ShardServer::MakeParts() {
  absl::MutexLock lock(&mutex_);
  part_server_.reset();
  parts_.clear();
  ASSIGN_OR_RETURN(parts_, backend_->MakeParts());
  part_server_ = std::make_unique<PartServer>(link_, parts_, pieces_);
  return absl::OkStatus();
}

}  // namespace causeway::worker
