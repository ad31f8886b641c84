// Boarding a run: from the line of an invitation (invitation.h), or from what came of it before, to
// an address and certificates.
//
// The key is made on this machine, and kept with its certificate in the identity folder
// (invitation.h). The same line, or the run's name, finds them there the next time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "common/identity/identity.h"
#include "common/rpc/security.h"

namespace causeway {

struct Boarded {
  std::string folder = {};
  std::string coordinator = {};  // HOST:PORT,...
  Identity identity = {};
  SecurityOptions security = {};  // The folder's files.
};

// `join` is a line, @FILE with one, RUN or RUN/NAME of an identity folder, or such a folder by a
// path that begins with / or a dot. `folder`: in place of the default; empty: the default.
//
// With a line whose folder has nothing yet it exchanges the invitation for a certificate, and tries
// for `patience` while the coordinator does not answer; with a patience of 0 it asks nobody, and
// says what the line does, without certificates. An invitation of another role than `roles` stays
// unused: PERMISSION_DENIED; none: any will do. INVALID_ARGUMENT: the line is not whole.
// NOT_FOUND: nothing is kept under that name. FAILED_PRECONDITION: the coordinator is another one,
// or a certificate has ended. PERMISSION_DENIED, within seconds: the line was used by another
// machine, is over or was revoked. UNAVAILABLE: no answer. CANCELLED: `stop`, which is asked
// between tries, said that nobody waits. All say what to do, and show nothing of the secret.
absl::StatusOr<Boarded> Board(const std::string& join, const std::string& folder,
                              absl::Duration patience, const std::vector<Role>& roles = {},
                              const std::function<bool()>& stop = {});

// Whether `coordinator` is something to board by, and no HOST:PORT.
bool MeansBoarding(absl::string_view coordinator);

// Whether a certificate's last third has begun. One that ends with its signer is renewed once a day
// from then on: the coordinator may have another signer meanwhile, under the same root.
bool IsRenewalDue(const Certificate& certificate, absl::Time now,
                  absl::Time end_of_signer = absl::InfiniteFuture());
// Gets a new certificate for the same key, and puts it into the folder. Waits for `timeout`, and
// for what silent addresses before the coordinator's take.
absl::Status RenewIdentity(const Boarded& boarded, absl::Duration timeout);

// Renews the certificate of a process that runs for long. A thread of its own looks at it at
// intervals, and says in the log when it cannot.
//
// Its end waits for a renewal that is under way, 10 seconds and 5 for each address at most.
class IdentityKeeper {
 public:
  // The clock outlives the object.
  explicit IdentityKeeper(Boarded boarded, const Clock& clock = *Clock::Real(),
                          absl::Duration interval = absl::Minutes(1));

 private:
  void Keep();

  const Boarded boarded_;
  const Clock& clock_;
  absl::Time next_try_ = absl::InfinitePast();
  PeriodicThread thread_;
};

// What --join, --identity and CAUSEWAY_JOIN in the environment say, in place of --coordinator and
// the flags of security.h; null if they say nothing, or `patience` is 0. `id`: of a worker or
// region, filled in if empty; null: any name will do. `patience` and `roles` as for Board.
// INVALID_ARGUMENT if both ways are given, or the id is another one.
absl::StatusOr<std::unique_ptr<IdentityKeeper>> BoardByFlags(absl::Duration patience,
                                                             std::string& coordinator,
                                                             std::string* id,
                                                             SecurityOptions& security,
                                                             const std::vector<Role>& roles = {});

}  // namespace causeway
