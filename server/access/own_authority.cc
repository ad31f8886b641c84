#include "server/access/own_authority.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/identity/invitation.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

constexpr char kAuthorityFile[] = "ca.pem";
constexpr char kAuthorityKey[] = "ca.key";
constexpr char kOwnFile[] = "cert.pem";
constexpr char kOwnKey[] = "key.pem";
constexpr char kListFile[] = "invitations.binpb";
constexpr int kMostOpen = 256;
constexpr int kMostKept = 512;
constexpr int64_t kLeastSeconds = 60;
constexpr absl::Duration kRefusedAgain = absl::Minutes(1);
constexpr int64_t kMostSeconds = 30 * 24 * 3600;
// For clocks that lag.
constexpr absl::Duration kBegun = absl::Hours(24);

std::string TimeText(int64_t unix_ms) { return UtcMinute(absl::FromUnixMillis(unix_ms)); }

bool IsOpen(const v1::Invitation& invitation, int64_t now_ms) {
  return invitation.used_unix_ms() == 0 && invitation.revoked_unix_ms() == 0 &&
         invitation.expires_unix_ms() > now_ms;
}

// Its certificate lets nobody in any more, whoever shows it.
bool IsOver(const v1::Invitation& invitation, int64_t now_ms) {
  return invitation.revoked_unix_ms() != 0 || invitation.expires_unix_ms() <= now_ms;
}

// FAILED_PRECONDITION with what follows from it, where `given` says whose it is.
absl::Status CheckNotOver(const std::string& pem, const std::string& file, bool given,
                          absl::Time now) {
  ASSIGN_OR_RETURN(const Certificate authority, ParseCertificate(pem, file));
  if (now <= authority.not_after) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the authority ", file, " ended at ", UtcMinute(authority.not_after),
      ", and all that it has signed with it: ",
      given
          ? "put a new one there, ca.pem and ca.key"
          : absl::StrCat("move ", ParentFolder(file), " away, and the next start makes a new one"),
      "; then everybody needs a new invitation"));
}

absl::StatusOr<KeyedCertificate> ReadAuthority(const OwnAuthority::Options& options,
                                               const std::string& certificate_file,
                                               const std::string& key_file) {
  FileSystem& files = *options.file_system;
  const bool has_certificate = files.Exists(certificate_file);
  const bool has_key = files.Exists(key_file);
  if (has_certificate != has_key) {
    return absl::FailedPreconditionError(absl::StrCat(
        "of the authority there is ", has_key ? key_file : certificate_file, " and not ",
        has_key ? certificate_file : key_file,
        ": put both there, or neither, and a new authority is made, which nobody knows yet"));
  }
  if (!has_key && !options.given.empty()) {
    return absl::NotFoundError(
        absl::StrCat("--authority: there is neither ", certificate_file, " nor ", key_file));
  }
  if (!has_key) {
    ASSIGN_OR_RETURN(KeyedCertificate made, MakeAuthority(options.run_name, options.clock->Now()));
    RETURN_IF_ERROR(WritePrivateFile(files, key_file, made.key));
    RETURN_IF_ERROR(WriteFileAtomically(files, certificate_file, made.certificate));
    return made;
  }
  KeyedCertificate read;
  ASSIGN_OR_RETURN(read.certificate, ReadTrustedFile(certificate_file, /*secret=*/false));
  RETURN_IF_ERROR(CheckNotOver(read.certificate, certificate_file, !options.given.empty(),
                               options.clock->Now()));
  RETURN_IF_ERROR(ReadAuthorities(certificate_file, options.clock->Now()).status());
  ASSIGN_OR_RETURN(read.key, ReadTrustedFile(key_file, /*secret=*/true));
  return read;
}

absl::StatusOr<v1::InvitationList> ReadList(FileSystem& files, const std::string& path) {
  v1::InvitationList list;
  if (!files.Exists(path)) return list;
  ASSIGN_OR_RETURN(const std::string text, files.ReadFile(path));
  // None is ever written without an invitation.
  if (list.ParseFromString(text) && list.invitations_size() > 0) return list;
  return absl::DataLossError(
      absl::StrCat(path, text.empty() ? " is empty" : " is damaged",
                   ": remove it; who was invited and has not come must be invited again"));
}

