#include "common/rpc/served_certificates.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway {
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

}  // namespace causeway
