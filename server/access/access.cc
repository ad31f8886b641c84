#include "server/access/access.h"

#include <grpc/grpc_security_constants.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace causeway::server {
namespace {

constexpr size_t kMaxIdentities = 4096;
constexpr size_t kMaxStrangers = 4096;
constexpr double kLinesPerSecond = 1;
constexpr double kLineBurst = 20;
constexpr absl::Duration kSayAgain = absl::Minutes(1);
constexpr size_t kMaxRepeats = 1024;

absl::string_view ToView(grpc::string_ref text) { return {text.data(), text.size()}; }

// A verb for refusals: "asked to push".
absl::string_view Verb(Action action) {
  switch (action) {
    case Action::kDescribe:
      return "read the run's configuration";
    case Action::kAttach:
      return "attach";
    case Action::kPush:
      return "push";
    case Action::kPull:
      return "pull";
    case Action::kGetStatus:
      return "read the status";
    case Action::kOrder:
      return "give an order";
    case Action::kProbe:
      return "probe the link";
    case Action::kFollow:
      return "follow";
    case Action::kInvite:
      return "invite";
    case Action::kEnroll:
      return "use an invitation";
    case Action::kRenew:
      return "renew its certificate";
  }
  return "";
}

bool RoleMay(Role role, Action action) {
  if (role == Role::kInvited || action == Action::kEnroll) {
    return role == Role::kInvited && action == Action::kEnroll;
  }
  switch (action) {
    case Action::kDescribe:
    case Action::kProbe:
    case Action::kRenew:
      return true;
    case Action::kEnroll:
      return false;
    case Action::kAttach:
    case Action::kPush:
      return role == Role::kWorker || role == Role::kRegion;
    case Action::kPull:
      return role == Role::kWorker || role == Role::kRegion || role == Role::kOperator;
    case Action::kGetStatus:
      return role == Role::kOperator || role == Role::kObserver;
    case Action::kOrder:
    case Action::kFollow:
    case Action::kInvite:
      return role == Role::kOperator;
  }
  return false;
}

// Whether the answer shows what the run has come to.
bool Tells(Action action) {
  return action == Action::kAttach || action == Action::kPush || action == Action::kPull;
}

absl::string_view WhatARoleMayDo(Role role) {
  switch (role) {
    case Role::kWorker:
      return "a worker may attach, push and pull under its own id";
    case Role::kRegion:
      return "a region may attach, push and pull under its own id, as `serve --parent` does";
    case Role::kOperator:
      return "an operator may read everything and give orders, but takes no part in the training";
    case Role::kObserver:
      return "an observer may read the configuration and the status";
    case Role::kInvited:
      return "an invitation is exchanged for a certificate (--join), and is good for nothing else";
  }
  return "";
}

// "ipv4:10.0.0.2" of "ipv4:10.0.0.2:4711": a stranger has as many ports as he likes.
std::string HostOf(absl::string_view address) {
  return std::string(address.substr(0, address.rfind(':')));
}

}  // namespace

double CostOf(Action action) {
  switch (action) {
    case Action::kDescribe:
    case Action::kPush:
    case Action::kPull:
      return 2;
    case Action::kAttach:
    case Action::kOrder:
    case Action::kProbe:
    case Action::kFollow:
    case Action::kInvite:
    case Action::kEnroll:
    case Action::kRenew:
      return 10;
    case Action::kGetStatus:
      return 20;
  }
  return 1;
}

std::string Peer::Describe() const {
  if (!identity.has_value()) return absl::StrCat("a peer at ", address);
  return absl::StrCat(Name(), " at ", address);
}

std::string Peer::Name() const {
  if (!identity.has_value()) return address;
  return absl::StrCat(RoleName(identity->role), " ", identity->name);
}

Access::Access(Options options)
    : options_(std::move(options)),
      peers_(options_.requests_per_second, options_.request_burst, kMaxIdentities, *options_.clock),
      strangers_(options_.strangers_per_second, options_.stranger_burst, kMaxStrangers,
                 *options_.clock),
      lines_(kLinesPerSecond, kLineBurst, 1, *options_.clock) {}

