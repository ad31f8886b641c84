#include "common/rpc/certificate_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

std::string EndOf(const Certificate& certificate) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", certificate.not_after, absl::UTCTimeZone());
}

}  // namespace

CertificateWatch::Versions CertificateWatch::Versions::Of(const CertificatePaths& paths) {
  return {.ca = FileVersion::Of(paths.ca),
          .cert = FileVersion::Of(paths.cert),
          .key = FileVersion::Of(paths.key)};
}

absl::StatusOr<CertificateWatch> CertificateWatch::Open(CertificatePaths paths, CertificateUse use,
                                                        absl::Duration interval, absl::Time now,
                                                        const Clock& clock) {
  CertificateWatch files(std::move(paths), use, interval, clock);
  // Before they are read: what is written in between is read again.
  files.counts_ = files.seen_ = files.reported_ = Versions::Of(files.paths_);
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
  return Versions::Of(paths_) != counts_ || clock_->Monotonic() - taken_ < kMayStillPass;
}

std::optional<CertificateNotice> CertificateWatch::Look() {
  const absl::Duration now = clock_->Monotonic();
  if (now < next_look_) return std::nullopt;
  const Versions versions = Versions::Of(paths_);
  const bool changed = versions != seen_;
  seen_ = versions;
  next_look_ = now + (changed ? std::min(interval_, kSettles) : interval_);
  if (changed || versions == counts_) return std::nullopt;
  absl::StatusOr<CertificateSet> set = Read(clock_->Now());
  if (Versions::Of(paths_) != versions) return std::nullopt;  // The next look sees the change.
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
                    EndOf(set_.own->certificate))
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
    notice.message =
        absl::StrCat("the certificate in ", paths_.cert,
                     " was renewed: new connections show it, until ", EndOf(set_.own->certificate));
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

}  // namespace causeway