// With a new key, as long as the authority, whose certificate is in `file`.
absl::StatusOr<KeyedCertificate> SignOperator(const KeyedCertificate& authority,
                                              const std::string& file, const std::string& run_name,
                                              const std::string& name, absl::Time now) {
  ASSIGN_OR_RETURN(const Certificate signer, ParseCertificate(authority.certificate, file));
  const Identity identity{.run = run_name, .role = Role::kOperator, .name = name};
  KeyedCertificate made;
  ASSIGN_OR_RETURN(made.key, MakePrivateKey());
  ASSIGN_OR_RETURN(const std::string request, MakeRequest(made.key, "a new key"));
  ASSIGN_OR_RETURN(
      made.certificate,
      SignRequest(authority, request, IssueTo(identity, now - kBegun, signer.not_after)));
  return made;
}

}  // namespace

absl::StatusOr<KeyedCertificate> MakeOperator(const OwnAuthority::Options& options,
                                              const std::string& name) {
  const std::string certificate_file = JoinPath(options.given, kAuthorityFile);
  ASSIGN_OR_RETURN(
      const KeyedCertificate authority,
      ReadAuthority(options, certificate_file, JoinPath(options.given, kAuthorityKey)));
  return SignOperator(authority, certificate_file, options.run_name, name, options.clock->Now());
}

absl::StatusOr<std::unique_ptr<OwnAuthority>> OwnAuthority::Open(Options options) {
  FileSystem& files = *options.file_system;
  RETURN_IF_ERROR(CreatePrivateFolder(files, options.folder));
  const std::string& where = options.given.empty() ? options.folder : options.given;
  const std::string certificate_file = JoinPath(where, kAuthorityFile);
  ASSIGN_OR_RETURN(KeyedCertificate authority,
                   ReadAuthority(options, certificate_file, JoinPath(where, kAuthorityKey)));
  ASSIGN_OR_RETURN(const std::string root,
                   LastCertificate(authority.certificate, certificate_file));
  ASSIGN_OR_RETURN(const Certificate pinned, ParseCertificate(root, certificate_file));
  const std::string list_file = JoinPath(options.folder, kListFile);
  absl::StatusOr<v1::InvitationList> list = ReadList(files, list_file);
  if (!list.ok()) {
    if (!options.is_recorded) return list.status();
    Log().warn("{} cannot be read, and is passed over: the run's record has the invitations",
               list_file);
    list.emplace();
  }
  const bool in_file = files.Exists(list_file);
  std::unique_ptr<OwnAuthority> result(new OwnAuthority(
      std::move(options), std::move(authority), pinned.fingerprint, *std::move(list), in_file));
  RETURN_IF_ERROR(result->WriteOwnCertificate());
  return result;
}

absl::Status OwnAuthority::WriteOwnCertificate() {
  const absl::Time now = options_.clock->Now();
  ASSIGN_OR_RETURN(const absl::Time end, EndOfCertificate(AuthorityFile()));
  Issue issue{.use = CertificateUse::kServer,
              .common_name = "coordinator",
              .names = {absl::StrCat("DNS:", kCoordinatorName), "DNS:localhost", "IP:127.0.0.1"},
              .begin = now - kBegun,
              .end = end};
  ASSIGN_OR_RETURN(const std::string key, MakePrivateKey());
  ASSIGN_OR_RETURN(const std::string request, MakeRequest(key, Path(kOwnKey)));
  ASSIGN_OR_RETURN(const std::string certificate, SignRequest(authority_, request, issue));
  RETURN_IF_ERROR(WritePrivateFile(*options_.file_system, Path(kOwnKey), key));
  RETURN_IF_ERROR(WriteFileAtomically(*options_.file_system, Path(kOwnFile), certificate));
  return Annotate(CheckSigned(Path(kOwnFile), AuthorityFile(), CertificateUse::kServer, now),
                  absl::StrCat(kAuthorityKey, " is not the key of ", AuthorityFile()));
}

std::string OwnAuthority::AuthorityFile() const {
  return JoinPath(options_.given.empty() ? options_.folder : options_.given, kAuthorityFile);
}

