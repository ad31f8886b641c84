#include "server/access/access.h"

#include <grpc/grpc_security_constants.h>

#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace causeway::server {
namespace {

constexpr size_t kMaxIdentities = 4096;
constexpr size_t kMaxStrangers = 4096;
constexpr double kBurstSeconds = 4;
// Of an address without an identity.
constexpr double kStrangersPerSecond = 10;
constexpr double kStrangerBurst = 100;
constexpr double kLinesPerSecond = 1;
constexpr double kLineBurst = 20;
constexpr absl::Duration kSayAgain = absl::Minutes(1);
constexpr size_t kMaxRepeats = 1024;

absl::string_view ToView(grpc::string_ref text) { return {text.data(), text.size()}; }

constexpr unsigned Of(Role role) { return 1U << static_cast<unsigned>(role); }
constexpr unsigned kWhoTrain = Of(Role::kWorker) | Of(Role::kRegion);
constexpr unsigned kMembers = kWhoTrain | Of(Role::kOperator) | Of(Role::kObserver);

struct ActionFacts {
  absl::string_view verb;  // For refusals: "asked to push".
  double cost;             // CostOf.
  unsigned roles;          // Who may.
  bool tells = false;      // Whether the answer shows what the run has come to.
};

// In the order of Action.
constexpr ActionFacts kActions[] = {
    {"read the run's configuration", 2, kMembers},
    {"attach", 10, kWhoTrain, /*tells=*/true},
    {"push", 2, kWhoTrain, /*tells=*/true},
    {"pull", 2, kWhoTrain | Of(Role::kOperator), /*tells=*/true},
    {"read the status", 20, Of(Role::kOperator) | Of(Role::kObserver)},
    {"give an order", 10, Of(Role::kOperator)},
    {"probe the link", 10, kMembers},
    {"follow", 10, Of(Role::kOperator)},
    {"invite", 10, Of(Role::kOperator)},
    {"use an invitation", 10, Of(Role::kInvited)},
    {"renew its certificate", 10, kMembers},
};

static_assert(std::size(kActions) == static_cast<size_t>(Action::kRenew) + 1);

const ActionFacts& FactsOf(Action action) { return kActions[static_cast<size_t>(action)]; }

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

double CostOf(Action action) { return FactsOf(action).cost; }

std::string Peer::Describe() const {
  if (!identity.has_value()) return absl::StrCat("a peer at ", address);
  return absl::StrCat(Name(), " at ", address);
}

std::string Peer::Name() const {
  if (!identity.has_value()) return address;
  return RoleAndName(*identity);
}

Access::Access(Options options)
    : options_(std::move(options)),
      peers_(options_.requests_per_second, kBurstSeconds * options_.requests_per_second,
             kMaxIdentities, *options_.clock),
      strangers_(kStrangersPerSecond, kStrangerBurst, kMaxStrangers, *options_.clock),
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
    return Report(peer, identified);
  }
  return peer;
}

absl::StatusOr<Peer> Access::Admit(const grpc::ServerContextBase& context, Action action) {
  ASSIGN_OR_RETURN(Peer peer, Authenticate(context));
  RETURN_IF_ERROR(Count(peer, CostOf(action)));
  const std::optional<Identity>& identity = peer.identity;
  if (identity.has_value() && identity->run != kEveryRun && identity->run != options_.run_name) {
    // As a Join of another run: this coordinator may be the wrong one.
    return Report(peer, absl::FailedPreconditionError(
                            absl::StrCat("this ", RoleAndName(*identity), " is one of the run ",
                                         identity->run, ", and this run is ", options_.run_name)));
  }
  RETURN_IF_ERROR(CheckRole(peer, action));
  RETURN_IF_ERROR(CheckMayTell(action));
  if (options_.on_admitted) options_.on_admitted(peer);
  return peer;
}

absl::Status Access::CheckMayTell(Action action) const {
  return options_.may_tell && FactsOf(action).tells ? options_.may_tell() : absl::OkStatus();
}

absl::Status Access::CheckRole(const Peer& peer, Action action) {
  if (!peer.identity.has_value() || (FactsOf(action).roles & Of(peer.identity->role)) != 0) {
    return absl::OkStatus();
  }
  const Identity& identity = *peer.identity;
  return Report(peer, absl::PermissionDeniedError(absl::StrCat(RoleAndName(identity), " asked to ",
                                                               FactsOf(action).verb, ": ",
                                                               WhatARoleMayDo(identity.role))));
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
  return Report(peer, absl::ResourceExhaustedError(
                          absl::StrCat("more than ", options_.requests_per_second,
                                       " requests and messages per second: try again later, or "
                                       "raise --max_requests_per_second")));
}

absl::Status Access::CheckStillValid(const Peer& peer) {
  const absl::Status status = Counts(peer);
  return status.ok() ? status : Report(peer, status);
}

absl::Status Access::CheckWorker(const Peer& peer, Action action, absl::string_view worker_id) {
  const bool takes_part = peer.identity.has_value() && (peer.identity->role == Role::kWorker ||
                                                        peer.identity->role == Role::kRegion);
  if (!takes_part || peer.identity->name == worker_id) {
    if (options_.on_worker) options_.on_worker(peer, action, worker_id);
    return absl::OkStatus();
  }
  return Report(peer, absl::PermissionDeniedError(absl::StrCat(
                          RoleAndName(*peer.identity), " asked to ", FactsOf(action).verb,
                          " as worker \"", absl::CHexEscape(worker_id.substr(0, 64)),
                          "\": ", WhatARoleMayDo(peer.identity->role),
                          peer.identity->role == Role::kRegion
                              ? "; its certificate or token and --region_id must agree"
                              : "; its certificate or token and --id must agree")));
}

absl::Status Access::CheckRegion(const Peer& peer, bool is_region) {
  if (!peer.identity.has_value() || (peer.identity->role == Role::kRegion) == is_region) {
    return absl::OkStatus();
  }
  return Report(
      peer, absl::PermissionDeniedError(absl::StrCat(
                RoleAndName(*peer.identity), " asked to attach as a ",
                is_region ? "region" : "worker", ": ", WhatARoleMayDo(peer.identity->role),
                "; give it a certificate or token of the role ", is_region ? "region" : "worker",
                " (deploy/make_certificates)")));
}

absl::Status Access::Report(const Peer& peer, const absl::Status& refusal) {
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
      return refusal;
    }
    if (known != repeats_.end()) before = known->second.since;
    if (repeats_.size() >= kMaxRepeats) std::erase_if(repeats_, is_over);
    if (repeats_.size() < kMaxRepeats) repeats_[key] = {.said = now};
  }
  if (!lines_.Take("")) return refusal;
  options_.events->Record(
      "access_refused",
      absl::StrCat("refused ", peer.Describe(), ": ", refusal.message(),
                   before == 0 ? "" : absl::StrCat("; ", before, " more before this")),
      {{"peer", peer.Describe()}, {"reason", std::string(refusal.message())}});
  return refusal;
}

}  // namespace causeway::server
