#include "worker/backend/site/shard_server.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/backend/site/site_backend.h"
#include "worker/backend/site/site_calls.h"

namespace causeway::worker {

ShardServer::ShardServer(SiteLink& link, const v1::RunConfig& config, const FragmentPlan& plan,
                         std::unique_ptr<ShardedBackend> backend)
    : link_(link),
      config_(config),
      plan_(plan),
      backend_(std::move(backend)),
      range_(backend_->range()),
      pieces_(plan, backend_->shards(), range_.first, range_.count),
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
    case kSiteMakePart:
      RETURN_IF_ERROR(MakePart());
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

absl::Status ShardServer::MakePart() {
  absl::MutexLock lock(&mutex_);
  part_server_.reset();
  part_.reset();
  ASSIGN_OR_RETURN(part_, backend_->MakePart());
  part_server_ = std::make_unique<PartServer>(link_, *part_, plan_, backend_->shards(),
                                              config_.sync(), range_.first, range_.count);
  return absl::OkStatus();
}

}  // namespace causeway::worker
