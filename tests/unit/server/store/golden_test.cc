// Run directories of this format stay readable, former ones are refused. golden/vN was made by
// live_scripted_run --golden when format version N was the newest.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

class GoldenRunTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenRunTest, IsReadAsItWasWritten) {
  FileSystem& fs = *FileSystem::Real();
  const TemporaryFolder parent;
  const std::string folder = parent.File("run");
  std::error_code error;
  std::filesystem::copy(JoinPath(CAUSEWAY_GOLDEN_RUNS, GetParam()), folder,
                        std::filesystem::copy_options::recursive, error);
  ASSERT_FALSE(error) << error.message();
  const auto store = RunDirectoryStore::Open(fs, folder, {}).value();
  const auto run = store->Recover().value();
  const auto print = Fingerprint(*store, run).value();
  EXPECT_EQ(print, *fs.ReadFile(JoinPath(folder, "fingerprint")));
  // And the run can be continued.
  EXPECT_EQ(store->SaveRound(ScriptedRound(0, 4), ScriptedObject(0, 4, "answer")),
            absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Formats, GoldenRunTest, testing::Values("v2"));

// Version 1 had a table for each kind of record.
TEST(FormerRunTest, IsRefusedWithWhatToDoAndStaysAsItIs) {
  FileSystem& fs = *FileSystem::Real();
  const TemporaryFolder parent;
  const std::string path = JoinPath(parent.path(), "run.db");
  const std::string former = *fs.ReadFile(JoinPath(CAUSEWAY_GOLDEN_RUNS, "v1/run.db"));
  WriteText(path, former);
  EXPECT_THAT(RunDirectoryStore::Open(fs, parent.path(), {}),
              StatusIs(kFailedPrecondition,
                       AllOf(testing::HasSubstr(
                                 "has format version 1 of a former release; this program reads "
                                 "version 2: continue the run with the release that wrote it"),
                             testing::HasSubstr("begin a run with them (--initial)"))));
  EXPECT_EQ(*fs.ReadFile(path), former);
}

}  // namespace
}  // namespace causeway::server
