#include "tests/unit/common/base/fault_disk.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Fault = FaultDisk::Fault;
using Loss = FaultDisk::Loss;

class FaultDiskTest : public testing::Test {
 protected:
  FaultDiskTest() {
    EXPECT_TRUE(disk_.CreateFolders("/d").ok());
    EXPECT_TRUE(disk_.SyncFolder("/").ok());
  }
  // A file that is open still.
  std::unique_ptr<WritableFile> Write(const std::string& path, absl::string_view text) {
    auto file = *disk_.Create(path);
    EXPECT_TRUE(Append(*file, text).ok());
    return file;
  }
  static absl::Status Append(WritableFile& file, absl::string_view text) {
    return file.Append({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }
  FaultDisk disk_;
};

TEST_F(FaultDiskTest, ADeadProcessLosesNothingAndAPowerLossWhatWasNotSynced) {
  const auto file = Write("/d/a", "synced");
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(disk_.SyncFolder("/d").ok());
  ASSERT_TRUE(Append(*file, "lost").ok());
  const auto clone = disk_.Clone();
  clone->Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_EQ(clone->Content("/d/a"), "synced");
  disk_.Crash(Loss::kNothing, 0);
  EXPECT_EQ(disk_.Content("/d/a"), "syncedlost");
}

TEST_F(FaultDiskTest, NamesAndBytesAreLostApartFromEachOther) {
  const auto file = Write("/d/a", "");
  ASSERT_TRUE(disk_.SyncFolder("/d").ok());
  ASSERT_TRUE(Append(*file, "lost").ok());
  ASSERT_TRUE(Write("/d/b", "its name is lost")->Sync().ok());
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_THAT(disk_.Files(), ElementsAre("/d/a"));
  EXPECT_EQ(disk_.Content("/d/a"), "");
}

TEST_F(FaultDiskTest, AFolderThatItsParentWasNotSyncedForTakesItsFilesAlong) {
  ASSERT_TRUE(disk_.CreateFolders("/d/kept/lost").ok());
  ASSERT_TRUE(disk_.SyncFolder("/d").ok());
  for (const char* folder : {"/d/kept", "/d/kept/lost"}) {
    ASSERT_TRUE(Write(JoinPath(folder, "file"), "")->Sync().ok());
  }
  ASSERT_TRUE(disk_.SyncFolder("/d/kept/lost").ok());
  const auto died = disk_.Clone();
  died->Crash(Loss::kNothing, 0);
  EXPECT_TRUE(died->Exists("/d/kept/lost/file"));
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_TRUE(disk_.IsFolder("/d/kept"));
  EXPECT_FALSE(disk_.IsFolder("/d/kept/lost"));
  EXPECT_THAT(disk_.Files(), testing::IsEmpty());
}

TEST_F(FaultDiskTest, FoldersThatAreCreatedDurablyOutliveAPowerLoss) {
  ASSERT_TRUE(CreateFoldersDurably(disk_, "/new/runs/first/").ok());
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_TRUE(disk_.IsFolder("/new/runs/first"));
  ASSERT_TRUE(CreateFoldersDurably(disk_, "relative/first").ok());
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_TRUE(disk_.IsFolder("relative/first"));
}

TEST_F(FaultDiskTest, ARenameIsUndoneUnlessItsFolderWasSynced) {
  for (const std::string text : {"old", "new"}) {
    ASSERT_TRUE(Write("/d/a.tmp", text)->Sync().ok());
    ASSERT_TRUE(disk_.Rename("/d/a.tmp", "/d/a").ok());
    ASSERT_TRUE(text == "new" || disk_.SyncFolder("/d").ok());
  }
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_EQ(disk_.Content("/d/a"), "old");
}

TEST_F(FaultDiskTest, AFailedSyncLosesItsBytesForEver) {
  const auto file = Write("/d/a", "lost");
  ASSERT_TRUE(disk_.SyncFolder("/d").ok());
  disk_.FailCall(0, Fault::kInputOutput);
  EXPECT_THAT(file->Sync(), StatusIs(kInternal, HasSubstr("/d/a")));
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_EQ(disk_.Content("/d/a"), "lost");
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_EQ(disk_.Content("/d/a"), "");
}

TEST_F(FaultDiskTest, AFailedWriteHasWrittenHalf) {
  const auto file = Write("/d/a", "");
  disk_.FailCall(0, Fault::kDiskFull);
  EXPECT_THAT(Append(*file, "12345678"), StatusIs(kResourceExhausted));
  EXPECT_EQ(disk_.Content("/d/a"), "1234");
}

}  // namespace
}  // namespace causeway
