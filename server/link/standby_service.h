// causeway.v1.Standby: followers read the run directory as it grows.
#ifndef CAUSEWAY_SERVER_LINK_STANDBY_SERVICE_H_
#define CAUSEWAY_SERVER_LINK_STANDBY_SERVICE_H_

#include <atomic>
#include <cstdint>

#include "causeway/v1/standby.grpc.pb.h"
#include "common/telemetry/event_log.h"
#include "server/access/access.h"
#include "server/standby/standbys.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {

// Blocking: a follower has a thread of gRPC's while its stream lasts. There are few.
class StandbyService final : public v1::Standby::Service {
 public:
  // All outlive the service.
  StandbyService(RunDirectoryStore& store, Standbys& standbys, Access& access, EventLog& events)
      : store_(store), standbys_(standbys), access_(access), events_(events) {}

  grpc::Status Follow(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::FollowResponse, v1::FollowRequest>* stream) override;

  // Streams end as soon as their followers have what there is. Before the server stops.
  void Stop() { stopping_ = true; }

 private:
  using Stream = grpc::ServerReaderWriter<v1::FollowResponse, v1::FollowRequest>;
  absl::Status Serve(grpc::ServerContext& context, Stream& stream);
  absl::Status Feed(grpc::ServerContext& context, Stream& stream, const Peer& peer,
                    v1::FollowRequest& request, int64_t& standby);

  RunDirectoryStore& store_;
  Standbys& standbys_;
  Access& access_;
  EventLog& events_;
  std::atomic<bool> stopping_ = false;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_LINK_STANDBY_SERVICE_H_
