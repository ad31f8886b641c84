#include "common/rpc/security_flags.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/time/time.h"

ABSL_FLAG(std::string, tls_ca, "", "PEM file: who signs the certificates of the peers");
ABSL_FLAG(std::string, tls_cert, "", "PEM file: this process's certificate");
ABSL_FLAG(std::string, tls_key, "", "PEM file: the private key of --tls_cert");
ABSL_FLAG(std::string, token_file, "",
          "worker: the file with its token; coordinator: the file with the hashes of all tokens");
ABSL_FLAG(std::string, tls_crl_dir, "",
          "coordinator: a folder with revocation lists, named by openssl rehash");
ABSL_FLAG(std::string, tls_server_name, "",
          "worker: the name in the coordinator's certificate, if --coordinator has another");
ABSL_FLAG(absl::Duration, tls_refresh, absl::Seconds(10),
          "how often the TLS files are looked at for a change");
ABSL_FLAG(bool, insecure, false, "plaintext without authentication beyond this machine");

namespace causeway {

SecurityOptions SecurityOptionsFromFlags() {
  SecurityOptions options;
  options.ca_file = absl::GetFlag(FLAGS_tls_ca);
  options.cert_file = absl::GetFlag(FLAGS_tls_cert);
  options.key_file = absl::GetFlag(FLAGS_tls_key);
  options.token_file = absl::GetFlag(FLAGS_token_file);
  options.crl_folder = absl::GetFlag(FLAGS_tls_crl_dir);
  options.server_name = absl::GetFlag(FLAGS_tls_server_name);
  options.refresh_interval = absl::GetFlag(FLAGS_tls_refresh);
  options.insecure = absl::GetFlag(FLAGS_insecure);
  return options;
}

}  // namespace causeway
