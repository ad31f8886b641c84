// By which a file that was changed, replaced or removed is noticed, or one that is being written.
#ifndef CAUSEWAY_COMMON_BASE_FILE_VERSION_H_
#define CAUSEWAY_COMMON_BASE_FILE_VERSION_H_

#include <sys/stat.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace causeway {

// A file that was written less long ago may be one that is being written: cp and scp empty it
// first.
inline constexpr absl::Duration kFileSettles = absl::Seconds(5);
inline constexpr char kJustWrittenUrl[] = "causeway/just_written";

struct FileVersion {
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;
  uint64_t inode = 0;
  int64_t size = -1;  // -1: there is no such file.
  bool operator==(const FileVersion&) const = default;

  static FileVersion Of(const std::string& file) {
    constexpr int64_t kNanoseconds = 1'000'000'000;
    struct stat facts {};
    if (stat(file.c_str(), &facts) != 0) return {};
    return {facts.st_mtim.tv_sec * kNanoseconds + facts.st_mtim.tv_nsec,
            facts.st_ctim.tv_sec * kNanoseconds + facts.st_ctim.tv_nsec, facts.st_ino,
            facts.st_size};
  }
  // Whether it may be being written. A clock that is somewhat behind changes nothing.
  bool JustWritten(absl::Time now) const {
    return size >= 0 && absl::AbsDuration(now - absl::FromUnixNanos(modified_ns)) < kFileSettles;
  }
};

// INVALID_ARGUMENT, which is that `files` are not whole or do not fit together, as UNAVAILABLE
// while one of them may be being written: whoever supervises this process then starts it again.
inline absl::Status PassesIfJustWritten(const absl::Status& status,
                                        std::initializer_list<std::string> files, absl::Time now) {
  if (!absl::IsInvalidArgument(status)) return status;
  for (const std::string& file : files) {
    if (!FileVersion::Of(file).JustWritten(now)) continue;
    absl::Status passes = absl::UnavailableError(absl::StrCat(
        status.message(), "; ", file,
        " was written a moment ago: in case it still is, start again in some seconds"));
    passes.SetPayload(kJustWrittenUrl, absl::Cord());
    return passes;
  }
  return status;
}
inline bool IsJustWritten(const absl::Status& status) {
  return status.GetPayload(kJustWrittenUrl).has_value();
}

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_FILE_VERSION_H_
