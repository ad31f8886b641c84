// A coordinator's server on this machine, and what a client calls first.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "server/service/coordinator_server.h"

namespace causeway::server {

// One call, within half a minute.
inline absl::StatusOr<v1::DescribeResponse> DescribeRun(v1::Session::StubInterface& stub) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
  v1::DescribeRequest request;
  request.set_wire_version(kWireVersion);
  v1::DescribeResponse response;
  const absl::Status status = FromGrpcStatus(stub.Describe(&context, request, &response));
  if (!status.ok()) return status;
  return response;
}

inline CoordinatorServer::Options NoTls() {
  CoordinatorServer::Options options;
  return options;
}

// Serves a run, without TLS unless its options have it. Shuts the run down at the end.
class LocalServer {
 public:
  // `run`: a coordinator, or a run that may await its model. It outlives this.
  template <typename Run>
  explicit LocalServer(Run& run, CoordinatorServer::Options options = NoTls())
      : start_([&run](const CoordinatorServer::Options& complete) {
          return CoordinatorServer::Start(complete, run).value();
        }),
        shut_down_([&run] { return run.Shutdown(); }) {
    Serve(std::move(options));
  }
  ~LocalServer() {
    EXPECT_TRUE(shut_down_().ok());
    Stop();
  }

  // Serves anew: at first on any free port, then on the same.
  void Serve(CoordinatorServer::Options options = NoTls()) {
    Stop();
    options.address = address_;
    server_ = start_(options);
    address_ = absl::StrCat("127.0.0.1:", server_->port());
  }
  void Stop(absl::Duration deadline = absl::Seconds(5)) {
    if (server_ != nullptr) server_->Stop(deadline);
    server_ = nullptr;
  }

  const std::string& address() const { return address_; }
  int port() const { return server_->port(); }
  // Without TLS.
  std::shared_ptr<grpc::Channel> Connect(int connection = 0) const {
    return MakeChannel(address_, connection, ChannelSecurity::Plaintext());
  }

 private:
  const std::function<std::unique_ptr<CoordinatorServer>(const CoordinatorServer::Options&)> start_;
  const std::function<absl::Status()> shut_down_;
  std::string address_ = "127.0.0.1:0";
  std::unique_ptr<CoordinatorServer> server_;
};

struct OpenSession {
  // Says `join`, if there is one, and reads the Welcome, if one comes.
  OpenSession(v1::Session::Stub& stub, const std::optional<v1::WorkerMessage>& join,
              absl::Duration patience = absl::Hours(1)) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
    stream = stub.Attach(&context);
    if (join.has_value()) stream->Write(*join);
    v1::CoordinatorMessage message;
    if (stream->Read(&message) && message.has_welcome()) welcome = message.welcome();
  }
  // Reads to its end.
  grpc::Status End() {
    v1::CoordinatorMessage message;
    while (stream->Read(&message)) {
    }
    return stream->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> stream;
  std::optional<v1::Welcome> welcome;
};

}  // namespace causeway::server
