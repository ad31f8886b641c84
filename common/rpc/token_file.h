// A token in a file that its owner replaces while it is used.
//
// While the file is away, or may be half written, the token before counts. It does, too, once the
// peer has refused a new one: a file that holds another site's token for a moment ends nobody.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/rpc/certificate_watch.h"

namespace causeway {

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
