#include "tests/security/hostile_client/credentials.h"

#include <openssl/sha.h>

#include "absl/strings/escaping.h"

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
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(id.data()), id.size(), hash);
  // As long as a real one, and never to be used elsewhere.
  const std::string token =
      absl::BytesToHexString({reinterpret_cast<const char*>(hash), sizeof(hash)});
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash);
  absl::StrAppend(&token_list_,
                  absl::BytesToHexString({reinterpret_cast<const char*>(hash), sizeof(hash)}),
                  " worker ", id, "\n");
  folder_.Write("tokens", token_list_);
  SecurityOptions options;
  options.ca_file = folder_.Write("token.ca", authority_.pem());
  options.token_file = folder_.Write(absl::StrCat("token-", ++sets_), token);
  absl::StatusOr<ChannelSecurity> security =
      MakeChannelSecurity(options, run.address(), absl::Now());
  return security.ok() ? *std::move(security) : ChannelSecurity::Plaintext();
}

}  // namespace causeway::hostile
