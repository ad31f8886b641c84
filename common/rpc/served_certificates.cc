#include "common/rpc/served_certificates.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"

namespace causeway {
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

}  // namespace causeway