SecurityOptions OwnAuthority::Files() const {
  SecurityOptions files;
  files.ca_file = AuthorityFile();
  files.cert_file = Path(kOwnFile);
  files.key_file = Path(kOwnKey);
  files.renewal = absl::StrCat(
      "the authority ends with it; ",
      options_.given.empty() ? absl::StrCat("move ", options_.folder,
                                            " away and start again, which makes a new one, and ")
                             : absl::StrCat("put a new ca.pem and ca.key into ", options_.given,
                                            " and start again; under another root "),
      "everybody needs a new invitation");
  return files;
}

std::string OwnAuthority::Invited() {
  const int64_t now_ms = absl::ToUnixMillis(options_.clock->Now());
  absl::MutexLock lock(&mutex_);
  std::string certificates;
  for (const v1::Invitation& invitation : list_.invitations()) {
    if (!IsOver(invitation, now_ms)) absl::StrAppend(&certificates, invitation.certificate());
  }
  return certificates;
}

absl::Status OwnAuthority::WriteOperator(const std::string& folder, const std::string& address) {
  FileSystem& files = *options_.file_system;
  RETURN_IF_ERROR(CreatePrivateFolder(files, folder));
  const IdentityFiles paths(folder);
  ASSIGN_OR_RETURN(
      const KeyedCertificate made,
      SignOperator(authority_, AuthorityFile(), options_.run_name, "local", options_.clock->Now()));
  RETURN_IF_ERROR(WritePrivateFile(files, paths.key, made.key));
  RETURN_IF_ERROR(WriteFileAtomically(files, paths.certificate, made.certificate));
  RETURN_IF_ERROR(WriteFileAtomically(files, paths.authority, authority_.certificate));
  return WriteFileAtomically(files, paths.coordinator, absl::StrCat(address, "\n"));
}

absl::StatusOr<v1::InviteResponse> OwnAuthority::Invite(const v1::InviteRequest& request,
                                                        std::string by) {
  RETURN_IF_ERROR(CheckName("the name to invite", request.name()));
  ASSIGN_OR_RETURN(const Role role, ParseRole(request.role()));
  if (role == Role::kInvited) {
    return absl::InvalidArgumentError("a role is worker, region, operator or observer");
  }
  if (request.seconds() < kLeastSeconds || request.seconds() > kMostSeconds) {
    return absl::InvalidArgumentError(
        absl::StrCat("an invitation is good for 1 minute to 30 days (--expires); got ",
                     request.seconds(), " s"));
  }
  ASSIGN_OR_RETURN(const std::string alone,
                   CheckInvitationCertificate(request.certificate(), request.name()));
  ASSIGN_OR_RETURN(const Certificate shown, ParseCertificate(alone, "the invitation"));
  const int64_t now_ms = absl::ToUnixMillis(options_.clock->Now());
  v1::InviteResponse response;
  v1::Invitation& made = *response.mutable_invitation();
  made.set_name(request.name());
  made.set_role(request.role());
  made.set_created_unix_ms(now_ms);
  made.set_expires_unix_ms(now_ms + request.seconds() * 1000);
  made.set_invited_by(by);
  made.set_certificate_sha256(shown.fingerprint);
  {
    absl::MutexLock lock(&mutex_);
    v1::InvitationList list;
    int open = 0;
    for (v1::Invitation old : list_.invitations()) {
      if (IsOpen(old, now_ms) && old.name() == made.name()) old.set_revoked_unix_ms(now_ms);
      if (IsOver(old, now_ms)) old.clear_certificate();
      open += IsOpen(old, now_ms);
      *list.add_invitations() = std::move(old);
    }
    if (open >= kMostOpen) {
      return absl::ResourceExhaustedError(absl::StrCat(
          open, " invitations are open: wait until some are used or over, or revoke one"));
    }
    for (int i = 0; list.invitations_size() >= kMostKept && i < list.invitations_size();) {
      if (IsOver(list.invitations(i), now_ms)) {
        list.mutable_invitations()->DeleteSubrange(i, 1);
      } else {
        ++i;
      }
    }
    *list.add_invitations() = made;
    list.mutable_invitations()->rbegin()->set_certificate(alone);
    RETURN_IF_ERROR(Keep(std::move(list)));
  }
  response.set_run_name(options_.run_name);
  response.set_authority_sha256(pin_);
  options_.events->Record("invitation_made",
                          absl::StrCat(by, " has invited ", made.role(), " ", made.name(),
                                       " until ", TimeText(made.expires_unix_ms())),
                          {{"name", made.name()},
                           {"role", made.role()},
                           {"by", by},
                           {"until_unix_ms", made.expires_unix_ms()}});
  return response;
}

