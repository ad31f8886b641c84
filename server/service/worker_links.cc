#include "server/service/worker_links.h"

#include <algorithm>

namespace causeway::server {
namespace {

constexpr size_t kMaxWorkers = 1024;
constexpr size_t kMaxConnections = 64;
// No member has a longer id. Without TLS, and for operators, the name is whatever the call says.
constexpr size_t kMaxWorkerIdBytes = 64;

}  // namespace

void WorkerLinks::Note(absl::string_view worker_id, absl::string_view peer) {
  const absl::StatusOr<TcpAddress> address = ParseGrpcPeer(peer);
  if (!address.ok() || worker_id.size() > kMaxWorkerIdBytes) return;
  absl::MutexLock lock(&mutex_);
  const std::string id(worker_id);
  if (!workers_.contains(id) && workers_.size() >= kMaxWorkers) {
    std::erase_if(workers_, [](const auto& item) { return item.second.peers.empty(); });
    if (workers_.size() >= kMaxWorkers) return;
  }
  std::vector<TcpAddress>& peers = workers_[id].peers;
  if (peers.size() < kMaxConnections && std::ranges::find(peers, *address) == peers.end()) {
    peers.push_back(*address);
  }
}

void WorkerLinks::Sample(int port) {
  {
    absl::MutexLock lock(&mutex_);
    if (workers_.empty()) return;
  }
  const std::vector<TcpConnection> accepted = Connections(AcceptedOn(port));
  absl::MutexLock lock(&mutex_);
  for (auto& [id, worker] : workers_) {
    std::vector<TcpConnection> now;
    std::vector<TcpAddress> peers;
    for (const TcpConnection& connection : accepted) {
      if (std::ranges::find(worker.peers, connection.peer) == worker.peers.end()) continue;
      now.push_back(connection);
      peers.push_back(connection.peer);
    }
    worker.peers = std::move(peers);
    worker.link = worker.totals.Update(std::move(now));
  }
}

void WorkerLinks::AddTo(v1::RunStatus& status) const {
  absl::MutexLock lock(&mutex_);
  for (v1::WorkerStatus& worker : *status.mutable_workers()) {
    const auto found = workers_.find(worker.worker_id());
    if (found == workers_.end()) continue;
    const TcpLink& link = found->second.link;
    v1::CoordinatorLink& figures = *worker.mutable_coordinator_link();
    figures.set_connections(link.connections);
    figures.set_rtt_seconds(absl::ToDoubleSeconds(link.min_rtt));
    figures.set_retransmitted_segments(link.retransmitted_segments);
    figures.set_sent_bytes(link.sent_bytes);
    figures.set_received_bytes(link.received_bytes);
    figures.set_delivery_bytes_per_second(link.delivery_bytes_per_second);
    figures.set_congestion_control(link.congestion_control);
  }
}

}  // namespace causeway::server
