// What a server shows and trusts, handed to gRPC as files in memory: gRPC looks at files only, and
// ends the process at an empty one, so it gets none that was not checked.
#ifndef CAUSEWAY_COMMON_RPC_SERVED_CERTIFICATES_H_
#define CAUSEWAY_COMMON_RPC_SERVED_CERTIFICATES_H_

#include <grpcpp/security/tls_certificate_provider.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rpc/certificate_watch.h"

namespace causeway {

// A text for a reader that wants the path of a file, such as gRPC: it is replaced as a whole, it is
// on no disk, and it goes with the process.

// Not thread-safe; who reads the path needs no lock.
class ReplacedFile {
 public:
  // INTERNAL where the system has no such files.
  static absl::StatusOr<ReplacedFile> Make(absl::string_view text);

  // For this process alone.
  std::string path() const;
  // Whoever opens the path sees the former text or this one, each with another modification time in
  // seconds. On an error the former text stays.
  absl::Status Replace(absl::string_view text);

 private:
  ReplacedFile() = default;

  // Never closed: readers that outlive the object would find another file by its number.
  int descriptor_ = -1;
  int64_t modified_s_ = 0;
};

// Not thread-safe.
class ServedCertificates {
 public:
  // `files` have a pair of one's own. INTERNAL where the system has no files in memory.
  static absl::StatusOr<std::unique_ptr<ServedCertificates>> Serve(CertificateWatch files);

  // For a server's credentials.
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider() const {
    return provider_;
  }
  // Looks at the files. gRPC shows what has changed within a second or two.
  std::optional<CertificateNotice> Look();
  // Trusts these (PEM) beside the authorities of the files, in place of former ones.
  absl::Status AlsoTrust(std::string certificates);

 private:
  ServedCertificates(CertificateWatch files, ReplacedFile own,
                     std::optional<ReplacedFile> authorities);
  absl::Status Replace();
  absl::Status ReplaceAuthorities();

  CertificateWatch files_;
  int64_t served_ = 0;  // That generation of the files.
  std::string also_trusted_;
  ReplacedFile own_;  // The certificate and its key in one, so that they change together.
  std::optional<ReplacedFile> authorities_;
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_RPC_SERVED_CERTIFICATES_H_
