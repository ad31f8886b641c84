#include "worker/member/merge_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MergeRecordTest : public ::testing::Test {
 protected:
  FileSystem& files() { return *FileSystem::Real(); }

  TemporaryFolder folder_;
  const std::string path_ = JoinPath(folder_.path(), "merges.jsonl");
};

TEST_F(MergeRecordTest, AnotherProcessReadsWhatWasMergedAndGoesOn) {
  {
    const auto record = MergeRecord::Open(files(), path_, /*anew=*/false).value();
    EXPECT_THAT(record->merges(), IsEmpty());
    ASSERT_TRUE(record->Add({.step = 7, .event = {1, 1}}).ok());
    ASSERT_TRUE(record->Add({.step = 9, .event = {0, 2}}).ok());
  }
  const auto record = MergeRecord::Open(files(), path_, /*anew=*/false).value();
  const RecordedMerge first{.step = 7, .event = {1, 1}};
  const RecordedMerge second{.step = 9, .event = {0, 2}};
  EXPECT_THAT(record->merges(), ElementsAre(first, second));
  // It repeats one of them, and does another.
  ASSERT_TRUE(record->Add(second).ok());
  const RecordedMerge third{.step = 12, .event = {1, 2}};
  ASSERT_TRUE(record->Add(third).ok());
  EXPECT_THAT(ReadMergeRecord(files(), path_, /*may_be_absent=*/false).value(),
              ElementsAre(first, second, third));
}

TEST_F(MergeRecordTest, AWorkerThatBeginsAnewHasNothingToRepeat) {
  ASSERT_TRUE(MergeRecord::Open(files(), path_, /*anew=*/false)
                  .value()
                  ->Add({.step = 7, .event = {1, 1}})
                  .ok());
  EXPECT_THAT(MergeRecord::Open(files(), path_, /*anew=*/true).value()->merges(), IsEmpty());
  EXPECT_THAT(ReadMergeRecord(files(), path_, /*may_be_absent=*/false).value(), IsEmpty());
}

TEST_F(MergeRecordTest, ALineThatWasCutOffIsLeftOutAndAnyOtherIsRefused) {
  const std::string line = "{\"fragment\":0,\"round\":1,\"step\":4}\n";
  WriteText(path_, line + "{\"fragment\":0,\"rou");
  EXPECT_THAT(ReadMergeRecord(files(), path_, false).value(),
              ElementsAre(RecordedMerge{.step = 4, .event = {0, 1}}));
  const auto record = MergeRecord::Open(files(), path_, /*anew=*/false).value();
  ASSERT_TRUE(record->Add({.step = 5, .event = {1, 1}}).ok());
  EXPECT_EQ(ReadMergeRecord(files(), path_, false).value().size(), 2u);

  for (const char* const bad :
       {"{\"fragment\":0,\"round\":1}\n", "[]\n", "{\"fragment\":-1,\"round\":1,\"step\":4}\n"}) {
    WriteText(path_, bad + line);
    const absl::Status status = ReadMergeRecord(files(), path_, false).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr(":1 is no merge"));
  }
}

TEST_F(MergeRecordTest, ARecordThatIsNotThereIsAnErrorWhereItWasAskedFor) {
  EXPECT_EQ(ReadMergeRecord(files(), path_, false).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ReadMergeRecord(files(), path_, true).value(), IsEmpty());
}

}  // namespace
}  // namespace causeway::worker
