#include <grpcpp/client_context.h>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "etcd/rpc.grpc.pb.h"
#include "server/link/leading.h"

namespace causeway::server {
namespace {

using etcdserverpb::Compare;

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

// The request is carried out only if the key was created, or changed, at that revision.
void AddCompare(etcdserverpb::TxnRequest& request, const std::string& key,
                Compare::CompareTarget target, int64_t revision) {
  Compare& compare = *request.add_compare();
  compare.set_result(Compare::EQUAL);
  compare.set_key(key);
  compare.set_target(target);
  if (target == Compare::CREATE) {
    compare.set_create_revision(revision);
  } else {
    compare.set_mod_revision(revision);
  }
}

void AddPut(etcdserverpb::TxnRequest& request, const std::string& key, const std::string& value,
            int64_t lease) {
  etcdserverpb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(key);
  put.set_value(value);
  put.set_lease(lease);
}

class EtcdRegistry final : public Registry {
 public:
  EtcdRegistry(std::vector<std::shared_ptr<RenewedChannels>> members, const std::string& run,
               absl::Duration timeout, EtcdUser user)
      : members_(std::move(members)),
        leader_key_(absl::StrCat("/causeway/", run, "/leader")),
        set_key_(absl::StrCat("/causeway/", run, "/in_sync")),
        timeout_(timeout),
        user_(std::move(user)) {}

  absl::StatusOr<RegistryView> Read() override {
    // Both at one revision.
    etcdserverpb::TxnRequest request;
    request.add_success()->mutable_request_range()->set_key(leader_key_);
    request.add_success()->mutable_request_range()->set_key(set_key_);
    ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse response,
                     Call(&etcdserverpb::KV::Stub::Txn, request));
    RegistryView view;
    view.cluster = absl::StrCat(absl::Hex(cluster_));
    if (response.responses_size() != 2) return absl::InternalError("etcd answers half a question");
    for (const auto& pair : response.responses(0).response_range().kvs()) {
      const std::vector<std::string> words = absl::StrSplit(pair.value(), absl::MaxSplits(' ', 1));
      view.leader = words[0];
      if (words.size() > 1) view.address = words[1];
      view.leader_revision = pair.create_revision();
    }
    for (const auto& pair : response.responses(1).response_range().kvs()) {
      view.in_sync = absl::StrSplit(pair.value(), ',', absl::SkipEmpty());
      view.set_revision = pair.mod_revision();
    }
    return view;
  }

  absl::StatusOr<bool> Lead(const RegistryView& seen, const std::string& name,
                            const std::string& address, absl::Duration ttl) override {
    Resign();  // Ends what an earlier call has left.
    etcdserverpb::LeaseGrantRequest lease;
    lease.set_ttl(absl::ToInt64Seconds(ttl));
    ASSIGN_OR_RETURN(const auto granted, Call(&etcdserverpb::Lease::Stub::LeaseGrant, lease));
    if (!granted.error().empty()) return absl::UnavailableError(granted.error());
    lease_ = granted.id();
    etcdserverpb::TxnRequest request;
    AddCompare(request, leader_key_, Compare::CREATE, 0);  // There is none.
    AddCompare(request, set_key_, Compare::MOD, seen.set_revision);
    AddPut(request, leader_key_, absl::StrCat(name, " ", address), lease_);
    AddPut(request, set_key_, name, 0);
    const absl::StatusOr<etcdserverpb::TxnResponse> response =
        Call(&etcdserverpb::KV::Stub::Txn, request);
    // Unanswered, it may lead all the same: with the lease the lead ends, at once or by itself.
    if (!response.ok() || !response->succeeded()) Resign();
    RETURN_IF_ERROR(response.status());
    return response->succeeded();
  }

  absl::Status KeepAlive() override {
    if (lease_ == 0) return absl::FailedPreconditionError("it has no lease in etcd");
    grpc::ClientContext context;
    RETURN_IF_ERROR(Prepare(context));
    etcdserverpb::Lease::Stub stub(channel());
    const auto stream = stub.LeaseKeepAlive(&context);
    etcdserverpb::LeaseKeepAliveRequest request;
    request.set_id(lease_);
    etcdserverpb::LeaseKeepAliveResponse response;
    const bool answered = stream->Write(request) && stream->Read(&response);
    if (!answered) {
      const grpc::Status ended = stream->Finish();
      return Answered(ended.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the stream ended")
                                 : ended);
    }
    context.TryCancel();
    stream->Finish();
    RETURN_IF_ERROR(CheckCluster(response.header()));
    if (response.ttl() > 0) return absl::OkStatus();
    return absl::FailedPreconditionError("its lease in etcd has ended");
  }

