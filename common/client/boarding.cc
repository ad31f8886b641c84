#include "common/client/boarding.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "causeway/v1/enrollment.grpc.pb.h"
#include "common/base/text.h"
#include "common/base/thread_pool.h"
#include "common/client/reach.h"
#include "common/identity/authority.h"
#include "common/identity/invitation.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"

namespace causeway {
namespace {

constexpr absl::Duration kCall = absl::Seconds(10);
// gRPC's for an address that stays silent (channel.cc).
constexpr absl::Duration kEachAddress = absl::Seconds(5);
constexpr absl::Duration kPause = absl::Milliseconds(500);
// By then a coordinator trusts a new invitation: it takes a second or two.
constexpr absl::Duration kTrusted = absl::Seconds(5);
constexpr absl::Duration kTryAgain = absl::Hours(1);
// On a certificate's last day.
constexpr absl::Duration kLate = absl::Hours(24);
constexpr absl::Duration kTryAgainLate = absl::Minutes(5);
// Certificates begin a day before they are made.
constexpr absl::Duration kNew = absl::Hours(48);
constexpr size_t kMostLineBytes = 4096;

// Waits for a moment before the next try.
absl::Status Pause(const std::function<bool()>& stop) {
  if (stop && stop()) return absl::CancelledError("nobody waits to board any more");
  absl::SleepFor(kPause);
  return absl::OkStatus();
}

SecurityOptions SecurityOf(const IdentityFiles& files) {
  SecurityOptions security;
  security.ca_file = files.authority;
  security.cert_file = files.certificate;
  security.key_file = files.key;
  security.server_name = kCoordinatorName;
  security.renewal =
      "a coordinator that answers renews it; once it has ended, board with a new invitation";
  return security;
}

// What the folder holds.
absl::StatusOr<Boarded> ReadFolder(const std::string& folder) {
  FileSystem& disk = *FileSystem::Real();
  const IdentityFiles files(folder);
  Boarded boarded;
  boarded.folder = folder;
  boarded.security = SecurityOf(files);
  ASSIGN_OR_RETURN(const std::string address, disk.ReadFile(files.coordinator));
  boarded.coordinator =
      std::string(absl::StripAsciiWhitespace(address.substr(0, address.find('\n'))));
  const absl::Status known = SplitAddresses(boarded.coordinator).status();
  const absl::StatusOr<Certificate> read = ReadCertificate(files.certificate);
  if (!known.ok() || !read.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(known.ok() ? read.status().message()
                                : absl::StrCat(files.coordinator, ": ", known.message()),
                     "; remove ", folder, ", and board with a new invitation"));
  }
  const Certificate& certificate = *read;
  if (!certificate.identity.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(files.certificate,
                                                      " names no member: remove ", folder,
                                                      ", and board with a new invitation"));
  }
  boarded.identity = *certificate.identity;
  if (absl::Now() >= certificate.not_after) {
    return absl::FailedPreconditionError(absl::StrCat(
        files.certificate, " ended at ",
        absl::FormatTime(absl::RFC3339_sec, certificate.not_after, absl::UTCTimeZone()),
        ", while nobody renewed it: board with a new invitation (causewayctl invite ",
        boarded.identity.name, ")"));
  }
  return boarded;
}

// The name in a run's folder that has one, or one of these roles.
absl::StatusOr<std::string> OnlyNameIn(const std::string& run_folder, const std::string& run,
                                       const std::vector<Role>& roles) {
  const auto certificate_of = [&](const std::string& name) {
    return IdentityFiles(JoinPath(run_folder, name)).certificate;
  };
  const auto unfit = [&](const std::string& name) {
    const absl::StatusOr<Certificate> own = ReadCertificate(certificate_of(name));
    return !own.ok() || !own->identity.has_value() ||
           std::ranges::count(roles, own->identity->role) == 0;
  };
  absl::StatusOr<std::vector<std::string>> names = FileSystem::Real()->List(run_folder);
  if (names.ok()) {
    std::erase_if(*names, [&](const std::string& name) {
      return !FileSystem::Real()->Exists(certificate_of(name));
    });
    if (names->size() > 1 && !std::ranges::all_of(*names, unfit)) std::erase_if(*names, unfit);
  }
  if (!names.ok() || names->empty()) {
    return absl::NotFoundError(
        absl::StrCat("nothing is kept of a run ", run, " in ", run_folder,
                     ": the first time --join takes the line of `causewayctl invite`"));
  }
  if (names->size() == 1) return JoinPath(run_folder, names->front());
  return absl::InvalidArgumentError(absl::StrCat("this machine has several names in the run ", run,
                                                 ": say which, --join=", run, "/NAME (",
                                                 absl::StrJoin(*names, ", "), ")"));
}

absl::StatusOr<Boarded> BoardByName(const std::string& join, const std::string& given_folder,
                                    absl::Duration patience, const std::vector<Role>& roles,
                                    const std::function<bool()>& stop) {
  std::string folder = given_folder;
  if (absl::StartsWith(join, "/") || absl::StartsWith(join, ".")) {
    folder = join;
    // A coordinator that starts has it in a moment.
    const absl::Time deadline = absl::Now() + patience;
    while (!FileSystem::Real()->Exists(IdentityFiles(folder).coordinator) &&
           absl::Now() < deadline) {
      RETURN_IF_ERROR(Pause(stop));
    }
  } else if (folder.empty()) {
    ASSIGN_OR_RETURN(folder, DefaultIdentityFolder(join, ""));
    while (absl::EndsWith(folder, "/")) folder.pop_back();
    if (!absl::StrContains(join, '/')) {
      ASSIGN_OR_RETURN(folder, OnlyNameIn(folder, join, roles));
    }
  }
  if (!FileSystem::Real()->Exists(IdentityFiles(folder).certificate)) {
    return absl::NotFoundError(
        absl::StrCat("nobody has boarded by --join=", join, " on this machine: there is no ",
                     IdentityFiles(folder).certificate,
                     "; the first time --join takes the line of `causewayctl invite`"));
  }
  absl::StatusOr<Boarded> kept = ReadFolder(folder);
  if (!kept.ok() || folder == join) return kept;
  const auto& [run, role, name] = kept->identity;
  if (join == run || join == absl::StrCat(run, "/", name)) return kept;
  return absl::FailedPreconditionError(absl::StrCat(folder, " is that of ", RoleName(role), " ",
                                                    name, " of the run ", run, ", not of ", join));
}

struct FoundAuthority {
  std::string pem;
  std::string address;
};

// The authority of the line, from the first of its addresses that answers.
absl::StatusOr<FoundAuthority> FindAuthority(const InvitationLine& line, absl::Time deadline,
                                             const std::function<bool()>& stop) {
  for (;;) {
    absl::Status last;
    bool all_refuse = true;
    for (const std::string& address : line.addresses) {
      absl::StatusOr<std::string> authority = FetchAuthority(address, line.pin, kCall);
      if (authority.ok()) return FoundAuthority{*std::move(authority), address};
      all_refuse &= absl::IsFailedPrecondition(authority.status());
      last = authority.status();
    }
    if (all_refuse) return last;
    if (absl::Now() >= deadline) {
      const std::string why = ExplainNoAnswer(line.addresses.back(), /*uses_tls=*/true);
      return absl::UnavailableError(
          absl::StrCat("no coordinator answers at ", absl::StrJoin(line.addresses, ", "), ": ",
                       why.empty() ? last.message() : absl::string_view(why)));
    }
    RETURN_IF_ERROR(Pause(stop));
  }
}

// PERMISSION_DENIED if the coordinator of the line refuses the certificate of the invitation: it
// hangs up then, which gRPC does not tell from one that is away. FAILED_PRECONDITION if who answers
// is not to be trusted, at every address.
absl::Status RefusalOf(const InvitationLine& line, const SecurityOptions& invited) {
  absl::Status last;
  bool none_trusted = true;
  for (const std::string& address : line.addresses) {
    absl::Status status = FetchAuthority(address, line.pin, kCall).status();
    if (status.ok()) status = TryTlsHandshake(address, invited, kCall).status();
    if (absl::IsPermissionDenied(status)) {
      return absl::PermissionDeniedError(
          absl::StrCat("the coordinator at ", address,
                       " does not take this invitation: it is over, was revoked, or ", line.name,
                       " was invited anew since (`causewayctl invitations` says which); ask for a "
                       "new line, `causewayctl invite ",
                       line.name, "`"));
    }
    none_trusted &= absl::IsFailedPrecondition(status);
    last = status;
  }
  return none_trusted ? last : absl::OkStatus();
}

// Exchanges the invitation for a certificate of that key.
absl::StatusOr<v1::EnrollResponse> Enroll(InvitationLine line, const v1::EnrollRequest& request,
                                          const FoundAuthority& authority, absl::Time deadline,
                                          const std::function<bool()>& stop) {
  // Silent ones before it would take all of a call's time.
  std::stable_partition(line.addresses.begin(), line.addresses.end(),
                        [&](const std::string& each) { return each == authority.address; });
  ASSIGN_OR_RETURN(const KeyedCertificate invited, CertificateOfInvitation(line.secret, line.name));
  // In memory alone.
  ASSIGN_OR_RETURN(const ReplacedFile ca, ReplacedFile::Make(authority.pem));
  ASSIGN_OR_RETURN(const ReplacedFile certificate, ReplacedFile::Make(invited.certificate));
  ASSIGN_OR_RETURN(const ReplacedFile key, ReplacedFile::Make(invited.key));
  SecurityOptions options;
  options.ca_file = ca.path();
  options.cert_file = certificate.path();
  options.key_file = key.path();
  options.server_name = kCoordinatorName;
  const std::string addresses = absl::StrJoin(line.addresses, ",");
  ASSIGN_OR_RETURN(const std::string target, ChannelTarget(addresses));
  ASSIGN_OR_RETURN(const ChannelSecurity security,
                   MakeChannelSecurity(options, line.addresses.front(), absl::Now()));
  const absl::Time trusted = absl::Now() + kTrusted;
  for (int attempt = 0;; ++attempt) {
    absl::StatusOr<v1::EnrollResponse> answer = CallOver(
        MakeChannel(target, attempt, security), &v1::Enrollment::Stub::Enroll, request, kCall);
    if (answer.ok() || !IsRetryable(answer.status())) return answer;
    if (absl::Now() >= trusted && MadeOnTheWay(answer.status())) {
      RETURN_IF_ERROR(RefusalOf(line, options));
    }
    if (absl::Now() >= deadline) return Annotate(answer.status(), addresses);
    RETURN_IF_ERROR(Pause(stop));
  }
}

// By which a folder knows the line that it came of: nothing follows from it.
std::string MarkOf(const InvitationLine& line) {
  return absl::StrCat("line ", ShortDigest(line.secret));
}

// Reads the file `coordinator` of a folder.
std::string PlaceOf(const InvitationLine& line) {
  return absl::StrCat(absl::StrJoin(line.addresses, ","), "\n", MarkOf(line), "\n");
}

absl::StatusOr<Certificate> LastOf(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string text, ReadTrustedFile(file, /*secret=*/false));
  ASSIGN_OR_RETURN(const std::string last, LastCertificate(text, file));
  return ParseCertificate(last, file);
}

absl::StatusOr<std::string> RequestOf(const std::string& key_file) {
  ASSIGN_OR_RETURN(const std::string key, ReadTrustedFile(key_file, /*secret=*/true));
  return MakeRequest(key, key_file);
}

// Takes what the folder has, if it came of that line and is whole. Its disk may be read-only.
absl::StatusOr<Boarded> KeptOf(const InvitationLine& line, const std::string& folder) {
  FileSystem& disk = *FileSystem::Real();
  const IdentityFiles files(folder);
  ASSIGN_OR_RETURN(const std::string before, disk.ReadFile(files.coordinator));
  ASSIGN_OR_RETURN(const Certificate authority, LastOf(files.authority));
  RETURN_IF_ERROR(
      ReadOwnCertificate(files.certificate, files.key, CertificateUse::kClient, absl::Now())
          .status());
  ASSIGN_OR_RETURN(Boarded kept, ReadFolder(folder));
  if (!absl::StrContains(before, MarkOf(line)) || authority.fingerprint != line.pin ||
      kept.identity.name != line.name) {
    return absl::NotFoundError("it came of another line");
  }
  if (before != PlaceOf(line)) {
    const absl::Status written =
        WriteFileAtomically(disk, files.coordinator, absl::string_view(PlaceOf(line)));
    if (!written.ok()) Log().warn("{}", std::string(written.message()));
  }
  kept.coordinator = absl::StrJoin(line.addresses, ",");
  return kept;
}

// Of this machine's boarding: what the folder has already, if it came of the same line.
absl::StatusOr<Boarded> BoardByLine(const InvitationLine& line, const std::string& given_folder,
                                    absl::Duration patience, const std::vector<Role>& roles,
                                    const std::function<bool()>& stop) {
  FileSystem& disk = *FileSystem::Real();
  const absl::Time deadline = absl::Now() + patience;
  std::string folder = given_folder;
  if (folder.empty()) {
    ASSIGN_OR_RETURN(folder, DefaultIdentityFolder(line.run, line.name));
  }
  if (const absl::Status made = CreatePrivateFolder(disk, folder); !made.ok()) {
    return absl::Status(made.code(), absl::StrCat(made.message(), "; or give --identity=FOLDER"));
  }
  if (absl::StatusOr<Boarded> kept = KeptOf(line, folder); kept.ok()) return kept;
  absl::StatusOr<std::unique_ptr<FolderLock>> lock = disk.Lock(folder);
  while (!lock.ok() && absl::IsAlreadyExists(lock.status()) && absl::Now() < deadline) {
    RETURN_IF_ERROR(Pause(stop));
    lock = disk.Lock(folder);
  }
  RETURN_IF_ERROR(lock.status());
  const IdentityFiles files(folder);
  // What cannot be read is as good as nothing: the line makes it anew.
  const auto authority_before = LastOf(files.authority);
  const auto own = ReadCertificate(files.certificate);
  if (authority_before.ok() && own.ok() && own->identity.has_value() &&
      absl::Now() < own->not_after) {
    const bool same_place = authority_before->fingerprint == line.pin;
    if (!same_place || own->identity->name != line.name) {
      return absl::FailedPreconditionError(
          absl::StrCat(folder, " is that of ", RoleAndName(*own->identity), " of the run ",
                       own->identity->run, same_place ? "" : " at another coordinator",
                       ": give another folder, --identity=FOLDER, or remove it"));
    }
    // Another process may have boarded while this one waited.
    if (absl::StatusOr<Boarded> kept = KeptOf(line, folder); kept.ok()) return kept;
  }
  absl::StatusOr<std::string> request = RequestOf(files.key);
  if (!request.ok()) {
    ASSIGN_OR_RETURN(const std::string made, MakePrivateKey());
    RETURN_IF_ERROR(WritePrivateFile(disk, files.key, made));
    request = RequestOf(files.key);
    RETURN_IF_ERROR(request.status());
  }
  ASSIGN_OR_RETURN(const FoundAuthority authority, FindAuthority(line, deadline, stop));
  v1::EnrollRequest asked;
  asked.set_certificate_request(*request);
  for (const Role role : roles) asked.add_roles(std::string(RoleName(role)));
  ASSIGN_OR_RETURN(const v1::EnrollResponse answer, Enroll(line, asked, authority, deadline, stop));
  if (answer.name() != line.name || answer.run_name() != line.run) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the coordinator answers with a certificate for ", answer.name(), " of the run ",
        answer.run_name(), ", and the line is for ", line.name, " of ", line.run));
  }
  RETURN_IF_ERROR(WriteFileAtomically(disk, files.authority, absl::string_view(authority.pem)));
  RETURN_IF_ERROR(WriteFileAtomically(disk, files.coordinator, absl::string_view(PlaceOf(line))));
  RETURN_IF_ERROR(
      WriteFileAtomically(disk, files.certificate, absl::string_view(answer.certificate())));
  Log().info("boarded the run {} as {} {}; the key and its certificate are in {}",
             answer.run_name(), answer.role(), answer.name(), folder);
  return ReadFolder(folder);
}

// The end of who has signed the certificate of a file, which stands behind it there.
absl::Time EndOfSigner(const std::string& file) {
  const std::string end = "-----END CERTIFICATE-----";
  const absl::StatusOr<std::string> text = ReadTrustedFile(file, /*secret=*/false);
  const size_t own = text.ok() ? text->find(end) : std::string::npos;
  if (own == std::string::npos) return absl::InfiniteFuture();
  const absl::StatusOr<Certificate> signer =
      ParseCertificate(absl::string_view(*text).substr(own + end.size()), file);
  return signer.ok() ? signer->not_after : absl::InfiniteFuture();
}

// Gets a new certificate if that is due.
absl::StatusOr<Boarded> Renewed(absl::StatusOr<Boarded> boarded) {
  if (!boarded.ok()) return boarded;
  const absl::StatusOr<Certificate> certificate = ReadCertificate(boarded->security.cert_file);
  if (certificate.ok() &&
      IsRenewalDue(*certificate, absl::Now(), EndOfSigner(boarded->security.cert_file))) {
    const absl::Status renewed = RenewIdentity(*boarded, kCall);
    if (!renewed.ok()) Log().warn("{}", std::string(renewed.message()));
  }
  return boarded;
}

// Refuses it if an identity of an earlier boarding has another role than these.
absl::StatusOr<Boarded> OfRole(absl::StatusOr<Boarded> boarded, const std::vector<Role>& roles) {
  if (!boarded.ok() || roles.empty() || std::ranges::count(roles, boarded->identity.role) > 0) {
    return boarded;
  }
  return absl::PermissionDeniedError(absl::StrCat(
      boarded->folder, " is that of ", RoleAndName(boarded->identity),
      ", who is of no use here: board with an invitation of --role=", RoleName(roles.front())));
}

}  // namespace

