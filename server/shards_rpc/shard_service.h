// causeway.v1.Shards: shards attach to their lead.
#ifndef CAUSEWAY_SERVER_SHARDS_RPC_SHARD_SERVICE_H_
#define CAUSEWAY_SERVER_SHARDS_RPC_SHARD_SERVICE_H_

#include "causeway/v1/shards.grpc.pb.h"
#include "server/access/access.h"
#include "server/shards/shard_hub.h"

namespace causeway::server {

// Blocking: a shard has two threads while its stream lasts. There are few.
class ShardService final : public v1::Shards::Service {
 public:
  // Both outlive the service.
  ShardService(ShardHub& hub, Access& access) : hub_(hub), access_(access) {}

  grpc::Status Serve(grpc::ServerContext* context,
                     grpc::ServerReaderWriter<v1::ShardOrder, v1::ShardReport>* stream) override;
  grpc::Status Initial(grpc::ServerContext* context, const v1::ShardHello* hello,
                       grpc::ServerWriter<v1::ShardValues>* writer) override;

 private:
  using Stream = grpc::ServerReaderWriter<v1::ShardOrder, v1::ShardReport>;
  absl::Status Attend(grpc::ServerContext& context, Stream& stream);

  ShardHub& hub_;
  Access& access_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SHARDS_RPC_SHARD_SERVICE_H_