v1::ListInvitationsResponse OwnAuthority::List() {
  v1::ListInvitationsResponse response;
  absl::MutexLock lock(&mutex_);
  for (v1::Invitation invitation : list_.invitations()) {
    invitation.clear_certificate();
    *response.add_invitations() = std::move(invitation);
  }
  return response;
}

absl::Status OwnAuthority::Revoke(const std::string& name, const std::string& by) {
  const int64_t now_ms = absl::ToUnixMillis(options_.clock->Now());
  {
    absl::MutexLock lock(&mutex_);
    v1::InvitationList list = list_;
    const v1::Invitation* last = nullptr;
    bool revoked = false;
    for (v1::Invitation& invitation : *list.mutable_invitations()) {
      if (invitation.name() != name) continue;
      last = &invitation;
      if (!IsOpen(invitation, now_ms)) continue;
      invitation.set_revoked_unix_ms(now_ms);
      invitation.clear_certificate();
      revoked = true;
    }
    if (!revoked && last != nullptr && last->used_unix_ms() != 0) {
      return absl::NotFoundError(absl::StrCat("the invitation of ", name, " was used at ",
                                              TimeText(last->used_unix_ms()),
                                              ": to keep its holder out, put \"", last->role(), " ",
                                              name, "\" into the file of --refused_identities"));
    }
    if (!revoked) {
      return absl::NotFoundError(absl::StrCat("no invitation of ", name,
                                              " is open: `causewayctl invitations` lists them"));
    }
    RETURN_IF_ERROR(Keep(std::move(list)));
  }
  options_.events->Record("invitation_revoked",
                          absl::StrCat(by, " has revoked the invitation of ", name),
                          {{"name", name}, {"by", by}});
  return absl::OkStatus();
}

absl::StatusOr<v1::EnrollResponse> OwnAuthority::Enroll(const std::string& fingerprint,
                                                        const v1::EnrollRequest& request,
                                                        std::string at) {
  ASSIGN_OR_RETURN(const std::string key, KeyOfRequest(request.certificate_request()));
  const int64_t now_ms = absl::ToUnixMillis(options_.clock->Now());
  Identity identity{.run = options_.run_name, .role = Role::kInvited, .name = {}};
  bool is_first = false;
  {
    absl::MutexLock lock(&mutex_);
    v1::InvitationList list = list_;
    v1::Invitation* found = nullptr;
    for (v1::Invitation& invitation : *list.mutable_invitations()) {
      if (invitation.certificate_sha256() == fingerprint) found = &invitation;
    }
    if (found == nullptr) {
      return absl::PermissionDeniedError(
          "this coordinator knows no such invitation: ask for a new line");
    }
    if (found->revoked_unix_ms() != 0) {
      return absl::PermissionDeniedError(
          absl::StrCat("the invitation of ", found->name(), " was revoked at ",
                       TimeText(found->revoked_unix_ms()), ": ask for a new line"));
    }
    if (found->expires_unix_ms() <= now_ms) {
      return absl::PermissionDeniedError(
          absl::StrCat("the invitation of ", found->name(), " was good until ",
                       TimeText(found->expires_unix_ms()), ": ask for a new line"));
    }
    if (found->used_unix_ms() != 0 && found->key_sha256() != key) {
      const std::string refusal = absl::StrCat(
          "the invitation of ", found->name(), " was used at ", TimeText(found->used_unix_ms()),
          " from ", found->used_at(), ", with another key: a line counts once");
      if (const absl::Time now = options_.clock->Now(); now >= say_again_[fingerprint]) {
        say_again_[fingerprint] = now + kRefusedAgain;
        options_.events->Record("invitation_refused",
                                absl::StrCat(refusal, "; now it came from ", at),
                                {{"name", found->name()}, {"peer", at}});
      }
      return absl::PermissionDeniedError(absl::StrCat(
          refusal,
          "; if that was not this machine, tell who has invited it, else ask for a new one"));
    }
    const auto& roles = request.roles();
    if (!roles.empty() && std::count(roles.begin(), roles.end(), found->role()) == 0) {
      return absl::PermissionDeniedError(
          absl::StrCat("the invitation is for ", found->role(), " ", found->name(),
                       "; who may be here: ", absl::StrJoin(roles, ", "),
                       ". Ask for one with --role=", roles[0], "; this one is unused"));
    }
    ASSIGN_OR_RETURN(identity.role, ParseRole(found->role()));
    identity.name = found->name();
    is_first = found->used_unix_ms() == 0;
    if (is_first) {
      found->set_used_unix_ms(now_ms);
      found->set_used_at(at);
      found->set_key_sha256(key);
      RETURN_IF_ERROR(Keep(std::move(list)));
    }
  }
  if (is_first) {
    options_.events->Record(
        "invitation_used",
        absl::StrCat(RoleAndName(identity), " has used its invitation from ", at),
        {{"name", identity.name}, {"peer", at}});
  }
  return Sign(identity, options_.clock->Now() + kMemberLife, request);
}

