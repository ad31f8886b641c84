// Reminds of the end of a certificate while a process runs for weeks.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/identity/certificate.h"

namespace causeway {

// Not thread-safe.
class ExpiryWatch {
 public:
  // `cert_file` is empty where there is no certificate. The clock outlives the object. `renewal`:
  // as for ExpiryWarning.
  ExpiryWatch(std::string cert_file, const Clock& clock, std::string renewal = kRenewedByHand)
      : file_(std::move(cert_file)), clock_(clock), renewal_(std::move(renewal)) {}

  // A line for the log, or "": once a day while the certificate is near its end (ExpiryWarning) or
  // cannot be read. Looks at the file once an hour at most, so that it may be called at any rate.
  std::string Poll();

 private:
  const std::string file_;
  const Clock& clock_;
  const std::string renewal_;
  // The process warned when it started, so the first day needs no second warning.
  absl::Duration next_look_ = absl::Hours(1) + clock_.Monotonic();
  absl::Duration next_warning_ = absl::Hours(24) + clock_.Monotonic();
};

// Looks after a folder of revocation lists (--tls_crl_dir), likewise.
//
// A list says until when it counts (nextUpdate). OpenSSL refuses every certificate of its authority
// from then on, whoever is on the list or not, and that is as it should be: nobody knows who was
// revoked since. What it has loaded it never reads again; it takes the next number of the same name
// (HASH.r1 after HASH.r0), and of several the one that counts.

// "5a2f1c3e.r0", as OpenSSL looks for the list of an authority whose name hashes to that.
bool IsRevocationListName(absl::string_view name);

// Not thread-safe.
class RevocationWatch {
 public:
  struct Notice {
    bool ended = false;  // New connections are refused; else they will be, or might be.
    std::string message;
  };

  // `folder` is empty where there are no lists. The clock outlives the object.
  RevocationWatch(std::string folder, const Clock& clock)
      : folder_(std::move(folder)), clock_(clock) {}

  // Notices that are due. A list that has ended: once an hour. A list in its last week, or in the
  // last quarter of a shorter life, and a file that does not count: once a day. Looks at the folder
  // every ten seconds at most.
  std::vector<Notice> Poll();

 private:
  // A file as it was when it was seen first, which is what OpenSSL goes on with.
  struct List {
    bool is_list = false;
    absl::Time begin;
    absl::Time end;  // InfiniteFuture if it does not say.
    FileVersion version;
  };
  static List Read(const std::string& file);
  bool IsDue(const std::string& what, absl::Duration interval);

  const std::string folder_;
  const Clock& clock_;
  absl::Duration next_look_ = -absl::InfiniteDuration();
  std::map<std::string, List> lists_;                // By the file's name.
  std::map<std::string, absl::Duration> next_said_;  // By what is said of which file.
};

}  // namespace causeway
