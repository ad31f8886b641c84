#include "server/store/run_parts.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::server {
namespace {

class RunFoldersTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"lead", "a", "with,comma"}) {
      ASSERT_TRUE(FileSystem::Real()->CreateFolders(folder_.File(name)).ok());
    }
  }
  absl::StatusOr<std::vector<std::string>> Folders(const std::string& list) {
    return RunFolders(*FileSystem::Real(), list);
  }
  void ExpectRefused(const std::string& list, const std::string& words) {
    const absl::Status status = Folders(list).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << list;
    EXPECT_TRUE(absl::StrContains(status.message(), words)) << status;
  }

  const TemporaryFolder folder_;
  const std::string lead_ = folder_.File("lead");
  const std::string a_ = folder_.File("a");
};

TEST_F(RunFoldersTest, OneOrSeveral) {
  EXPECT_EQ(Folders(lead_).value(), std::vector<std::string>{lead_});
  EXPECT_EQ(Folders(absl::StrCat(a_, ",", lead_)).value(), (std::vector<std::string>{a_, lead_}));
  const std::string comma = folder_.File("with,comma");
  EXPECT_EQ(Folders(comma).value(), std::vector<std::string>{comma});
}

TEST_F(RunFoldersTest, AFolderCountsOnceByWhateverName) {
  ExpectRefused(absl::StrCat(a_, ",", a_), absl::StrCat(a_, " twice: give"));
  ExpectRefused(absl::StrCat(a_, ",", a_, "/"),
                absl::StrCat(a_, "/ twice, as ", a_, " first: give"));
  ExpectRefused(absl::StrCat(a_, ",", lead_, ",", folder_.File("lead/../a")), "twice");
  std::filesystem::create_symlink(a_, folder_.File("link"));
  ExpectRefused(absl::StrCat(folder_.File("link"), ",", a_), "twice");
  ExpectRefused("missing,./missing", "twice");
}

TEST_F(RunFoldersTest, AnEmptyNameIsNone) {
  ExpectRefused(absl::StrCat(a_, ","), "empty name");
  ExpectRefused(absl::StrCat(a_, ",,", lead_), "empty name");
}

}  // namespace
}  // namespace causeway::server
