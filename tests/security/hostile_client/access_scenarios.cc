// Members whose credentials do not count any more, on connections that are open.
#include <filesystem>

#include "tests/security/hostile_client/scenarios.h"

namespace causeway::hostile {
namespace {

// Nobody waits for a lease: who is put out is late.
void NobodyWaits(v1::RunConfig& config) {
  config.mutable_membership()->set_quorum(kHonest);
  config.mutable_membership()->set_grace_ms(500);
}

// A site's calls over the connection that it still has; every part of it as it is called in `what`.
struct Reach {
  bool calls = false;
  bool session = false;
  bool waiting = false;
  bool none() const { return !calls && !session && !waiting; }
  std::string Text() const {
    return absl::StrCat("calls ", calls ? "served" : "refused", ", the session ",
                        session ? "goes on" : "ended", ", a pull that waited ",
                        waiting ? "was served" : "ended");
  }
};

// Two rounds of the team with the guest; then `revoke`, while the guest waits for round 3. Then the
// team goes on alone, and what the guest gets of it is looked at.
absl::StatusOr<Reach> Revoke(Run& run, Team& team, Site& guest,
                             const std::function<void()>& revoke) {
  RETURN_IF_ERROR(team.Enter());
  RETURN_IF_ERROR(guest.Enter(0));
  for (int64_t round = 1; round <= 2; ++round) {
    RETURN_IF_ERROR(guest.Deliver(guest.MakePush(round)));
    RETURN_IF_ERROR(team.DoRound(round));
    RETURN_IF_ERROR(guest.Merge(round));
  }
  absl::Status waited = absl::OkStatus();
  std::thread waits([&] { waited = guest.Merge(3, kPatience); });
  revoke();
  Reach reach;
  reach.session = !guest.AwaitEnd(kPatience);
  reach.calls = guest.Deliver(guest.MakePush(3)).ok() || guest.PullStates().ok();
  const absl::Status third = team.DoRound(3);
  waits.join();
  RETURN_IF_ERROR(third);
  reach.waiting = waited.ok();
  run.Kill();
  return reach;
}

absl::StatusOr<Outcome> Judge(const absl::StatusOr<Reach>& reach) {
  RETURN_IF_ERROR(reach.status());
  return Outcome{.held = reach->none(), .what = reach->Text()};
}

absl::StatusOr<Outcome> RefusedIdentity(bool by_certificate) {
  Credentials credentials;
  const std::string list = credentials.folder().Write("refused", "# nobody\n");
  Run run({.change = NobodyWaits,
           .server = credentials.Server([&](server::CoordinatorServer::Options& options) {
             options.refused_identities = list;
           })});
  RETURN_IF_ERROR(run.Start());
  Team team(run, [&](const std::string& id) { return credentials.Certificate(run, id); });
  Site guest(run, "guest", credentials.Certificate(run, "guest"));
  return Judge(Revoke(run, team, guest, [&] {
    std::string line = "worker guest";
    if (by_certificate) {
      const auto certificate = ParseCertificate(credentials.certificate_of("guest"), "guest");
      line = absl::StrCat("certificate ", certificate->fingerprint);
    }
    credentials.folder().Write("refused", absl::StrCat(line, "\n"));
  }));
}

// A list of tokens that lets nobody in; the others of this run have certificates.
absl::StatusOr<Outcome> NoTokens() {
  Credentials credentials;
  Run run({.change = NobodyWaits,
           .server = credentials.Server([&](server::CoordinatorServer::Options& options) {
             options.security.token_file = credentials.tokens();
           })});
  RETURN_IF_ERROR(run.Start());
  Team team(run, [&](const std::string& id) { return credentials.Certificate(run, id); });
  Site guest(run, "guest", credentials.Token(run, "guest"));
  return Judge(Revoke(run, team, guest, [&] { credentials.folder().Write("tokens", "nobody\n"); }));
}

// A revocation list that comes while the run goes on: the connection that is open lasts as long as
// connections may, and the next one is refused.
absl::StatusOr<Outcome> RevocationList() {
  Credentials credentials;
  const std::string lists = credentials.folder().path("lists");
  std::filesystem::create_directory(lists);
  Run run({.server = credentials.Server([&](server::CoordinatorServer::Options& options) {
    options.security.crl_folder = lists;
    options.connections.age = absl::Seconds(4);
    options.connections.grace = absl::Seconds(1);
  })});
  RETURN_IF_ERROR(run.Start());
  Site guest(run, "guest", credentials.Certificate(run, "guest"));
  Site other(run, "other", credentials.Certificate(run, "other"));
  RETURN_IF_ERROR(guest.Join());
  RETURN_IF_ERROR(other.Join());
  const std::string revoked[] = {credentials.certificate_of("guest")};
  credentials.folder().Write(absl::StrCat("lists/", credentials.authority().RevocationListName()),
                             credentials.authority().RevocationList(revoked));
  const absl::Time began = absl::Now();
  const bool ended = guest.AwaitEnd(kPatience);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
  const bool back = guest.Return().ok();
  const bool other_back = other.Return().ok();
  return Outcome{
      .held = ended && !back && other_back,
      .what = absl::StrCat("the connection of 4 s ", ended ? "ended" : "goes on", " after ",
                           static_cast<int>(seconds * 10) / 10.0, " s, a new one is ",
                           back ? "taken" : "refused", "; who is not on the list is ",
                           other_back ? "taken" : "refused")};
}

}  // namespace

std::vector<Scenario> AccessScenarios() {
  return {
      {"refused_identity", "a member is named in --refused_identities, its connection stays open",
       [] { return RefusedIdentity(/*by_certificate=*/false); }},
      {"refused_certificate", "its certificate is, by the SHA-256",
       [] { return RefusedIdentity(/*by_certificate=*/true); }},
      {"no_tokens", "the list of tokens becomes \"nobody\", a member's connection stays open",
       NoTokens},
      {"revocation_list", "a certificate comes on an authority's revocation list", RevocationList},
  };
}

}  // namespace causeway::hostile
