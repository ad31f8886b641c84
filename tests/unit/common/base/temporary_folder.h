// A folder of its own for a test, removed with everything in it at the end.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "common/base/file_system.h"
#include "gtest/gtest.h"

namespace causeway {

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(JoinPath(testing::TempDir(), "causeway_test_XXXXXX")) {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot create a folder like " << path_;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const { return JoinPath(path_, name); }

 private:
  std::string path_;
};

// Writes a text file anew, on the real disk.
inline void WriteText(const std::string& path, absl::string_view text) {
  const absl::Status written = WriteFileAtomically(*FileSystem::Real(), path, text);
  ASSERT_TRUE(written.ok()) << written;
}

}  // namespace causeway
