// The coordinator's gRPC server: the four services on one port, the threads behind them, and the
// clock that ticks.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "common/identity/certificate.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/rpc/tcp_links.h"
#include "common/telemetry/event_log.h"
#include "common/telemetry/metric_page.h"
#include "server/access/access.h"
#include "server/access/own_authority.h"
#include "server/core/served_run.h"
#include "server/service/connection_listener.h"
#include "server/service/lane_reactor.h"
#include "server/service/probe_service.h"
#include "server/service/session_service.h"
#include "server/service/unary_services.h"
#include "server/transfer/answer_outbox.h"
#include "server/transfer/delta_inbox.h"
#include "server/transfer/lane_registry.h"

namespace causeway::server {

class CoordinatorServer {
 public:
  struct Options {
    std::string address = {};       // HOST:PORT; port 0: any free one.
    SecurityOptions security = {};  // Without files: plaintext, on loopback or with `insecure`.
    // Where the run's own authority is, or is made (own_authority.h), in place of files in
    // `security`; empty: there is none.
    std::string authority_folder = {};
    std::string given_authority = {};  // OwnAuthority::Options::given.
    // HOST:PORT, where members reach this coordinator; empty: where it listens.
    std::vector<std::string> advertised = {};
    std::string operator_folder = {};   // Receives an operator's identity; empty: none is made.
    ConnectionLimits connections = {};  // Apart from the memory, which is a share of this:
    // Bounds what peers make this process keep for them: objects that are being received, packed
    // chunks, and gRPC's buffers. What the rounds themselves hold is not part of it. 0: room for
    // the whole model of every member at 4 bytes a value, and a gibibyte. Apart from it, objects
    // that one worker pulls are bounded to 4 times the model.
    int64_t memory_bytes = 0;
    // A transfer that does not move for so long is ended.
    absl::Duration stall = absl::Seconds(60);
    // Until a session's first message; and until a worker reads what its session ended with.
    absl::Duration join_timeout = absl::Seconds(10);
    double max_requests_per_second = 5000;  // Limit per peer, 1 or more: access.h.
    // Limits of all peers, and of one address (connection_listener.h). 0 for all: 4096, or as many
    // as max_workers need, or what the process's limit of open files leaves. 0 for an address: a
    // quarter of that, but enough for all workers behind one address.
    int max_connections = 0;
    int max_connections_per_address = 0;
    std::string refused_identities = {};  // A file of watched_list.h; empty: none.
    const Clock* clock = Clock::Real();   // For that rate and for certificates' ends.
    EventLog* events = NullEventLog();    // Outlives the server.
    // Makes Admin.ListEvents' answer; empty: UNIMPLEMENTED. Thread-safe.
    PastEvents past_events = nullptr;
    // As Access::Options::may_tell.
    std::function<absl::Status()> may_tell = nullptr;
    // Makes one more service, on the same port and behind the same access; the server owns it.
    std::function<std::unique_ptr<grpc::Service>(Access& access)> make_service = nullptr;
  };

  // Listens. The run, or its coordinator, outlives the result. INVALID_ARGUMENT for a malformed
  // address, or if the memory does not hold the largest contribution; FAILED_PRECONDITION if the
  // process may not open files enough for max_connections; UNAVAILABLE if the address cannot be
  // listened on; and the errors of MakeServerSecurity and TokenTable.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(const Options& options,
                                                                  ServedRun& run);
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(const Options& options,
                                                                  Coordinator& coordinator);
  // Stops with a deadline of a second.
  ~CoordinatorServer();
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  int port() const { return listener_->port(); }
  // The coordinator's, with what TCP says of the workers' links.
  v1::RunStatus GetStatus() const;
  // How much it has to do.
  void AddTo(MetricPage& page) const;

  // Takes no new calls, waits that long for those under way, cancels the rest. Shut the
  // coordinator down first, so that sessions and waiting pulls end by themselves. May be called
  // again.
  void Stop(absl::Duration deadline);

 private:
  // What carries the objects of a run that has begun.
  struct Transfers {
    std::shared_ptr<DeltaInbox> inbox;
    std::shared_ptr<AnswerOutbox> outbox;
    LaneRegistry lanes;
  };

  CoordinatorServer(const Options& options, int64_t given_memory_bytes, Access::Options access,
                    std::unique_ptr<OwnAuthority> authority, const ConnectionGate::Limits& limits,
                    ServedRun& run);
  // Looks at the certificates' files, and at who is invited.
  void LookAtCertificates();
  // The hooks of Access that keep links_ and gate_ informed.
  Access::Options Noting(Access::Options options);
  // The run has begun. Where it awaited its model, memory was shared out without its plan.
  void StartTransfers(Coordinator& coordinator);
  // Null before that.
  Transfers* transfers() const { return ready_.load(std::memory_order_acquire); }
  void Tick();
  // True: call it again at once.
  bool Maintain();

  std::unique_ptr<ServedRun> own_run_;  // Where Start was given a coordinator.
  ServedRun& run_;
  const absl::Duration stall_;
  const int64_t given_memory_bytes_;  // Options::memory_bytes as it was given.
  WorkerLinks links_;
  ConnectionGate gate_;
  Access access_;
  ByteBudget push_memory_;
  ByteBudget pull_cache_;
  WorkQueue merges_;  // Verifies and merges what was pushed.
  WorkQueue copies_;  // Packs, unpacks, reads and copies.
  WorkQueue words_;   // Handles what sessions say: members are saved.
  std::unique_ptr<Transfers> transfers_;
  std::atomic<Transfers*> ready_ = nullptr;
  SessionService session_;
  ExchangeService exchange_;
  const std::unique_ptr<grpc::Service> admin_;
  const std::unique_ptr<OwnAuthority> authority_;  // Null: certificates come from elsewhere.
  const std::unique_ptr<grpc::Service> enrollment_;
  ProbeGate probe_gate_;
  const std::unique_ptr<grpc::Service> probe_;
  std::unique_ptr<grpc::Service> more_;  // Options::make_service; null: none.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionListener> listener_;
  absl::Mutex certificates_mutex_;
  // Null without TLS.
  std::shared_ptr<ServedCertificates> certificates_ ABSL_GUARDED_BY(certificates_mutex_);
  ExpiryWatch expiry_;  // The maintainer's, as is the next.
  RevocationWatch revocations_;
  EventLog* const events_;
  TcpLosses losses_;                                 // The maintainer's.
  absl::Duration next_tick_ = absl::ZeroDuration();  // The ticker's.
  PeriodicThread ticker_;
  PeriodicThread maintainer_;
};

}  // namespace causeway::server
