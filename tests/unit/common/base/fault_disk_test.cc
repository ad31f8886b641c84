#include "tests/unit/common/base/fault_disk.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Fault = FaultDisk::Fault;
using Loss = FaultDisk::Loss;

std::span<const uint8_t> TextBytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

class FaultDiskTest : public testing::Test {
 protected:
  FaultDiskTest() {
    EXPECT_TRUE(disk_.CreateFolders("/d").ok());
    EXPECT_TRUE(disk_.SyncFolder("/").ok());
  }
  FaultDisk disk_;
};

TEST_F(FaultDiskTest, ADeadProcessLosesNothingAndAPowerLossWhatWasNotSynced) {
  const auto file = *disk_.Create("/d/a");
  ASSERT_TRUE(file->Append(TextBytes("synced")).ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(disk_.SyncFolder("/d").ok());
  ASSERT_TRUE(file->Append(TextBytes("lost")).ok());
  const auto died = disk_.Clone();
  died->Crash(Loss::kNothing, 0);
  EXPECT_EQ(died->Content("/d/a"), "syncedlost");
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_EQ(disk_.Content("/d/a"), "synced");
}

TEST_F(FaultDiskTest, NamesAndBytesAreLostApartFromEachOther) {
  const auto file = *disk_.Create("/d/a");
  ASSERT_TRUE(disk_.SyncFolder("/d").ok());
  ASSERT_TRUE(file->Append(TextBytes("lost")).ok());
  const auto other = *disk_.Create("/d/b");
  ASSERT_TRUE(other->Append(TextBytes("its name is lost")).ok());
  ASSERT_TRUE(other->Sync().ok());
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_THAT(disk_.Files(), ElementsAre("/d/a"));
  EXPECT_EQ(disk_.Content("/d/a"), "");
}

TEST_F(FaultDiskTest, AFolderThatItsParentWasNotSyncedForTakesItsFilesAlong) {
  ASSERT_TRUE(disk_.CreateFolders("/d/kept/lost").ok());
  ASSERT_TRUE(disk_.SyncFolder("/d").ok());
  for (const char* folder : {"/d/kept", "/d/kept/lost"}) {
    const auto file = *disk_.Create(JoinPath(folder, "file"));
    ASSERT_TRUE(file->Sync().ok());
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
  for (const char* text : {"old", "new"}) {
    const auto file = *disk_.Create("/d/a.tmp");
    ASSERT_TRUE(file->Append(TextBytes(text)).ok());
    ASSERT_TRUE(file->Sync().ok());
    ASSERT_TRUE(disk_.Rename("/d/a.tmp", "/d/a").ok());
    if (std::string(text) == "old") {
      ASSERT_TRUE(disk_.SyncFolder("/d").ok());
    }
  }
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_EQ(disk_.Content("/d/a"), "old");
}

TEST_F(FaultDiskTest, AFailedSyncLosesItsBytesForEver) {
  const auto file = *disk_.Create("/d/a");
  ASSERT_TRUE(disk_.SyncFolder("/d").ok());
  ASSERT_TRUE(file->Append(TextBytes("lost")).ok());
  disk_.FailCall(0, Fault::kInputOutput);
  const absl::Status failed = file->Sync();
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("/d/a"));
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_EQ(disk_.Content("/d/a"), "lost");
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_EQ(disk_.Content("/d/a"), "");
}

TEST_F(FaultDiskTest, AFailedWriteHasWrittenHalf) {
  const auto file = *disk_.Create("/d/a");
  disk_.FailCall(0, Fault::kDiskFull);
  EXPECT_EQ(file->Append(TextBytes("12345678")).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(disk_.Content("/d/a"), "1234");
}

TEST_F(FaultDiskTest, AClonedDiskGoesItsOwnWay) {
  const auto file = *disk_.Create("/d/a");
  ASSERT_TRUE(file->Append(TextBytes("both")).ok());
  const auto clone = disk_.Clone();
  ASSERT_TRUE(file->Append(TextBytes(" and one")).ok());
  EXPECT_EQ(clone->Content("/d/a"), "both");
  clone->Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_EQ(disk_.Content("/d/a"), "both and one");
}

}  // namespace
}  // namespace causeway
