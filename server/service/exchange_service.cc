#include "server/service/exchange_service.h"

#include <utility>

namespace causeway::server {

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ExchangeService::Carry(
    grpc::CallbackServerContext* context) {
  absl::StatusOr<Peer> peer = access_.Admit(*context, Action::kPull);
  const bool may_be_revoked = peer.ok() && peer->identity.has_value();
  LaneReactor* const lane = LaneReactor::Make(access_, lanes_, context, std::move(peer));
  if (may_be_revoked) {
    absl::MutexLock lock(&mutex_);
    // gRPC lets go of it only after it was returned: it is still there.
    open_.push_back(lane->weak_from_this());
  }
  return lane;
}

void ExchangeService::EndRevokedStreams() {
  std::vector<std::shared_ptr<LaneReactor>> open;
  {
    absl::MutexLock lock(&mutex_);
    std::erase_if(open_, [&open](const std::weak_ptr<LaneReactor>& lane) {
      std::shared_ptr<LaneReactor> still_open = lane.lock();
      if (still_open == nullptr) return true;
      open.push_back(std::move(still_open));
      return false;
    });
  }
  for (const auto& lane : open) lane->EndIfRevoked();
}

}  // namespace causeway::server
