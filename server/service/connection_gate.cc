#include "server/service/connection_gate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace causeway::server {
namespace {

// More networks than the sites of a run have.
constexpr size_t kMaxKnown = 4096;
constexpr size_t kSiteBytes = 8;  // Bytes of an IPv6 address that name a site.

}  // namespace

ConnectionGate::Network ConnectionGate::NetworkOf(const TcpAddress& address) {
  Network network = address.ip;
  if (!address.is_ipv4()) std::fill(network.begin() + kSiteBytes, network.end(), 0);
  return network;
}

absl::Status ConnectionGate::Enter(const TcpAddress& peer) {
  const Network network = NetworkOf(peer);
  absl::MutexLock lock(&mutex_);
  const auto found = of_network_.find(network);
  const int here = found == of_network_.end() ? 0 : found->second;
  if (here >= limits_.per_network) {
    return absl::ResourceExhaustedError(
        absl::StrCat(here, " connections of its address are open (--max_connections_per_address)"));
  }
  if (total_ >= limits_.total) {
    return absl::ResourceExhaustedError(
        absl::StrCat(total_, " connections are open (--max_connections)"));
  }
  if (total_ >= limits_.total - limits_.for_members && !known_.contains(network)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        total_, " connections are open, and the last ", limits_.for_members, " of ", limits_.total,
        " (--max_connections) are kept for addresses from which "
        "somebody has taken part"));
  }
  ++total_;
  ++of_network_[network];
  return absl::OkStatus();
}

void ConnectionGate::Leave(const TcpAddress& peer) {
  absl::MutexLock lock(&mutex_);
  const auto found = of_network_.find(NetworkOf(peer));
  if (found == of_network_.end()) return;
  --total_;
  if (--found->second == 0) of_network_.erase(found);
}

void ConnectionGate::Know(const TcpAddress& peer) {
  absl::MutexLock lock(&mutex_);
  if (known_.size() < kMaxKnown) known_.insert(NetworkOf(peer));
}

int ConnectionGate::connections() const {
  absl::MutexLock lock(&mutex_);
  return total_;
}

}  // namespace causeway::server
