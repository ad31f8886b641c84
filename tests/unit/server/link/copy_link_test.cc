#include "server/link/copy_link.h"

#include "common/base/file_system.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::server {
namespace {

TEST(PutAside, TheFolderIsRenamedToTheFirstNameThatIsFree) {
  FileSystem& files = *FileSystem::Real();
  const TemporaryFolder folder;
  const std::string copy = folder.File("copy");
  for (const char* const former : {"copy.former-1", "copy.former-2"}) {
    ASSERT_TRUE(files.CreateFolders(JoinPath(copy, former)).ok());
    ASSERT_TRUE(PutAside(files, copy + "/", "is of no use").ok());
    EXPECT_FALSE(files.Exists(copy));
    EXPECT_TRUE(files.Exists(JoinPath(folder.File(former), former)));
  }
}

}  // namespace
}  // namespace causeway::server
