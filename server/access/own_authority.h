// A coordinator's own authority, and the invitations by which members get its certificates.
//
// In a folder of the run directory, for the coordinator's user alone:
//
//   ca.pem, ca.key        the authority (or an intermediate one, and those above it)
//   cert.pem, key.pem     the coordinator's own, made anew at every start
//   invitations.binpb     InvitationList (record.proto), until the run has begun
//
// Once the run has begun, the invitations are part of its record, and so of its copies. The
// authority's key is not: coordinators that take over from each other are given the same one.
//
// The secret of an invitation is nowhere: the certificate that is made of it is. While it is open,
// connections that show it are trusted as far as Enroll. Whoever can read ca.key can make himself
// anybody.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/enrollment.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/identity/authority.h"
#include "common/identity/identity.h"
#include "common/rpc/security.h"
#include "common/telemetry/event_log.h"

namespace causeway::server {

// How long a member's certificate lasts. Members renew theirs after two thirds of it.
inline constexpr absl::Duration kMemberLife = absl::Hours(24 * 30);

// Thread-safe.
class OwnAuthority {
 public:
  struct Options {
    std::string folder;
    // Where ca.pem and ca.key are, if somebody has given them; empty: in `folder`.
    std::string given = {};
    std::string run_name;
    // The run's record has invitations, which count: a list in `folder` may be damaged.
    bool is_recorded = false;
    FileSystem* file_system = FileSystem::Real();  // It, the clock and the log outlive the object.
    const Clock* clock = Clock::Real();
    EventLog* events = NullEventLog();
  };
  // Makes the authority if the folder has neither ca.pem nor ca.key, and the coordinator's
  // certificate. FAILED_PRECONDITION: one of the two is missing, they do not fit together, the
  // authority has ended, or others can read the key. DATA_LOSS: the list that counts is damaged.
  // Errors of the disk.
  static absl::StatusOr<std::unique_ptr<OwnAuthority>> Open(Options options);

  // The run has begun: its record has the list from now on. `known`: as the record has it, which
  // counts unless it is empty. `keep` makes one durable before it returns, or returns why not.
  using Keeper = std::function<absl::Status(const v1::InvitationList& list)>;
  void UseRecord(const v1::InvitationList& known, Keeper keep);
  // Moves what the file has into the record, if there is one. Takes as long as keeping does.
  void MoveToRecord();

  // The files of the folder, for the server's credentials, and how the authority is replaced: the
  // coordinator's certificate ends with it.
  SecurityOptions Files() const;
  // Certificates of open invitations, PEM: trusted beside those of the authority.
  std::string Invited();
  // An operator's certificate with its key in `folder`, for who has this machine's user: as good as
  // the authority's key, which lies beside it, and as long.
  absl::Status WriteOperator(const std::string& folder, const std::string& address);

  // The calls of enrollment.proto, with its errors; `by`, `at`: who asks and where, for people.
  // Invite leaves the addresses to the caller.
  absl::StatusOr<v1::InviteResponse> Invite(const v1::InviteRequest& request, std::string by);
  v1::ListInvitationsResponse List();
  absl::Status Revoke(const std::string& name, const std::string& by);
  // `fingerprint`: of the invitation's certificate that was shown.
  absl::StatusOr<v1::EnrollResponse> Enroll(const std::string& fingerprint,
                                            const v1::EnrollRequest& request, std::string at);
  // `expires`: when what was shown ends. The new one ends no sooner.
  absl::StatusOr<v1::EnrollResponse> Renew(const Identity& identity, absl::Time expires,
                                           const v1::EnrollRequest& request);

 private:
  OwnAuthority(Options options, KeyedCertificate authority, std::string pin,
               v1::InvitationList list, bool in_file)
      : options_(std::move(options)),
        authority_(std::move(authority)),
        pin_(std::move(pin)),
        list_(std::move(list)),
        in_file_(in_file) {}
  std::string Path(absl::string_view name) const { return JoinPath(options_.folder, name); }
  std::string AuthorityFile() const;
  absl::Status WriteOwnCertificate();
  // Until `end`, if the authority lasts as long.
  absl::StatusOr<v1::EnrollResponse> Sign(const Identity& identity, absl::Time end,
                                          const v1::EnrollRequest& request);
  // Makes the list durable, and then that of the object.
  absl::Status Keep(v1::InvitationList list) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const KeyedCertificate authority_;
  const std::string pin_;
  absl::Mutex mutex_;
  v1::InvitationList list_ ABSL_GUARDED_BY(mutex_);
  bool in_file_ ABSL_GUARDED_BY(mutex_);
  Keeper keep_ ABSL_GUARDED_BY(mutex_);  // Null: the file has the list.
  // When another key with a used line is told of again, by the fingerprint.
  std::map<std::string, absl::Time> say_again_ ABSL_GUARDED_BY(mutex_);
};

// An operator's certificate of the authority that is given by `options`, with its key, for a
// coordinator that follows another one of the same authority. Errors of OwnAuthority::Open.
absl::StatusOr<KeyedCertificate> MakeOperator(const OwnAuthority::Options& options,
                                              const std::string& name);

}  // namespace causeway::server
