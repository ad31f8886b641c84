// The PEM files of one side while their owner replaces them.
//
// cp and scp empty a file before they write it, and of two files that belong together one changes
// before the other. So a changed set counts once its files have been as they are for a moment, can
// be read whole, and fit together; until then the one before it does. So it does while they are
// somebody else's: who takes part in a run under a name keeps it.
#pragma once

#include <grpcpp/security/tls_certificate_provider.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/identity/certificate.h"

namespace causeway {

struct CertificatePaths {
  std::string ca;         // Empty: there are no peers with certificates.
  std::string cert, key;  // Both or none.
};

// What the files said when they were whole.
struct CertificateSet {
  std::string authorities;  // PEM text; empty without `ca`.
  std::optional<OwnCertificate> own;
};

// News of the files, for the log.
struct CertificateNotice {
  bool fit =
      false;  // A set counts from now on; else its files are not fit, and the one before does.
  std::string message;
};
using CertificateReport = std::function<void(const CertificateNotice&)>;

// Not thread-safe.
class CertificateWatch {
 public:
  // For so long a changed file must be as it is before it is read.
  static constexpr absl::Duration kSettles = absl::Seconds(1);
  // For so long after another set has come to count, a peer may know one and not the other.
  static constexpr absl::Duration kMayStillPass = absl::Minutes(1);

  // Reads and checks the files: the errors of certificate.h, as PassesIfJustWritten says. Looks at
  // them again every `interval`. `now` is that of the check; the clock outlives the object.
  static absl::StatusOr<CertificateWatch> Open(CertificatePaths paths, CertificateUse use,
                                               absl::Duration interval, absl::Time now,
                                               const Clock& clock = *Clock::Real());

  const CertificateSet& set() const { return set_; }
  // Counts how often another set has come to count.
  int64_t generation() const { return generation_; }
  // Whether the files say something else by now than the set that counts, or have come to count
  // less than a minute ago.
  bool IsChanging() const;
  // Looks at the files if that is due. What there is to say is said once for a change.
  std::optional<CertificateNotice> Look();

 private:
  using Versions = std::array<FileVersion, 3>;
  CertificateWatch(CertificatePaths paths, CertificateUse use, absl::Duration interval,
                   const Clock& clock)
      : paths_(std::move(paths)), use_(use), interval_(interval), clock_(&clock) {}
  Versions VersionsNow() const;
  absl::StatusOr<CertificateSet> Read(absl::Time now) const;
  absl::Status CheckName(const CertificateSet& set) const;
  CertificateNotice Take(CertificateSet set);

  CertificatePaths paths_;
  CertificateUse use_;
  absl::Duration interval_;
  const Clock* clock_;
  absl::Duration next_look_;
  Versions counts_;    // Of the set that counts.
  Versions seen_;      // At the last look.
  Versions reported_;  // Of the files that were last said to be unfit; else as `counts_`.
  CertificateSet set_;
  absl::Duration taken_ = -absl::InfiniteDuration();  // When it was, unless it was the first one.
  int64_t generation_ = 0;
};

// What a server shows and trusts, handed to gRPC as files in memory: gRPC looks at files only, and
// ends the process at an empty one, so it gets none that was not checked.

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

// A token in a file that its owner replaces while it is used.
//
// While the file is away, or may be half written, the token before counts. It does, too, once the
// peer has refused a new one: a file that holds another site's token for a moment ends nobody.

// Thread-safe.
class TokenFile {
 public:
  // The errors of ReadTrustedFile and CheckToken, as PassesIfJustWritten says. The clock outlives
  // the object.
  static absl::StatusOr<std::shared_ptr<TokenFile>> Open(std::string file,
                                                         const Clock& clock = *Clock::Real());

  const std::string& file() const { return file_; }
  // The token to show now. Looks at the file.
  std::string Now();
  // The peer refused the token. True if another try may be let in: the file is being replaced, or
  // has been since this object was made. Of its token and the one before, the other one is shown
  // from now on. False once both have been refused for CertificateWatch::kMayStillPass.
  bool MayPass(const absl::Status& refusal);
  // Who is told, one call at a time, of tokens that come to count and of a file that is not fit.
  void ReportTo(CertificateReport report);

 private:
  TokenFile(std::string file, const Clock& clock) : file_(std::move(file)), clock_(clock) {}
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Say(bool fit, std::string message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string file_;
  const Clock& clock_;
  absl::Mutex mutex_;
  std::string token_ ABSL_GUARDED_BY(mutex_);   // The file's, as it was fit last.
  std::string former_ ABSL_GUARDED_BY(mutex_);  // The one before it; empty: there is none.
  bool shows_former_ ABSL_GUARDED_BY(mutex_) = false;
  FileVersion read_ ABSL_GUARDED_BY(mutex_);      // That of the token.
  FileVersion seen_ ABSL_GUARDED_BY(mutex_);      // At the last look.
  FileVersion reported_ ABSL_GUARDED_BY(mutex_);  // Of which was said that it is not fit.
  absl::Duration changed_ ABSL_GUARDED_BY(mutex_);
  // Of refusals that follow each other.
  absl::Duration first_refused_ ABSL_GUARDED_BY(mutex_);
  absl::Duration last_refused_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();
  CertificateReport report_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway
