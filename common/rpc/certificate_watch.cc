#include "common/rpc/certificate_watch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"

namespace causeway {
CertificateWatch::Versions CertificateWatch::VersionsNow() const {
  return {FileVersion::Of(paths_.ca), FileVersion::Of(paths_.cert), FileVersion::Of(paths_.key)};
}

absl::StatusOr<CertificateWatch> CertificateWatch::Open(CertificatePaths paths, CertificateUse use,
                                                        absl::Duration interval, absl::Time now,
                                                        const Clock& clock) {
  CertificateWatch files(std::move(paths), use, interval, clock);
  // Before they are read: what is written in between is read again.
  files.counts_ = files.seen_ = files.reported_ = files.VersionsNow();
  absl::StatusOr<CertificateSet> set = files.Read(now);
  if (!set.ok()) {
    const CertificatePaths& given = files.paths_;
    return PassesIfJustWritten(set.status(), {given.ca, given.cert, given.key}, now);
  }
  files.set_ = *std::move(set);
  files.next_look_ = clock.Monotonic() + interval;
  return files;
}

absl::StatusOr<CertificateSet> CertificateWatch::Read(absl::Time now) const {
  CertificateSet set;
  if (!paths_.ca.empty()) {
    ASSIGN_OR_RETURN(set.authorities, ReadAuthorities(paths_.ca, now));
  }
  if (!paths_.cert.empty()) {
    ASSIGN_OR_RETURN(set.own, ReadOwnCertificate(paths_.cert, paths_.key, use_, now));
  }
  return set;
}

absl::Status CertificateWatch::CheckName(const CertificateSet& set) const {
  if (!set.own.has_value() || !set_.own.has_value()) return absl::OkStatus();
  const std::optional<Identity>& now = set_.own->certificate.identity;
  const std::optional<Identity>& then = set.own->certificate.identity;
  if (!now.has_value() || now == then) return absl::OkStatus();
  const bool same_name = then.has_value() && now->role == then->role && now->name == then->name;
  if (same_name && (now->run == kEveryRun || then->run == kEveryRun)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(paths_.cert, " is now that of ",
                   then.has_value() ? IdentityUri(*then) : std::string("nobody's name in a run"),
                   ", and this process is ", IdentityUri(*now), ": put its own there"));
}

bool CertificateWatch::IsChanging() const {
  return VersionsNow() != counts_ || clock_->Monotonic() - taken_ < kMayStillPass;
}

std::optional<CertificateNotice> CertificateWatch::Look() {
  const absl::Duration now = clock_->Monotonic();
  if (now < next_look_) return std::nullopt;
  const Versions versions = VersionsNow();
  const bool changed = versions != seen_;
  seen_ = versions;
  next_look_ = now + (changed ? std::min(interval_, kSettles) : interval_);
  if (changed || versions == counts_) return std::nullopt;
  absl::StatusOr<CertificateSet> set = Read(clock_->Now());
  if (VersionsNow() != versions) return std::nullopt;  // The next look sees the change.
  const absl::Status fit = set.ok() ? CheckName(*set) : set.status();
  if (fit.ok()) {
    counts_ = versions;
    return Take(*std::move(set));
  }
  // It may become valid as it is, and so is read again; that it is not is said once.
  if (std::exchange(reported_, versions) == versions) return std::nullopt;
  return CertificateNotice{
      .fit = false,
      .message = absl::StrCat(
          fit.message(), ". Until the files are fit, new connections ",
          set_.own.has_value()
              ? absl::StrCat(
                    "go on with the certificate that was there before, which ",
                    clock_->Now() < set_.own->certificate.not_after ? "ends at " : "ended at ",
                    UtcMinute(set_.own->certificate.not_after))
              : std::string("go on with what was there before"))};
}

CertificateNotice CertificateWatch::Take(CertificateSet set) {
  const auto texts = [](const CertificateSet& one) {
    return one.own.has_value() ? std::pair(one.own->chain, one.own->key)
                               : std::pair(std::string(), std::string());
  };
  const bool other_own = texts(set) != texts(set_);
  const bool other_authorities = set.authorities != set_.authorities;
  reported_ = counts_;
  set_ = std::move(set);
  if (!other_own && !other_authorities) {
    return {.fit = true,
            .message = absl::StrCat(paths_.ca, paths_.ca.empty() || paths_.cert.empty() ? "" : ", ",
                                    paths_.cert, paths_.cert.empty() ? "" : ", ", paths_.key,
                                    ": the files say what they said before")};
  }
  ++generation_;
  taken_ = clock_->Monotonic();
  CertificateNotice notice{.fit = true, .message = ""};
  if (other_own) {
    notice.message = absl::StrCat("the certificate in ", paths_.cert,
                                  " was renewed: new connections show it, until ",
                                  UtcMinute(set_.own->certificate.not_after));
  } else {
    notice.message =
        absl::StrCat("the authorities in ", paths_.ca, " have changed: new connections go by them");
  }
  if (set_.own.has_value() && !paths_.ca.empty()) {
    const absl::Status is_signed = CheckSigned(paths_.cert, paths_.ca, use_, clock_->Now());
    if (!is_signed.ok()) {
      absl::StrAppend(&notice.message, "; ", is_signed.message(),
                      "; right only if the peers trust another CA than this side");
    }
  }
  return notice;
}

namespace {

absl::Status SystemError(absl::string_view call) {
  return absl::InternalError(
      absl::StrCat("a file in memory for gRPC: ", call, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<ReplacedFile> ReplacedFile::Make(absl::string_view text) {
  ReplacedFile file;
  RETURN_IF_ERROR(file.Replace(text));
  return file;
}

std::string ReplacedFile::path() const { return absl::StrCat("/proc/self/fd/", descriptor_); }

absl::Status ReplacedFile::Replace(absl::string_view text) {
  const int made = memfd_create("causeway", MFD_CLOEXEC);
  if (made < 0) return SystemError("memfd_create");
  auto close_made = absl::MakeCleanup([made] { close(made); });
  if (fchmod(made, S_IRUSR | S_IWUSR) != 0) return SystemError("fchmod");
  while (!text.empty()) {
    const ssize_t written = write(made, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("write");
    text.remove_prefix(static_cast<size_t>(written));
  }
  // By this gRPC tells whether the file has changed between two of its reads.
  modified_s_ = std::max(absl::ToUnixSeconds(absl::Now()), modified_s_ + 1);
  const timespec modified{.tv_sec = modified_s_, .tv_nsec = 0};
  const timespec times[] = {modified, modified};
  if (futimens(made, times) != 0) return SystemError("futimens");
  if (descriptor_ < 0) {
    std::move(close_made).Cancel();
    descriptor_ = made;
    return absl::OkStatus();
  }
  return dup3(made, descriptor_, O_CLOEXEC) < 0 ? SystemError("dup3") : absl::OkStatus();
}

namespace {

constexpr unsigned kGrpcLooksEverySeconds = 1;

std::string Own(const CertificateSet& set) {
  return absl::StrCat(set.own->chain, "\n", set.own->key);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedCertificates>> ServedCertificates::Serve(
    CertificateWatch files) {
  ASSIGN_OR_RETURN(ReplacedFile own, ReplacedFile::Make(Own(files.set())));
  std::optional<ReplacedFile> authorities;
  if (!files.set().authorities.empty()) {
    ASSIGN_OR_RETURN(authorities, ReplacedFile::Make(files.set().authorities));
  }
  return std::unique_ptr<ServedCertificates>(
      new ServedCertificates(std::move(files), std::move(own), std::move(authorities)));
}

ServedCertificates::ServedCertificates(CertificateWatch files, ReplacedFile own,
                                       std::optional<ReplacedFile> authorities)
    : files_(std::move(files)),
      own_(std::move(own)),
      authorities_(std::move(authorities)),
      provider_(std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          own_.path(), own_.path(), authorities_.has_value() ? authorities_->path() : "",
          kGrpcLooksEverySeconds)) {}

absl::Status ServedCertificates::Replace() {
  RETURN_IF_ERROR(own_.Replace(Own(files_.set())));
  return ReplaceAuthorities();
}

absl::Status ServedCertificates::ReplaceAuthorities() {
  if (!authorities_.has_value()) return absl::OkStatus();
  return authorities_->Replace(absl::StrCat(files_.set().authorities, "\n", also_trusted_));
}

absl::Status ServedCertificates::AlsoTrust(std::string certificates) {
  if (certificates == also_trusted_) return absl::OkStatus();
  also_trusted_.swap(certificates);
  const absl::Status replaced = ReplaceAuthorities();
  if (!replaced.ok()) also_trusted_.swap(certificates);
  return replaced;
}

std::optional<CertificateNotice> ServedCertificates::Look() {
  std::optional<CertificateNotice> notice = files_.Look();
  const bool is_news = notice.has_value();
  if (files_.generation() == served_) return notice;
  const absl::Status replaced = Replace();
  if (replaced.ok()) {
    served_ = files_.generation();
    return notice;
  }
  if (!is_news) return std::nullopt;  // Tried again at every look.
  return CertificateNotice{.fit = false, .message = std::string(replaced.message())};
}

namespace {

// Tries that are further apart do not follow each other.
constexpr absl::Duration kSeries = absl::Seconds(30);
// The refusals of several calls that showed the same token count as one.
constexpr absl::Duration kTogether = absl::Milliseconds(100);

absl::StatusOr<std::string> TokenIn(const std::string& text, const std::string& file) {
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  RETURN_IF_ERROR(Annotate(CheckToken(token), file));
  return std::string(token);
}

}  // namespace

absl::StatusOr<std::shared_ptr<TokenFile>> TokenFile::Open(std::string file, const Clock& clock) {
  std::shared_ptr<TokenFile> made(new TokenFile(std::move(file), clock));
  absl::MutexLock lock(&made->mutex_);
  made->read_ = made->seen_ = made->reported_ = FileVersion::Of(made->file_);
  const absl::StatusOr<std::string> text = ReadTrustedFile(made->file_, /*secret=*/true);
  absl::StatusOr<std::string> token = text.ok() ? TokenIn(*text, made->file_) : text;
  if (!token.ok()) return PassesIfJustWritten(token.status(), {made->file_}, clock.Now());
  made->token_ = *std::move(token);
  return made;
}

std::string TokenFile::Now() {
  absl::MutexLock lock(&mutex_);
  Look();
  return shows_former_ ? former_ : token_;
}

void TokenFile::Look() {
  const FileVersion version = FileVersion::Of(file_);
  if (version == read_) return;
  const absl::Duration now = clock_.Monotonic();
  if (version != seen_) changed_ = now;
  seen_ = version;
  const bool settled = now - changed_ >= CertificateWatch::kSettles;
  const absl::StatusOr<std::string> text = ReadTrustedFile(file_, /*secret=*/true);
  absl::StatusOr<std::string> token = text.ok() ? TokenIn(*text, file_) : text;
  if (!settled && (!token.ok() || !absl::EndsWith(*text, "\n"))) return;
  if (!token.ok()) {
    if (std::exchange(reported_, version) == version) return;
    return Say(false, absl::StrCat(token.status().message(),
                                   ". Until the file is fit, the token before goes on"));
  }
  read_ = reported_ = version;
  if (*token == token_) return;
  former_ = shows_former_ ? former_ : token_;
  shows_former_ = false;
  token_ = *std::move(token);
  last_refused_ = -absl::InfiniteDuration();
  Say(true, absl::StrCat("the token in ", file_, " is another one: new calls show it"));
}

bool TokenFile::MayPass(const absl::Status& refusal) {
  absl::MutexLock lock(&mutex_);
  Look();
  const absl::Duration now = clock_.Monotonic();
  const bool together = now - last_refused_ < kTogether;
  if (now - last_refused_ >= kSeries) first_refused_ = now;
  const bool is_first = first_refused_ == now;
  if (!together) last_refused_ = now;
  if (now - first_refused_ >= CertificateWatch::kMayStillPass) return false;
  if (former_.empty() || former_ == token_) return FileVersion::Of(file_) != read_;
  if (!together) {
    shows_former_ = !shows_former_;
    if (is_first) {
      Say(false,
          absl::StrCat("the token that this process showed is refused (", refusal.message(), "): ",
                       shows_former_ ? "the one before goes on, until another is in "
                                     : "the next try shows the one that is now in ",
                       file_));
    }
  }
  return true;
}

void TokenFile::ReportTo(CertificateReport report) {
  absl::MutexLock lock(&mutex_);
  report_ = std::move(report);
}

void TokenFile::Say(bool fit, std::string message) {
  if (report_) report_({.fit = fit, .message = std::move(message)});
}

}  // namespace causeway
