#include "tests/security/hostile_client/team.h"

#include "absl/strings/str_join.h"

namespace causeway::hostile {

Team::Team(Run& run, const std::function<ChannelSecurity(const std::string&)>& security)
    : run_(run), security_(security) {
  for (int i = 1; i <= kHonest; ++i) {
    const std::string id = absl::StrCat("honest-", i);
    sites_.push_back(
        std::make_unique<Site>(run_, id, security_ ? security_(id) : ChannelSecurity::Plaintext()));
  }
}

absl::Status Team::Enter() {
  for (const auto& site : sites_) {
    RETURN_IF_ERROR(site->AwaitConnection());
    RETURN_IF_ERROR(site->Enter());
  }
  return absl::OkStatus();
}

absl::Status Team::Push(int64_t round) {
  for (const auto& site : sites_) RETURN_IF_ERROR(site->Deliver(site->MakePush(round)));
  return absl::OkStatus();
}

absl::Status Team::Merge(int64_t round) {
  for (const auto& site : sites_) {
    RETURN_IF_ERROR(site->Merge(round));
    RETURN_IF_ERROR(site->Heartbeat(round * kInterval, round * site->honest_tokens(), 1.0));
  }
  return absl::OkStatus();
}

absl::Status Team::DoRound(int64_t round) {
  RETURN_IF_ERROR(Annotate(Push(round), absl::StrCat("an honest push to round ", round)));
  return Annotate(Merge(round), absl::StrCat("an honest pull of round ", round));
}

absl::Status Team::Return() {
  for (int i = 0; i < kHonest; ++i) {
    RETURN_IF_ERROR(sites_[static_cast<size_t>(i)]->Return());
  }
  return absl::OkStatus();
}

absl::Status Stage::Begin(int64_t liar_step) {
  RETURN_IF_ERROR(run.Start());
  team.emplace(run);
  liar.emplace(run, "liar");
  RETURN_IF_ERROR(team->Enter());
  return liar_step < 0 ? absl::OkStatus() : liar->Enter(liar_step);
}

Credentials::Credentials() { folder_.Write("tokens", "nobody\n"); }

std::function<void(server::CoordinatorServer::Options&)> Credentials::Server(
    std::function<void(server::CoordinatorServer::Options&)> change) {
  return [this, change = std::move(change)](server::CoordinatorServer::Options& options) {
    options.security = folder_.WriteSet("server", authority_.pem(), IssueServer(authority_));
    if (change) change(options);
  };
}

ChannelSecurity Credentials::Certificate(const Run& run, const std::string& id,
                                         absl::Duration life) {
  CertificateRequest request{.common_name = id,
                             .names = absl::StrCat("URI:causeway://*/worker/", id)};
  request.not_after = absl::Now() + life;
  const PemPair pair = authority_.Issue(request);
  issued_[id] = pair.certificate;
  const SecurityOptions options =
      folder_.WriteSet(absl::StrCat("client-", ++sets_), authority_.pem(), pair);
  absl::StatusOr<ChannelSecurity> security =
      MakeChannelSecurity(options, run.address(), absl::Now());
  return security.ok() ? *std::move(security) : ChannelSecurity::Plaintext();
}

ChannelSecurity Credentials::Token(const Run& run, const std::string& id) {
  const std::string token = absl::StrCat(id, std::string(40, 'x'));
  absl::StrAppend(&token_list_, TokenLine(token, absl::StrCat("worker ", id)));
  folder_.Write("tokens", token_list_);
  SecurityOptions options;
  options.ca_file = folder_.Write("token.ca", authority_.pem());
  options.token_file = folder_.Write(absl::StrCat("token-", ++sets_), token);
  absl::StatusOr<ChannelSecurity> security =
      MakeChannelSecurity(options, run.address(), absl::Now());
  return security.ok() ? *std::move(security) : ChannelSecurity::Plaintext();
}

absl::Status CompareWithAlone(Run& run, const ConfigChange& change, int64_t rounds) {
  Run alone({.change = change});
  RETURN_IF_ERROR(alone.Start());
  Team team(alone);
  RETURN_IF_ERROR(team.Enter());
  for (int64_t round = 1; round <= rounds; ++round) {
    RETURN_IF_ERROR(Annotate(team.DoRound(round), "the honest run alone"));
  }
  const bool same =
      run.coordinator().PublishedParameters() == alone.coordinator().PublishedParameters();
  run.Kill();
  alone.Kill();
  if (same) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<v1::Round> attacked, run.Rounds());
  ASSIGN_OR_RETURN(const std::vector<v1::Round> honest, alone.Rounds());
  for (size_t i = 0; i < std::min(attacked.size(), honest.size()); ++i) {
    if (attacked[i].published_hash() == honest[i].published_hash()) continue;
    return absl::InternalError(absl::StrCat(
        "other bits from round ", attacked[i].round(), " on, of ",
        absl::StrJoin(attacked[i].contributors(), ", "), " (", attacked[i].reason(), ")"));
  }
  return absl::InternalError(
      absl::StrCat("other bits: ", attacked.size(), " rounds in place of ", honest.size()));
}

}  // namespace causeway::hostile
