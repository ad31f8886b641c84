#include "common/files/replace_folder.h"

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool IsNoWeights(absl::string_view name) { return name != "weights"; }

class ReplaceFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(disk().CreateFolders(folder_.File("model/notes")).ok());
    Put("model/weights", "old");
    Put("model/tokenizer", "mine");
    Put("model/notes/why", "because");
  }
  static FileSystem& disk() { return *FileSystem::Real(); }
  void Put(const std::string& name, const std::string& text) const {
    WriteText(folder_.File(name), text);
  }
  std::string Get(const std::string& name) const {
    const auto text = disk().ReadFile(folder_.File(name));
    return text.ok() ? *text : text.status().ToString();
  }
  std::vector<std::string> List(const std::string& name) const {
    return disk().List(folder_.File(name)).value_or(std::vector<std::string>());
  }

  const TemporaryFolder folder_;
};

TEST_F(ReplaceFolderTest, ReadersFindTheOldContentUntilTheNewIsWhole) {
  ASSERT_TRUE(ReplaceFolder(folder_.File("model"), IsNoWeights, [&](const std::string& path) {
                EXPECT_THAT(disk().List(path).value(), ElementsAre("tokenizer"));
                EXPECT_EQ(Get("model/weights"), "old");
                WriteText(JoinPath(path, "weights"), "new");
                EXPECT_EQ(Get("model/weights"), "old");
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(Get("model/weights"), "new");
  EXPECT_EQ(Get("model/tokenizer"), "mine");
  EXPECT_EQ(Get("model/notes/why"), "because");
  EXPECT_THAT(List(""), ElementsAre("model"));
}

TEST_F(ReplaceFolderTest, WhatFailsOnTheWayLeavesTheOldContent) {
  const absl::Status status =
      ReplaceFolder(folder_.File("model"), IsNoWeights, [&](const std::string& path) {
        WriteText(JoinPath(path, "weights"), "half");
        return absl::ResourceExhaustedError("the disk is full");
      });
  EXPECT_THAT(status, StatusIs(kResourceExhausted));
  EXPECT_EQ(Get("model/weights"), "old");
  EXPECT_EQ(Get("model/notes/why"), "because");
  EXPECT_THAT(List(""), ElementsAre("model"));
}

TEST_F(ReplaceFolderTest, AFileThatIsNeitherKeptNorWrittenAgainGoes) {
  ASSERT_TRUE(ReplaceFolder(folder_.File("model"), IsNoWeights, [](const std::string&) {
                return absl::OkStatus();
              }).ok());
  EXPECT_THAT(List("model"), ElementsAre("notes", "tokenizer"));
}

TEST_F(ReplaceFolderTest, ALinkToAFolderStaysALink) {
  std::filesystem::create_directory_symlink(folder_.File("model"), folder_.File("latest"));
  ASSERT_TRUE(ReplaceFolder(folder_.File("latest"), IsNoWeights, [](const std::string& path) {
                return WriteFileAtomically(*FileSystem::Real(), JoinPath(path, "weights"),
                                           absl::string_view("new"));
              }).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.File("latest")));
  EXPECT_EQ(Get("model/weights"), "new");
  EXPECT_THAT(List(""), ElementsAre("latest", "model"));
}

TEST_F(ReplaceFolderTest, WhatAKilledOneLeftIsNamedAndLeftAlone) {
  Put("model/weights", "old");
  ASSERT_TRUE(disk().CreateFolders(folder_.File(".model.replacing")).ok());
  const absl::Status status = ReplaceFolder(folder_.File("model"), IsNoWeights,
                                            [](const std::string&) { return absl::OkStatus(); });
  EXPECT_THAT(status, StatusIs(kFailedPrecondition, HasSubstr(".model.replacing")));
  EXPECT_THAT(List(""), ElementsAre(".model.replacing", "model"));
}

TEST_F(ReplaceFolderTest, AMountPointIsRefusedBeforehand) {
  EXPECT_TRUE(CheckReplaceable(folder_.File("model")).ok());
  EXPECT_THAT(CheckReplaceable("/proc"),
              StatusIs(kFailedPrecondition, HasSubstr("give a folder inside it")));
}

TEST_F(ReplaceFolderTest, RefusesAFolderThatIsNotThere) {
  EXPECT_FALSE(ReplaceFolder(folder_.File("absent"), IsNoWeights, [](const std::string&) {
                 return absl::OkStatus();
               }).ok());
}

}  // namespace
}  // namespace causeway
