// By which a file that was changed, replaced or removed is noticed.
#ifndef CAUSEWAY_COMMON_BASE_FILE_VERSION_H_
#define CAUSEWAY_COMMON_BASE_FILE_VERSION_H_

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace causeway {

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
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_FILE_VERSION_H_
