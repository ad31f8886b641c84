#include "server/standby_rpc/following.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "common/base/forwarding_file_system.h"
#include "gtest/gtest.h"
#include "server/store/blob_folder.h"
#include "server/store/memory_owner.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::server {
namespace {

// Removes nothing, as a process that dies before it does.
class FileSystemWithoutRemoval final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  absl::Status Remove(const std::string&) override { return absl::AbortedError("died"); }
};

class PutAsideTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(files_.CreateFolders(copy_).ok());
    BlobFolder blobs(files_, copy_);
    ASSERT_TRUE(blobs.CreateFolders().ok());
    ASSERT_TRUE(blobs.UseMemory(memory_).ok());
    ASSERT_TRUE(WriteFileAtomically(files_, JoinPath(memory_, "deltas/000000000001-f0-r1-a.delta"),
                                    absl::string_view("bytes"))
                    .ok());
  }

  FileSystem& files_ = *FileSystem::Real();
  const TemporaryFolder folder_;
  const std::string copy_ = folder_.File("copy");
  const std::string former_ = folder_.File("copy.former-1");
  const std::string memory_ = folder_.File("memory");
};

TEST_F(PutAsideTest, TheFolderIsRenamedAndItsMemoryIsFree) {
  ASSERT_TRUE(PutAside(files_, copy_, "is of no use").ok());
  EXPECT_FALSE(files_.Exists(copy_));
  EXPECT_TRUE(files_.Exists(JoinPath(former_, "answers")));
  EXPECT_FALSE(files_.Exists(memory_));
}

TEST_F(PutAsideTest, ADeathOnTheWayLeavesMemoryThatTheNextStartFrees) {
  FileSystemWithoutRemoval dying(files_);
  EXPECT_TRUE(absl::IsAborted(PutAside(dying, copy_, "is of no use")));
  ASSERT_TRUE(files_.Exists(former_));
  ASSERT_TRUE(files_.Exists(memory_));
  FreeMemoryOfFormer(files_, copy_ + "/");
  EXPECT_FALSE(files_.Exists(memory_));
  EXPECT_FALSE(files_.Exists(JoinPath(former_, kDeltasInFile)));
  EXPECT_TRUE(files_.Exists(JoinPath(former_, "answers")));
}

TEST_F(PutAsideTest, MemoryOfAFormerFolderThatIsServedAgainStays) {
  ASSERT_TRUE(files_.Rename(copy_, former_).ok());
  ASSERT_TRUE(ClaimMemory(files_, former_, memory_).ok());
  FreeMemoryOfFormer(files_, copy_);
  EXPECT_TRUE(files_.Exists(JoinPath(memory_, "deltas/000000000001-f0-r1-a.delta")));
}

TEST_F(PutAsideTest, MemoryOfOtherFoldersStays) {
  FreeMemoryOfFormer(files_, copy_);
  FreeMemoryOfFormer(files_, folder_.File("co"));
  EXPECT_TRUE(files_.Exists(JoinPath(memory_, "deltas/000000000001-f0-r1-a.delta")));
}

}  // namespace
}  // namespace causeway::server
