// Certificates and tokens of a run under attack, and the files that the coordinator reads.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "common/rpc/security.h"
#include "server/service/coordinator_server.h"
#include "tests/security/hostile_client/run.h"
#include "tests/unit/common/rpc/test_authority.h"

namespace causeway::hostile {

// Not thread-safe.
class Credentials {
 public:
  Credentials();

  // With what the coordinator is served: its certificate, the authority, and `change`.
  std::function<void(server::CoordinatorServer::Options&)> Server(
      std::function<void(server::CoordinatorServer::Options&)> change = {});
  // A worker's certificate that ends after so long; or its token, which goes on tokens().
  ChannelSecurity Certificate(const Run& run, const std::string& id,
                              absl::Duration life = absl::Hours(24));
  ChannelSecurity Token(const Run& run, const std::string& id);
  // The PEM text of the last certificate of that id.
  const std::string& certificate_of(const std::string& id) const { return issued_.at(id); }

  const TestAuthority& authority() const { return authority_; }
  const TestFolder& folder() const { return folder_; }
  // The coordinator's list of tokens, once there is one.
  std::string tokens() const { return folder_.path("tokens"); }

 private:
  const TestAuthority authority_;
  const TestFolder folder_;
  std::map<std::string, std::string> issued_;
  std::string token_list_ = "# of a run under attack\n";
  int sets_ = 0;
};

}  // namespace causeway::hostile
