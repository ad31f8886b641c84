#include "common/rpc/replaced_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

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

}  // namespace causeway
