#include "common/client/fragment_exchange.h"

#include <type_traits>
#include <utility>

#include "common/telemetry/log.h"

namespace causeway {

FragmentExchange::FragmentExchange(Options options, const std::vector<v1::Shard>& shards)
    : options_(std::move(options)), lead_(MakePeer("")) {
  Place(shards);
}

FragmentExchange::PeerPointer FragmentExchange::MakePeer(const std::string& address) const {
  auto peer = std::make_shared<Peer>();
  peer->address = address;
  GrpcExchange::Options options = options_.lead;
  if (!address.empty()) {
    absl::StatusOr<std::shared_ptr<Link>> link = options_.link(address);
    peer->status = link.status();
    if (!link.ok()) return peer;
    peer->link = *std::move(link);
    options.link = peer->link.get();
  }
  peer->exchange = std::make_unique<GrpcExchange>(std::move(options));
  return peer;
}

void FragmentExchange::Place(const std::vector<v1::Shard>& shards) {
  std::vector<PeerPointer> left;
  for (const v1::Shard& shard : shards) {
    if (shard.fragments_size() == 0) continue;
    const PeerPointer before = Find(shard.fragments(0));
    if (before->address == shard.address()) continue;
    const PeerPointer peer = MakePeer(shard.address());
    if (!before->address.empty()) {
      Log().info("shard {} has moved from {} to {}", shard.name(), before->address, peer->address);
      left.push_back(before);
    }
    absl::MutexLock lock(&mutex_);
    for (const int fragment : shard.fragments()) peers_[fragment] = peer;
    if (cancelled_ && peer->exchange != nullptr) peer->exchange->Cancel();
  }
  for (const PeerPointer& peer : left) {
    if (peer->exchange != nullptr) peer->exchange->Cancel();
  }
}

FragmentExchange::PeerPointer FragmentExchange::Find(int fragment) const {
  absl::MutexLock lock(&mutex_);
  const auto found = peers_.find(fragment);
  return found == peers_.end() ? lead_ : found->second;
}

template <typename Result, typename Call>
Result FragmentExchange::OnPeer(int fragment, const Call& call) {
  for (;;) {
    const PeerPointer peer = Find(fragment);
    if (!peer->status.ok()) return peer->status;
    Result result = call(*peer->exchange);
    absl::Status status;
    if constexpr (std::is_same_v<Result, absl::Status>) {
      status = result;
    } else {
      status = result.status();
    }
    if (!absl::IsCancelled(status)) return result;
    // It was given up because the shard has moved, or everything was.
    if (Find(fragment) == peer) return result;
  }
}

absl::Status FragmentExchange::Push(const Contribution& contribution) {
  return OnPeer<absl::Status>(contribution.fragment,
                              [&](GrpcExchange& exchange) { return exchange.Push(contribution); });
}

absl::StatusOr<PulledObject> FragmentExchange::PullAnswer(int fragment, int64_t round,
                                                          int64_t due_step) {
  return OnPeer<absl::StatusOr<PulledObject>>(fragment, [&](GrpcExchange& exchange) {
    return exchange.PullAnswer(fragment, round, due_step);
  });
}

absl::StatusOr<PulledObject> FragmentExchange::PushAndPull(
    const Contribution& contribution, const std::function<void(const absl::Status&)>& pushed) {
  bool told = false;
  return OnPeer<absl::StatusOr<PulledObject>>(
      contribution.fragment, [&](GrpcExchange& exchange) -> absl::StatusOr<PulledObject> {
        if (told) {
          return exchange.PullAnswer(contribution.fragment, contribution.round,
                                     contribution.due_step);
        }
        return exchange.PushAndPull(contribution, [&](const absl::Status& status) {
          if (absl::IsCancelled(status) && !IsCancelled()) return;
          told = true;
          pushed(status);
        });
      });
}

bool FragmentExchange::IsCancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

absl::StatusOr<PulledObject> FragmentExchange::PullState(int fragment) {
  return OnPeer<absl::StatusOr<PulledObject>>(
      fragment, [&](GrpcExchange& exchange) { return exchange.PullState(fragment); });
}

void FragmentExchange::ReportApplied(int fragment, int64_t round, uint64_t published_hash) {
  const PeerPointer peer = Find(fragment);
  const PeerPointer& reporter = peer->exchange == nullptr ? lead_ : peer;
  reporter->exchange->ReportApplied(fragment, round, published_hash);
}

std::set<FragmentExchange::PeerPointer> FragmentExchange::Peers() const {
  std::set<PeerPointer> peers = {lead_};
  absl::MutexLock lock(&mutex_);
  for (const auto& [fragment, peer] : peers_) {
    if (peer->exchange != nullptr) peers.insert(peer);
  }
  return peers;
}

void FragmentExchange::Cancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  for (const PeerPointer& peer : Peers()) peer->exchange->Cancel();
}

int64_t FragmentExchange::bytes_up() const {
  int64_t bytes = 0;
  for (const PeerPointer& peer : Peers()) bytes += peer->exchange->bytes_up();
  return bytes;
}

int64_t FragmentExchange::bytes_down() const {
  int64_t bytes = 0;
  for (const PeerPointer& peer : Peers()) bytes += peer->exchange->bytes_down();
  return bytes;
}

}  // namespace causeway
