#include "server/shards/end_note.h"

#include <optional>

#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::server {
namespace {

TEST(EndNoteTest, TheEndIsRememberedUntilTheRunGoesOn) {
  FileSystem& file_system = *FileSystem::Real();
  const TemporaryFolder folder;
  EXPECT_EQ(ReadEnd(file_system, folder.path()).value(), std::nullopt);
  v1::ShardRoster roster;
  roster.set_number(7);
  roster.set_reached_end(true);
  roster.add_members()->set_worker_id("east");
  ASSERT_TRUE(NoteEnd(file_system, folder.path(), roster).ok());
  const auto read = ReadEnd(file_system, folder.path());
  ASSERT_TRUE(read.ok() && read->has_value()) << read.status();
  EXPECT_EQ((*read)->SerializeAsString(), roster.SerializeAsString());
  ASSERT_TRUE(ForgetEnd(file_system, folder.path()).ok());
  EXPECT_EQ(ReadEnd(file_system, folder.path()).value(), std::nullopt);
}

TEST(EndNoteTest, ANoteThatNobodyWroteIsRefused) {
  FileSystem& file_system = *FileSystem::Real();
  const TemporaryFolder folder;
  for (const char* const text : {"", "finished", "number: 7", "{}"}) {
    ASSERT_TRUE(
        WriteFileAtomically(file_system, JoinPath(folder.path(), "END"), absl::string_view(text))
            .ok());
    EXPECT_TRUE(absl::IsDataLoss(ReadEnd(file_system, folder.path()).status())) << text;
  }
}

}  // namespace
}  // namespace causeway::server