  absl::StatusOr<bool> ChangeSet(const RegistryView& seen,
                                 const std::set<std::string>& names) override {
    etcdserverpb::TxnRequest request;
    AddCompare(request, leader_key_, Compare::CREATE, seen.leader_revision);
    AddCompare(request, set_key_, Compare::MOD, seen.set_revision);
    AddPut(request, set_key_, absl::StrJoin(names, ","), 0);
    ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse response,
                     Call(&etcdserverpb::KV::Stub::Txn, request));
    return response.succeeded();
  }

  void Resign() override {
    if (lease_ == 0) return;
    grpc::ClientContext context;
    if (!Prepare(context).ok()) return;
    etcdserverpb::LeaseRevokeRequest request;
    request.set_id(lease_);
    etcdserverpb::LeaseRevokeResponse response;
    const grpc::Status revoked =
        etcdserverpb::Lease::Stub(channel()).LeaseRevoke(&context, request, &response);
    // Without an answer it may last: the next call may still keep or revoke it.
    if (revoked.ok() || revoked.error_code() == grpc::StatusCode::NOT_FOUND) lease_ = 0;
  }

 private:
  // To the member to ask, with the certificate of now.
  std::shared_ptr<grpc::Channel> channel() { return members_[next_ % members_.size()]->Now(); }

  // Passes an answer on. etcd's own errors of a member without a majority come with many codes: all
  // mean that nothing is known.
  absl::Status Answered(const grpc::Status& status) {
    if (status.ok()) return absl::OkStatus();
    if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
        absl::StrContains(status.error_message(), "auth store is old")) {
      token_.clear();  // It has forgotten it: the next call introduces the user again.
      return absl::UnavailableError(
          absl::StrCat("etcd asks who this is: ", status.error_message()));
    }
    if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED ||
        absl::StrContains(status.error_message(), "user name is empty")) {
      return absl::PermissionDeniedError(absl::StrCat(
          "etcd does not let ", user_.name.empty() ? "a caller without a name" : user_.name,
          " read and change ", leader_key_, " (", status.error_message(),
          "): give --etcd_password_file with a user that may read and ",
          "write the keys that begin with /causeway/"));
    }
    ++next_;
    return absl::UnavailableError(absl::StrCat("etcd does not answer: ", status.error_message()));
  }

  // Gives a call its deadline and its user, who is introduced to etcd where it has no token.
  absl::Status Prepare(grpc::ClientContext& context) {
    if (!user_.name.empty() && token_.empty()) {
      grpc::ClientContext introduction;
      SetDeadline(introduction, timeout_);
      etcdserverpb::AuthenticateRequest request;
      request.set_name(user_.name);
      request.set_password(user_.password);
      etcdserverpb::AuthenticateResponse response;
      const grpc::Status status =
          etcdserverpb::Auth::Stub(channel()).Authenticate(&introduction, request, &response);
      if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
          status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) {
        return absl::PermissionDeniedError(absl::StrCat(
            "etcd does not know ", user_.name, " of --etcd_password_file: ", status.error_message(),
            "; check name and password, and `etcdctl auth status`"));
      }
      RETURN_IF_ERROR(Answered(status));
      RETURN_IF_ERROR(CheckCluster(response.header()));
      token_ = response.token();
    }
    SetDeadline(context, timeout_);
    if (!token_.empty()) context.AddMetadata("token", token_);
    return absl::OkStatus();
  }

  absl::Status CheckCluster(const etcdserverpb::ResponseHeader& header) {
    if (cluster_ == 0) cluster_ = header.cluster_id();
    if (header.cluster_id() == cluster_) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("etcd answers as cluster ", absl::Hex(header.cluster_id()), ", before it was ",
                     absl::Hex(cluster_), ": --etcd must name members of one cluster"));
  }

  // Makes a call, which comes from one member, and checks who answered.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request) {
    grpc::ClientContext context;
    RETURN_IF_ERROR(Prepare(context));
    Stub stub(channel());
    Response response;
    RETURN_IF_ERROR(Answered((stub.*method)(&context, request, &response)));
    RETURN_IF_ERROR(CheckCluster(response.header()));
    return response;
  }

  const std::vector<std::shared_ptr<RenewedChannels>> members_;
  size_t next_ = 0;
  const std::string leader_key_;
  const std::string set_key_;
  const absl::Duration timeout_;
  const EtcdUser user_;
  std::string token_;     // Token of the user; empty: none yet, or etcd has forgotten it.
  uint64_t cluster_ = 0;  // 0: none has answered yet.
  int64_t lease_ = 0;
};

}  // namespace

std::unique_ptr<Registry> MakeEtcdRegistry(std::vector<std::shared_ptr<RenewedChannels>> members,
                                           const std::string& run, absl::Duration timeout,
                                           EtcdUser user) {
  return std::make_unique<EtcdRegistry>(std::move(members), run, timeout, std::move(user));
}

}  // namespace causeway::server
