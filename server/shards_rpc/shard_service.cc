#include "server/shards_rpc/shard_service.h"

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/params/run_config.h"
#include "common/rpc/status.h"

namespace causeway::server {
namespace {

// Whether the peer may be the shard of that name.
absl::Status CheckHello(const Peer& peer, const v1::ShardHello& hello) {
  RETURN_IF_ERROR(CheckName("the shard's name", hello.name()));
  if (!peer.identity.has_value() || peer.identity->name == hello.name()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the certificate of shard ", peer.identity->name,
                                                  " is used for shard ", hello.name(),
                                                  ": it and --shard must agree"));
}

}  // namespace

grpc::Status ShardService::Serve(grpc::ServerContext* context, Stream* stream) {
  return ToGrpcStatus(Attend(*context, *stream));
}

grpc::Status ShardService::Initial(grpc::ServerContext* context, const v1::ShardHello* hello,
                                   grpc::ServerWriter<v1::ShardValues>* writer) {
  const auto send = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const Peer peer, access_.Admit(*context, Action::kServeShard));
    RETURN_IF_ERROR(CheckHello(peer, *hello));
    return hub_.SendInitial(*hello, [&](const v1::ShardValues& piece) {
      return writer->Write(piece) ? absl::OkStatus() : absl::CancelledError("the shard is gone");
    });
  };
  return ToGrpcStatus(send());
}

absl::Status ShardService::Attend(grpc::ServerContext& context, Stream& stream) {
  ASSIGN_OR_RETURN(const Peer peer, access_.Admit(context, Action::kServeShard));
  v1::ShardReport report;
  if (!stream.Read(&report)) return absl::CancelledError("the shard is gone");
  if (!report.has_hello()) {
    return absl::InvalidArgumentError("the first message of a shard must be its Hello");
  }
  const v1::ShardHello hello = report.hello();
  RETURN_IF_ERROR(CheckHello(peer, hello));
  ASSIGN_OR_RETURN(const v1::ShardWelcome welcome, hub_.Admit(hello));
  v1::ShardOrder order;
  *order.mutable_welcome() = welcome;
  stream.Write(order);
  if (hello.ask()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::shared_ptr<ShardHub::Line> line,
                   hub_.Attach(hello, [&context] { context.TryCancel(); }));
  absl::StatusOr<std::thread> writer = StartThread([&] {
    while (const std::optional<v1::ShardOrder> next = hub_.NextOrder(*line)) {
      if (!stream.Write(*next)) break;
    }
    context.TryCancel();  // The read below ends.
  });
  absl::Status ended = writer.status();
  while (ended.ok() && stream.Read(&report)) {
    ended = hub_.Take(*line, report);
    if (ended.ok()) ended = access_.CheckStillValid(peer);
  }
  if (ended.ok()) ended = absl::UnavailableError("its stream ended");
  hub_.Close(*line);
  if (writer.ok()) writer->join();
  hub_.Detach(line, ended);
  return ended;
}

}  // namespace causeway::server
