// Reads what TCP says of every worker's connections, at the coordinator's end.
//
// A worker's calls tell which connections are its own: each is noted with the address that it came
// from. Sample reads the figures now and then.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/admin.pb.h"
#include "common/rpc/tcp_links.h"

namespace causeway::server {

// Thread-safe.
class WorkerLinks {
 public:
  // A call for that worker came from `peer`, as gRPC writes addresses. What is beyond 1024 workers,
  // or 64 connections of one between two samples, is not followed; nor are ids that no member can
  // have. Workers without connections make way for others.
  void Note(absl::string_view worker_id, absl::string_view peer);

  // Reads the figures of all connections that were accepted on this port, and forgets those that
  // have ended.
  void Sample(int port);

  // Fills in WorkerStatus.coordinator_link as of the last sample.
  void AddTo(v1::RunStatus& status) const;

 private:
  struct Worker {
    std::vector<TcpAddress> peers;
    TcpLinkTotals totals;
    TcpLink link;
  };

  mutable absl::Mutex mutex_;
  std::map<std::string, Worker> workers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
