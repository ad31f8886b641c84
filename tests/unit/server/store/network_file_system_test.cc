#include "server/store/run_directory.h"

#include <linux/magic.h>

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

TEST(NetworkFileSystemTest, ThoseOfOtherMachinesAreNamed) {
  EXPECT_EQ(NetworkFileSystemName(NFS_SUPER_MAGIC), "NFS");
  EXPECT_EQ(NetworkFileSystemName(CIFS_SUPER_MAGIC), "SMB");
  EXPECT_EQ(NetworkFileSystemName(static_cast<int32_t>(SMB2_SUPER_MAGIC)), "SMB");
  EXPECT_EQ(NetworkFileSystemName(CEPH_SUPER_MAGIC), "Ceph");
  EXPECT_EQ(NetworkFileSystemName(V9FS_MAGIC), "9P");
  EXPECT_EQ(NetworkFileSystemName(EXT4_SUPER_MAGIC), "");
  EXPECT_EQ(NetworkFileSystemName(TMPFS_MAGIC), "");
}

TEST(NetworkFileSystemTest, WhereTheSystemDoesNotSayNothingIsNamed) {
  EXPECT_EQ(NetworkFileSystemOf("/proc/self"), "");
  EXPECT_EQ(NetworkFileSystemOf("/nowhere"), "");
}

}  // namespace
}  // namespace causeway::server
