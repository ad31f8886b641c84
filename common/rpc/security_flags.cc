#include "common/rpc/security.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/time/time.h"

ABSL_FLAG(std::string, tls_ca, "", "FILE: who signs the certificates of the peers (PEM)");
ABSL_FLAG(std::string, tls_cert, "", "FILE: this process's certificate");
ABSL_FLAG(std::string, tls_key, "", "FILE: its private key");
ABSL_FLAG(std::string, token_file, "",
          "FILE: a token in place of a certificate; a coordinator's: the hashes of all tokens");
ABSL_FLAG(std::string, tls_server_name, "",
          "NAME: the name in the coordinator's certificate, if its address has another");
ABSL_FLAG(absl::Duration, tls_refresh, absl::Seconds(10),
          "how often these files are looked at for a change");
ABSL_FLAG(bool, insecure, false, "plaintext without authentication beyond this machine");

namespace causeway {

SecurityOptions SecurityOptionsFromFlags() {
  SecurityOptions options;
  options.ca_file = absl::GetFlag(FLAGS_tls_ca);
  options.cert_file = absl::GetFlag(FLAGS_tls_cert);
  options.key_file = absl::GetFlag(FLAGS_tls_key);
  options.token_file = absl::GetFlag(FLAGS_token_file);
  options.server_name = absl::GetFlag(FLAGS_tls_server_name);
  options.refresh_interval = absl::GetFlag(FLAGS_tls_refresh);
  options.insecure = absl::GetFlag(FLAGS_insecure);
  return options;
}

}  // namespace causeway
