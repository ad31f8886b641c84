// The registry in etcd: two keys of a run, one of them bound to the leader's lease.
//
//   /causeway/RUN/leader    "NAME ADDRESS", with the lease; its create revision is the token
//   /causeway/RUN/in_sync   "NAME,NAME", without one; its mod revision is that of the set
#pragma once

#include <grpcpp/client_context.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "etcd/rpc.grpc.pb.h"
#include "server/standby/leadership.h"

namespace causeway::server {

// A user of etcd. Without a name etcd is asked as nobody.
struct EtcdUser {
  std::string name;
  std::string password;
};

class EtcdRegistry final : public Registry {
 public:
  // Each channel goes to a member of the cluster. A call ends after `timeout`; the one after a call
  // without an answer goes to the next member. FAILED_PRECONDITION of any call: another cluster
  // answers than before. PERMISSION_DENIED: etcd does not let this user do it.
  EtcdRegistry(std::vector<std::shared_ptr<RenewedChannel>> members, const std::string& run,
               absl::Duration timeout, EtcdUser user = {});

  absl::StatusOr<RegistryView> Read() override;
  absl::StatusOr<bool> Lead(const RegistryView& seen, const std::string& name,
                            const std::string& address, absl::Duration ttl) override;
  absl::Status KeepAlive() override;
  absl::StatusOr<bool> ChangeSet(const RegistryView& seen,
                                 const std::set<std::string>& names) override;
  void Resign() override;

 private:
  struct Member {
    std::shared_ptr<RenewedChannel> channel;
    std::shared_ptr<grpc::Channel> dialled;  // Of the stubs.
    std::unique_ptr<etcdserverpb::KV::Stub> keys;
    std::unique_ptr<etcdserverpb::Lease::Stub> leases;
    std::unique_ptr<etcdserverpb::Auth::Stub> auth;
  };
  // The one to ask, over a connection with the certificate of now.
  Member& member();
  // Gives a call its deadline and its user, who is introduced to etcd where it has no token.
  absl::Status Prepare(grpc::ClientContext& context);
  // Passes an answer on. etcd's own errors of a member without a majority come with many codes: all
  // mean that nothing is known.
  absl::Status Answered(const grpc::Status& status);
  absl::Status CheckCluster(const etcdserverpb::ResponseHeader& header);
  // Makes a call, which comes from one member, and checks who answered.
  template <typename Response>
  absl::StatusOr<Response> Call(
      absl::FunctionRef<grpc::Status(grpc::ClientContext*, Response*)> call);
  absl::StatusOr<etcdserverpb::TxnResponse> Commit(const etcdserverpb::TxnRequest& request);

  std::vector<Member> members_;
  size_t next_ = 0;
  const std::string leader_key_;
  const std::string set_key_;
  const absl::Duration timeout_;
  const EtcdUser user_;
  std::string token_;     // Token of the user; empty: none yet, or etcd has forgotten it.
  uint64_t cluster_ = 0;  // 0: none has answered yet.
  int64_t lease_ = 0;
};

}  // namespace causeway::server
