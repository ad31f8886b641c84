#include "tests/security/hostile_client/credentials.h"

#include "absl/strings/str_cat.h"

namespace causeway::hostile {

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

}  // namespace causeway::hostile
