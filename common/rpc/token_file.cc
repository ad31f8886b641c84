#include "common/rpc/token_file.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace causeway {
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
