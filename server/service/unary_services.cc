#include "server/service/unary_services.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "causeway/v1/admin.grpc.pb.h"
#include "causeway/v1/enrollment.grpc.pb.h"
#include "common/rpc/status.h"
#include "server/service/session_service.h"

namespace causeway::server {

grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context,
                                     const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

namespace {

using Context = grpc::CallbackServerContext;
using Reactor = grpc::ServerUnaryReactor;

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(const ServedRun& run, Access& access, const WorkerLinks& links,
               PastEvents past_events)
      : run_(run), access_(access), links_(links), past_events_(std::move(past_events)) {}

  Reactor* GetStatus(Context* context, const v1::GetStatusRequest*,
                     v1::RunStatus* response) override {
    const absl::Status access = access_.Admit(*context, Action::kGetStatus).status();
    if (access.ok()) {
      *response = run_.GetStatus();
      links_.AddTo(*response);
    }
    return FinishWith(context, access);
  }

  Reactor* ListEvents(Context* context, const v1::ListEventsRequest* request,
                      v1::ListEventsResponse* response) override {
    absl::Status status = access_.Admit(*context, Action::kGetStatus).status();
    if (status.ok() && past_events_ == nullptr) {
      status = absl::UnimplementedError("this coordinator keeps no events");
    }
    if (status.ok()) *response = past_events_(request->after());
    return FinishWith(context, status);
  }

  Reactor* Pause(Context* context, const v1::PauseRequest* request, v1::PauseResponse*) override {
    return Order(*context, CheckLength("reason", request->reason()),
                 [&](Orders& orders) { return orders.Pause(request->reason()); });
  }
  Reactor* Resume(Context* context, const v1::ResumeRequest*, v1::ResumeResponse*) override {
    return Order(*context, absl::OkStatus(), [](Orders& orders) { return orders.Resume(); });
  }
  Reactor* Drain(Context* context, const v1::DrainRequest* request, v1::DrainResponse*) override {
    return Order(*context, absl::OkStatus(),
                 [&](Orders& orders) { return orders.Drain(request->worker_id()); });
  }
  Reactor* Reject(Context* context, const v1::RejectRequest* request,
                  v1::RejectResponse*) override {
    return Order(*context, CheckLength("reason", request->reason()),
                 [&](Orders& orders) { return orders.Reject(*request); });
  }
  Reactor* Stop(Context* context, const v1::StopRequest* request, v1::StopResponse*) override {
    const bool one = (request->at_step() != 0) != (request->at_tokens() != 0);
    return Order(*context,
                 one ? absl::OkStatus()
                     : absl::InvalidArgumentError("give either at_step or at_tokens, not both"),
                 [&](Orders& orders) {
                   return request->at_tokens() != 0 ? orders.StopAtTokens(request->at_tokens())
                                                    : orders.StopAtStep(request->at_step());
                 });
  }

 private:
  // Ends the call with `checked`, the request's own fault, or with what the order comes to.
  Reactor* Order(Context& context, absl::Status checked,
                 absl::FunctionRef<absl::Status(Orders&)> order) {
    absl::Status status = access_.Admit(context, Action::kOrder).status();
    if (status.ok()) status = std::move(checked);
    if (status.ok()) {
      const absl::StatusOr<Coordinator*> begun = run_.Begun();
      status = begun.ok() ? order((*begun)->orders()) : begun.status();
    }
    return FinishWith(&context, status);
  }

  const ServedRun& run_;
  Access& access_;
  const WorkerLinks& links_;
  const PastEvents past_events_;
};

// Limit on requests, which are PEM texts of one key.
constexpr size_t kMaxRequestBytes = 8192;

// Moves what `from` has to `to`.
template <typename Response>
absl::Status Give(absl::StatusOr<Response> from, Response* to) {
  RETURN_IF_ERROR(from.status());
  *to = *std::move(from);
  return absl::OkStatus();
}

absl::Status CheckSize(const v1::EnrollRequest& request) {
  if (request.certificate_request().size() <= kMaxRequestBytes) return absl::OkStatus();
  return absl::InvalidArgumentError("the request for a certificate is too long");
}

class EnrollmentService final : public v1::Enrollment::CallbackService {
 public:
  EnrollmentService(Access& access, OwnAuthority* authority, EnrollmentHooks hooks)
      : access_(access), authority_(authority), hooks_(std::move(hooks)) {}

  Reactor* Invite(Context* context, const v1::InviteRequest* request,
                  v1::InviteResponse* response) override {
    return Answer(context, Action::kInvite, [&](const Peer& peer) -> absl::Status {
      RETURN_IF_ERROR(Give(authority_->Invite(*request, peer.Name()), response));
      for (const std::string& address : hooks_.addresses()) response->add_addresses(address);
      hooks_.trust();
      return absl::OkStatus();
    });
  }

  Reactor* ListInvitations(Context* context, const v1::ListInvitationsRequest*,
                           v1::ListInvitationsResponse* response) override {
    return Answer(context, Action::kInvite, [&](const Peer&) {
      *response = authority_->List();
      return absl::OkStatus();
    });
  }

  Reactor* RevokeInvitation(Context* context, const v1::RevokeInvitationRequest* request,
                            v1::RevokeInvitationResponse*) override {
    return Answer(context, Action::kInvite, [&](const Peer& peer) -> absl::Status {
      RETURN_IF_ERROR(authority_->Revoke(request->name(), peer.Name()));
      hooks_.trust();
      return absl::OkStatus();
    });
  }

  Reactor* Enroll(Context* context, const v1::EnrollRequest* request,
                  v1::EnrollResponse* response) override {
    return Answer(context, Action::kEnroll, [&](const Peer& peer) -> absl::Status {
      RETURN_IF_ERROR(CheckSize(*request));
      return Give(authority_->Enroll(peer.fingerprint, *request, peer.address), response);
    });
  }

  Reactor* Renew(Context* context, const v1::EnrollRequest* request,
                 v1::EnrollResponse* response) override {
    return Answer(context, Action::kRenew, [&](const Peer& peer) -> absl::Status {
      if (!peer.identity.has_value() || peer.fingerprint.empty()) {
        return absl::FailedPreconditionError("only who has shown a certificate renews it");
      }
      RETURN_IF_ERROR(CheckSize(*request));
      return Give(authority_->Renew(*peer.identity, peer.expires, *request), response);
    });
  }

 private:
  // Admits the call, and finishes it with what `answer` makes of it.
  Reactor* Answer(Context* context, Action action,
                  absl::FunctionRef<absl::Status(const Peer& peer)> answer) {
    const absl::StatusOr<Peer> peer = access_.Admit(*context, action);
    if (!peer.ok()) return FinishWith(context, peer.status());
    if (authority_ != nullptr) return FinishWith(context, answer(*peer));
    return FinishWith(
        context,
        absl::FailedPreconditionError(
            "this coordinator has its certificates from elsewhere, or none, and invites nobody: "
            "its own authority comes with `serve --tls=own`, without --tls_ca, --tls_cert and "
            "--tls_key"));
  }

  Access& access_;
  OwnAuthority* const authority_;
  const EnrollmentHooks hooks_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const ServedRun& run, Access& access,
                                                const WorkerLinks& links, PastEvents past_events) {
  return std::make_unique<AdminService>(run, access, links, std::move(past_events));
}

std::unique_ptr<grpc::Service> MakeEnrollmentService(Access& access, OwnAuthority* authority,
                                                     EnrollmentHooks hooks) {
  return std::make_unique<EnrollmentService>(access, authority, std::move(hooks));
}

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