absl::Status Access::Identify(const grpc::ServerContextBase& context, Peer& peer) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  const bool has_certificate =
      auth != nullptr && !auth->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME).empty();
  if (has_certificate) {
    std::vector<absl::string_view> uris;
    for (const grpc::string_ref& uri : auth->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
      if (absl::StartsWith(ToView(uri), kIdentityScheme)) uris.push_back(ToView(uri));
    }
    if (uris.size() != 1) {
      return absl::UnauthenticatedError(absl::StrCat(
          "the certificate names ", uris.size(), " identities; expected one URI among its ",
          "alternative names, causeway://RUN/ROLE/NAME (deploy/make_certificates)"));
    }
    absl::StatusOr<Identity> identity = ParseIdentity(uris[0]);
    if (!identity.ok()) {
      return absl::UnauthenticatedError(
          absl::StrCat("the certificate names no identity: ", identity.status().message()));
    }
    peer.identity = *std::move(identity);
    const std::vector<grpc::string_ref> pem =
        auth->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
    const absl::StatusOr<Certificate> certificate =
        ParseCertificate(ToView(pem[0]), "the peer's certificate");
    if (!certificate.ok()) return absl::UnauthenticatedError(certificate.status().message());
    peer.expires = certificate->not_after;
    peer.fingerprint = certificate->fingerprint;
    return Counts(peer);
  }
  const auto& metadata = context.client_metadata();
  const auto header = metadata.find("authorization");
  if (header == metadata.end()) {
    return absl::UnauthenticatedError(
        options_.tokens == nullptr
            ? "no certificate: give the worker --tls_cert and --tls_key"
            : "neither a certificate nor a token: give the worker --token_file, or --tls_cert and "
              "--tls_key");
  }
  absl::string_view token = ToView(header->second);
  if (options_.tokens == nullptr || !absl::ConsumePrefix(&token, "Bearer ") ||
      token.size() > kMaxTokenCharacters || metadata.count("authorization") != 1) {
    return absl::UnauthenticatedError(
        "this coordinator takes no such credentials: a certificate, or one bearer token if it "
        "takes tokens");
  }
  ASSIGN_OR_RETURN(peer.token, options_.tokens->Find(token));
  peer.identity = peer.token->identity;
  return Counts(peer);
}

absl::Status Access::Counts(const Peer& peer) {
  if (peer.token.has_value()) RETURN_IF_ERROR(options_.tokens->Holds(*peer.token));
  // Not final: whoever has a new one connects again with it.
  if (options_.clock->Now() > peer.expires) {
    return absl::UnavailableError(
        absl::StrCat("the certificate of ", peer.Name(), " ended at ",
                     absl::FormatTime(absl::RFC3339_sec, peer.expires, absl::UTCTimeZone()),
                     ": renew it (deploy/make_certificates renew) and connect again"));
  }
  if (options_.refused != nullptr && peer.identity.has_value()) {
    return options_.refused->Check(*peer.identity, peer.fingerprint);
  }
  return absl::OkStatus();
}

absl::StatusOr<Peer> Access::Authenticate(const grpc::ServerContextBase& context) {
  Peer peer;
  peer.address = context.peer();
  if (!options_.authenticate) return peer;
  const absl::Status identified = Identify(context, peer);
  if (!identified.ok()) {
    if (!strangers_.Take(HostOf(peer.address))) {
      return absl::ResourceExhaustedError("too many requests without an identity");
    }
    Report(peer, identified);
    return identified;
  }
  return peer;
}

absl::StatusOr<Peer> Access::Admit(const grpc::ServerContextBase& context, Action action) {
  ASSIGN_OR_RETURN(Peer peer, AdmitSilently(context, action));
  RETURN_IF_ERROR(CheckMayTell(action));
  if (options_.on_admitted) options_.on_admitted(peer);
  return peer;
}

absl::StatusOr<Peer> Access::AdmitSilently(const grpc::ServerContextBase& context, Action action) {
  ASSIGN_OR_RETURN(Peer peer, Authenticate(context));
  RETURN_IF_ERROR(Count(peer, CostOf(action)));
  if (!peer.identity.has_value()) return peer;
  const Identity& identity = *peer.identity;
  if (identity.run != kEveryRun && identity.run != options_.run_name) {
    // As a Join of another run: this coordinator may be the wrong one.
    const absl::Status refusal = absl::FailedPreconditionError(
        absl::StrCat("this ", RoleName(identity.role), " ", identity.name, " is one of the run ",
                     identity.run, ", and this run is ", options_.run_name));
    Report(peer, refusal);
    return refusal;
  }
  RETURN_IF_ERROR(CheckRole(peer, action));
  return peer;
}

absl::Status Access::CheckMayTell(Action action) const {
  return options_.may_tell && Tells(action) ? options_.may_tell() : absl::OkStatus();
}

