#include "server/store/run_directory_store.h"

#include <string>
#include <vector>

#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/checkpoint_file.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

RunIdentity Identity() {
  RunIdentity identity;
  identity.run_id = "toy-77";
  identity.config.set_run_name("toy");
  return identity;
}

TEST(RunDirectoryStoreTest, ARunLeavesItsConfigurationItsRoundsAndItsEnd) {
  FileSystem& fs = *FileSystem::Real();
  const TemporaryFolder parent;
  const std::string folder = parent.File("run");
  auto store = RunDirectoryStore::Open(fs, folder);
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->BeginRun(Identity()).ok());
  const auto config =
      ParseRunConfig(*fs.ReadFile(JoinPath(folder, "config.textproto")), "config.textproto");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run_name(), "toy");

  RoundRecord record;
  record.fragment = 1;
  record.round = 3;
  record.contributors = {"a", "b"};
  record.weights = {0.25, 0.75};
  record.published_hash = 0xab;
  record.reason = "every expected worker contributed (2)";
  ASSERT_TRUE((*store)->SaveRound(record, {}).ok());
  const std::string rounds = *fs.ReadFile(JoinPath(folder, "rounds.jsonl"));
  const nlohmann::json row = nlohmann::json::parse(rounds);
  EXPECT_EQ(row["round"], 3);
  EXPECT_EQ(row["contributors"], (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(row["published_hash"], "00000000000000ab");

  const std::vector<float> values = {1.0f, 2.0f};
  const std::vector<FragmentView> views = {
      {.fragment = 0, .version = 3, .theta = values, .published = values}};
  ASSERT_TRUE((*store)->SaveSnapshot(views).ok());
  EXPECT_EQ(ReadCheckpoint(fs, JoinPath(folder, "checkpoint.bin"))->identity.run_id, "toy-77");
  ASSERT_TRUE((*store)->SaveSummary({{"rounds", 1}}).ok());
  EXPECT_EQ(nlohmann::json::parse(*fs.ReadFile(JoinPath(folder, "summary.json")))["rounds"], 1);
}

TEST(RunDirectoryStoreTest, ASecondOwnerIsRefused) {
  FileSystem& fs = *FileSystem::Real();
  const TemporaryFolder parent;
  const std::string folder = parent.File("run");
  auto owner = RunDirectoryStore::Open(fs, folder);
  ASSERT_TRUE(owner.ok());
  const absl::Status second = RunDirectoryStore::Open(fs, folder).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.message(), HasSubstr("belongs to another process"));
  owner->reset();
  EXPECT_TRUE(RunDirectoryStore::Open(fs, folder).ok());
}

TEST(RunDirectoryStoreTest, AFolderWithARunIsRefusedByItsName) {
  FileSystem& fs = *FileSystem::Real();
  const TemporaryFolder parent;
  const std::string folder = parent.File("run");
  ASSERT_TRUE((*RunDirectoryStore::Open(fs, folder))->BeginRun(Identity()).ok());
  const absl::Status again = RunDirectoryStore::Open(fs, folder).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(again.message(), HasSubstr("toy-77"));
}

TEST(RunDirectoryStoreTest, AnAbandonedRunFreesItsFolder) {
  FileSystem& fs = *FileSystem::Real();
  const TemporaryFolder parent;
  const std::string folder = parent.File("run");
  {
    auto store = RunDirectoryStore::Open(fs, folder);
    ASSERT_TRUE((*store)->BeginRun(Identity()).ok());
    ASSERT_TRUE((*store)->AbandonRun().ok());
  }
  EXPECT_TRUE(RunDirectoryStore::Open(fs, folder).ok());
}

}  // namespace
}  // namespace causeway::server