absl::StatusOr<v1::EnrollResponse> OwnAuthority::Renew(const Identity& identity, absl::Time expires,
                                                       const v1::EnrollRequest& request) {
  const Identity own{.run = options_.run_name, .role = identity.role, .name = identity.name};
  const absl::Time end = std::max(expires, options_.clock->Now() + kMemberLife);
  ASSIGN_OR_RETURN(const v1::EnrollResponse response, Sign(own, end, request));
  ASSIGN_OR_RETURN(const Certificate made, ParseCertificate(response.certificate(), "it"));
  options_.events->Record("certificate_renewed",
                          absl::StrCat(RoleAndName(own), " has renewed its certificate"),
                          {{"name", own.name}, {"sha256", made.fingerprint}});
  return response;
}

absl::StatusOr<v1::EnrollResponse> OwnAuthority::Sign(const Identity& identity, absl::Time end,
                                                      const v1::EnrollRequest& request) {
  const absl::Time now = options_.clock->Now();
  v1::EnrollResponse response;
  ASSIGN_OR_RETURN(const Certificate signer,
                   ParseCertificate(authority_.certificate, AuthorityFile()));
  ASSIGN_OR_RETURN(*response.mutable_certificate(),
                   SignRequest(authority_, request.certificate_request(),
                               IssueTo(identity, now - kBegun, std::min(end, signer.not_after))));
  response.set_authority(authority_.certificate);
  response.set_run_name(options_.run_name);
  response.set_role(std::string(RoleName(identity.role)));
  response.set_name(identity.name);
  return response;
}

void OwnAuthority::UseRecord(const v1::InvitationList& known, Keeper keep) {
  absl::MutexLock lock(&mutex_);
  if (known.invitations_size() > 0) list_ = known;
  keep_ = std::move(keep);
}

void OwnAuthority::MoveToRecord() {
  absl::MutexLock lock(&mutex_);
  // Where that fails the coordinator stops, and the file is there at its next start.
  if (keep_ != nullptr && in_file_) Keep(list_).IgnoreError();
}

absl::Status OwnAuthority::Keep(v1::InvitationList list) {
  FileSystem& files = *options_.file_system;
  const std::string path = Path(kListFile);
  const absl::Status kept =
      keep_ != nullptr
          ? keep_(list)
          : WriteFileAtomically(files, path, absl::string_view(list.SerializeAsString()));
  // The disk may have room again: UNAVAILABLE, not INTERNAL.
  if (!kept.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the coordinator cannot keep its invitations: ", kept.message()));
  }
  // Once the record has a list, a file that cannot be removed does not count.
  if (keep_ != nullptr && in_file_) files.Remove(path).IgnoreError();
  in_file_ = keep_ == nullptr;
  list_ = std::move(list);
  return absl::OkStatus();
}

}  // namespace causeway::server