absl::Status Access::CheckRole(const Peer& peer, Action action) {
  if (!peer.identity.has_value() || RoleMay(peer.identity->role, action)) return absl::OkStatus();
  const Identity& identity = *peer.identity;
  const absl::Status refusal = absl::PermissionDeniedError(
      absl::StrCat(RoleName(identity.role), " ", identity.name, " asked to ", Verb(action), ": ",
                   WhatARoleMayDo(identity.role)));
  Report(peer, refusal);
  return refusal;
}

absl::Status Access::CheckMessage(const Peer& peer, Action action, absl::string_view worker_id) {
  RETURN_IF_ERROR(Count(peer, CostOf(action)));
  RETURN_IF_ERROR(CheckStillValid(peer));
  RETURN_IF_ERROR(CheckRole(peer, action));
  RETURN_IF_ERROR(CheckMayTell(action));
  return CheckWorker(peer, action, worker_id);
}

absl::Status Access::Count(const Peer& peer, double cost) {
  if (!peer.identity.has_value()) return absl::OkStatus();
  if (peers_.Take(absl::StrCat(RoleName(peer.identity->role), "/", peer.identity->name), cost)) {
    return absl::OkStatus();
  }
  const absl::Status refusal = absl::ResourceExhaustedError(absl::StrCat(
      "more than ", options_.requests_per_second,
      " requests and messages per second: try again later, or raise --max_requests_per_second"));
  Report(peer, refusal);
  return refusal;
}

absl::Status Access::CheckStillValid(const Peer& peer) {
  const absl::Status status = Counts(peer);
  if (!status.ok()) Report(peer, status);
  return status;
}

absl::Status Access::CheckWorker(const Peer& peer, Action action, absl::string_view worker_id) {
  const bool takes_part = peer.identity.has_value() && (peer.identity->role == Role::kWorker ||
                                                        peer.identity->role == Role::kRegion);
  if (!takes_part || peer.identity->name == worker_id) {
    if (options_.on_worker) options_.on_worker(peer, action, worker_id);
    return absl::OkStatus();
  }
  const absl::Status refusal = absl::PermissionDeniedError(absl::StrCat(
      RoleName(peer.identity->role), " ", peer.identity->name, " asked to ", Verb(action),
      " as worker \"", absl::CHexEscape(worker_id.substr(0, 64)),
      "\": ", WhatARoleMayDo(peer.identity->role),
      peer.identity->role == Role::kRegion ? "; its certificate or token and --region_id must agree"
                                           : "; its certificate or token and --id must agree"));
  Report(peer, refusal);
  return refusal;
}

absl::Status Access::CheckRegion(const Peer& peer, bool is_region) {
  if (!peer.identity.has_value() || (peer.identity->role == Role::kRegion) == is_region) {
    return absl::OkStatus();
  }
  const absl::Status refusal = absl::PermissionDeniedError(absl::StrCat(
      RoleName(peer.identity->role), " ", peer.identity->name, " asked to attach as a ",
      is_region ? "region" : "worker", ": ", WhatARoleMayDo(peer.identity->role),
      "; give it a certificate or token of the role ", is_region ? "region" : "worker",
      " (deploy/make_certificates)"));
  Report(peer, refusal);
  return refusal;
}

absl::Status Access::Check(const grpc::ServerContextBase& context, Action action,
                           absl::string_view worker_id) {
  ASSIGN_OR_RETURN(const Peer peer, Admit(context, action));
  return CheckWorker(peer, action, worker_id);
}

void Access::Report(const Peer& peer, const absl::Status& refusal) {
  // Figures, such as the seconds that are left, make no other reason.
  std::string key(refusal.message());
  std::erase_if(key, absl::ascii_isdigit);
  key = absl::StrCat(peer.identity.has_value() ? peer.Name() : HostOf(peer.address), " ", key);
  int64_t before = 0;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = options_.clock->Monotonic();
    const auto is_over = [now](const auto& one) { return now - one.second.said >= kSayAgain; };
    const auto known = repeats_.find(key);
    if (known != repeats_.end() && !is_over(*known)) {
      ++known->second.since;
      return;
    }
    if (known != repeats_.end()) before = known->second.since;
    if (repeats_.size() >= kMaxRepeats) std::erase_if(repeats_, is_over);
    if (repeats_.size() < kMaxRepeats) repeats_[key] = {.said = now};
  }
  if (!lines_.Take("")) return;
  options_.events->Record(
      "access_refused",
      absl::StrCat("refused ", peer.Describe(), ": ", refusal.message(),
                   before == 0 ? "" : absl::StrCat("; ", before, " more before this")),
      {{"peer", peer.Describe()}, {"reason", std::string(refusal.message())}});
}

}  // namespace causeway::server
