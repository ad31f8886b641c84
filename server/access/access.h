// Who may do what. Every call passes here first: authentication, the limit of requests, the role.
//
// A region may do what a worker may, under its own id, but for BringModel:
//
//   call                      worker        operator   observer
//   Session.Describe          yes           yes        yes
//   Session.Attach, BringModel  its own id  -          -
//   Exchange.Carry: offers    its own id    -          -
//   Exchange.Carry: wants     its own id    yes        -          (they show the parameters)
//   Admin.GetStatus, Events   -             yes        yes
//   Admin's orders            -             yes        -
//   Standby.Follow            -             yes        -          (it shows everything)
//   Enrollment's orders       -             yes        -
//   Enrollment.Renew          yes           yes        yes
//
// Who shows an invitation (role invited) may call Enrollment.Enroll, and nothing else.
//
// Without TLS (loopback, or --insecure) nobody can prove anything: everybody may do everything, and
// nothing is counted.
//
// Errors: UNAUTHENTICATED (no certificate, none that names an identity, no token or an unknown
// one), PERMISSION_DENIED (who it is, what it asked for, what it may do), RESOURCE_EXHAUSTED (too
// many requests), and UNAVAILABLE for what passes: a certificate that has ended, of which there may
// be a newer one, and a list that cannot be read, or is being written.
#pragma once

#include <grpcpp/server_context.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/identity/identity.h"
#include "common/telemetry/event_log.h"
#include "server/access/rate_limiter.h"
#include "server/access/watched_list.h"

namespace causeway::server {

// access.cc says what each costs, and who may.
enum class Action {
  kDescribe,
  kAttach,
  kPush,
  kPull,
  kGetStatus,
  kOrder,
  kProbe,
  kFollow,
  kInvite,
  kEnroll,
  kRenew
};

// As how many messages of a session a call counts.
double CostOf(Action action);

// Who makes a call. Copied into whatever outlives the call's first moment.
struct Peer {
  std::string address;               // "ipv4:10.0.0.2:4711", as gRPC writes it.
  std::optional<Identity> identity;  // Without: an unencrypted connection.
  std::optional<TokenEntry> token;   // By which the identity was proven, if not by a certificate.
  absl::Time expires = absl::InfiniteFuture();  // The certificate's end.
  std::string fingerprint;                      // The certificate's.

  std::string Describe() const;  // "worker site-a at ipv4:10.0.0.2:4711"
  std::string Name() const;      // "worker site-a", or the address of who has no identity.
};

// Thread-safe.
class Access {
 public:
  struct Options {
    bool authenticate = false;  // Connections are encrypted, so that identities can be asked for.
    std::string run_name;       // Identities are for this run or for every one.
    std::unique_ptr<TokenTable> tokens;  // May be null: certificates alone.
    // May be null: nobody is refused by name.
    std::unique_ptr<RefusedIdentities> refused;
    // Rate limit of an identity, in messages within a session, of which four seconds' may come at
    // once. A call, offer or want counts as CostOf messages.
    double requests_per_second = 1000;
    const Clock* clock = nullptr;  // Outlives the object, as does the next.
    EventLog* events = NullEventLog();
    // Called, on any thread, for every call that may be made; the other for those on behalf of a
    // worker.
    std::function<void(const Peer& peer)> on_admitted;
    std::function<void(const Peer& peer, Action action, absl::string_view worker_id)> on_worker;
    // Whether workers may be told anything now; its error is what they get. May be empty.
    std::function<absl::Status()> may_tell = nullptr;
  };
  explicit Access(Options options);

  // Who this is, if it may do that at all. For calls on behalf of a worker, CheckWorker follows as
  // soon as the worker id is known.
  absl::StatusOr<Peer> Admit(const grpc::ServerContextBase& context, Action action);
  absl::Status CheckWorker(const Peer& peer, Action action, absl::string_view worker_id);
  // Who attaches as a region needs that role, and has no other.
  absl::Status CheckRegion(const Peer& peer, bool is_region);
  // For calls that last: UNAUTHENTICATED or UNAVAILABLE once the peer's token does not count any
  // more, its certificate has ended, or its identity is refused.
  absl::Status CheckStillValid(const Peer& peer);
  // For calls of many messages: one of them came. RESOURCE_EXHAUSTED as for a request.
  absl::Status CountMessage(const Peer& peer) { return Count(peer, 1); }
  // For a message that is as good as a call, and counts as one: all that Admit and CheckWorker look
  // at.
  absl::Status CheckMessage(const Peer& peer, Action action, absl::string_view worker_id);

 private:
  absl::Status CheckRole(const Peer& peer, Action action);
  absl::Status CheckMayTell(Action action) const;
  absl::StatusOr<Peer> Authenticate(const grpc::ServerContextBase& context);
  absl::Status Count(const Peer& peer, double cost);
  // As CheckStillValid, and says nothing.
  absl::Status Counts(const Peer& peer);
  // Fills in who the peer is, and by what that is known.
  absl::Status Identify(const grpc::ServerContextBase& context, Peer& peer);
  // Logs a refusal, but not more of them than a person would read: those that repeat are counted,
  // and the next line of them says how often. Returns it.
  absl::Status Report(const Peer& peer, const absl::Status& refusal);

  const Options options_;
  RateLimiter peers_;
  RateLimiter strangers_;
  RateLimiter lines_;
  struct Repeats {
    absl::Duration said;  // When it was logged last.
    int64_t since = 0;    // How often it came since then.
  };
  absl::Mutex mutex_;
  std::map<std::string, Repeats> repeats_ ABSL_GUARDED_BY(mutex_);  // By who and why.
};

}  // namespace causeway::server