absl::StatusOr<Boarded> Board(const std::string& join, const std::string& folder,
                              absl::Duration patience, const std::vector<Role>& roles,
                              const std::function<bool()>& stop) {
  std::string text(absl::StripAsciiWhitespace(join));
  if (absl::StartsWith(join, "@")) {
    ASSIGN_OR_RETURN(text, ReadTrustedFile(join.substr(1), /*secret=*/true, kMostLineBytes));
    if (!LooksLikeInvitation(text)) {
      return absl::InvalidArgumentError(
          absl::StrCat(join.substr(1), " holds no invitation: expected one line, causeway://..."));
    }
  }
  if (!LooksLikeInvitation(text) && absl::StrContains(text, "://")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an invitation begins with causeway://, and this has something before it: quotes? Got ",
        WithoutSecret(text)));
  }
  if (!LooksLikeInvitation(text)) {
    return Renewed(OfRole(BoardByName(text, folder, patience, roles, stop), roles));
  }
  ASSIGN_OR_RETURN(const InvitationLine line, ParseInvitation(text));
  if (patience > absl::ZeroDuration()) {
    return Renewed(OfRole(BoardByLine(line, folder, patience, roles, stop), roles));
  }
  Boarded said;
  said.coordinator = absl::StrJoin(line.addresses, ",");
  said.identity = {.run = line.run, .role = Role::kWorker, .name = line.name};
  return said;
}

bool MeansBoarding(absl::string_view coordinator) {
  return !coordinator.empty() &&
         (!absl::StrContains(coordinator, ':') || LooksLikeInvitation(coordinator) ||
          absl::StrContains("@./", coordinator[0]));
}

bool IsRenewalDue(const Certificate& certificate, absl::Time now, absl::Time end_of_signer) {
  const bool is_bound = certificate.not_after >= end_of_signer;
  return (!is_bound || now >= certificate.not_before + kNew) &&
         now >= certificate.not_after - (certificate.not_after - certificate.not_before) / 3;
}

absl::Status RenewIdentity(const Boarded& boarded, absl::Duration timeout) {
  const absl::StatusOr<std::string> renewed = [&]() -> absl::StatusOr<std::string> {
    v1::EnrollRequest request;
    ASSIGN_OR_RETURN(*request.mutable_certificate_request(), RequestOf(boarded.security.key_file));
    ASSIGN_OR_RETURN(const std::string target, ChannelTarget(boarded.coordinator));
    ASSIGN_OR_RETURN(const ChannelSecurity security,
                     MakeChannelSecurity(boarded.security, boarded.coordinator, absl::Now()));
    const auto count = std::ranges::count(boarded.coordinator, ',') + 1;
    ASSIGN_OR_RETURN(const v1::EnrollResponse answer,
                     CallOver(MakeChannel(target, 0, security), &v1::Enrollment::Stub::Renew,
                              request, timeout + count * kEachAddress));
    return answer.certificate();
  }();
  const absl::Status kept =
      renewed.ok() ? WriteFileAtomically(*FileSystem::Real(), boarded.security.cert_file,
                                         absl::string_view(*renewed))
                   : renewed.status();
  return Annotate(kept, absl::StrCat("the certificate ", boarded.security.cert_file,
                                     " is not renewed yet, and is tried again"));
}

IdentityKeeper::IdentityKeeper(Boarded boarded, const Clock& clock, absl::Duration interval)
    : boarded_(std::move(boarded)), clock_(clock) {
  const absl::Status started = thread_.Start(interval, [this, interval] {
    Keep();
    return interval;
  });
  if (!started.ok()) {
    Log().warn("{} will not be renewed: {}", boarded_.security.cert_file,
               std::string(started.message()));
  }
}

void IdentityKeeper::Keep() {
  const absl::Time now = clock_.Now();
  if (now < next_try_) return;
  const absl::StatusOr<Certificate> own = ReadCertificate(boarded_.security.cert_file);
  if (own.ok() && !IsRenewalDue(*own, now, EndOfSigner(boarded_.security.cert_file))) return;
  const absl::Status renewed = own.ok() ? RenewIdentity(boarded_, kCall) : own.status();
  if (renewed.ok()) {
    Log().info("{} is renewed", boarded_.security.cert_file);
  } else {
    Log().warn("{}", std::string(renewed.message()));
    const bool is_late = own.ok() && own->not_after - now < kLate;
    next_try_ = now + (is_late ? kTryAgainLate : kTryAgain);
  }
}

}  // namespace causeway
