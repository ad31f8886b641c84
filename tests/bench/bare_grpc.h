// The limit of every exchange over gRPC: streams that carry an object as lanes do, one raw message
// for each chunk, over the same channels, and do nothing else with it. The receiver drops what it
// reads and acknowledges it as lanes do.
#pragma once

#include <grpcpp/server.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"

namespace causeway::bench {

// Takes messages of any number of streams, until it is destroyed.
class GrpcSink {
 public:
  // Listens on loopback. Errors of MakeServerSecurity.
  static absl::StatusOr<std::unique_ptr<GrpcSink>> Start(const SecurityOptions& security);
  ~GrpcSink();

  int port() const { return port_; }

 private:
  class Stream;
  class Service final : public v1::Exchange::WithRawCallbackMethod_Carry<v1::Exchange::Service> {
   public:
    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Carry(
        grpc::CallbackServerContext* context) override;
  };

  GrpcSink() = default;

  Service service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

class GrpcSource {
 public:
  // Opens a stream on each of so many connections.
  GrpcSource(const std::string& address, int connections, const ChannelSecurity& security);
  ~GrpcSource();
  GrpcSource(const GrpcSource&) = delete;
  GrpcSource& operator=(const GrpcSource&) = delete;

  // Sends the object, each chunk over whichever stream has room, and waits until all of them are
  // acknowledged. UNAVAILABLE if a stream breaks. Called by one thread.
  absl::Status Send(std::span<const uint8_t> object);

 private:
  class Stream;

  std::span<const uint8_t> TakeChunk();  // Empty: there is none.
  void Acknowledged(int64_t chunks);
  void Broke();

  absl::Mutex mutex_;
  std::span<const uint8_t> rest_ ABSL_GUARDED_BY(mutex_);  // No stream has taken it.
  int64_t owed_chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  bool broke_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace causeway::bench
