#include "server/store/inspect.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/run_directory_store.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class InspectTest : public testing::Test {
 protected:
  std::unique_ptr<RunDirectoryStore> Live() {
    auto store = RunDirectoryStore::Open(fs_, folder_, {.durable = false});
    EXPECT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE((*store)->Recover().ok());
    for (const ScriptedStep& step : ScriptedLife()) EXPECT_TRUE(step.take(**store).ok());
    EXPECT_TRUE(
        (*store)
            ->SaveContribution(ScriptedContribution(1, 2, "bob"), ScriptedObject(1, 2, "bob"))
            .ok());
    return *std::move(store);
  }
  std::map<std::string, std::string> AllFiles() {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) files[entry.path()] = *fs_.ReadFile(entry.path());
    }
    return files;
  }

  FileSystem& fs_ = *FileSystem::Real();
  const TemporaryFolder parent_;
  const std::string folder_ = parent_.File("run");
};

TEST_F(InspectTest, ARunIsDescribedAndNotChanged) {
  Live();
  const auto before = AllFiles();
  const absl::StatusOr<nlohmann::json> found = InspectRun(fs_, folder_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(AllFiles(), before);
  EXPECT_EQ((*found)["run"]["run_id"], "toy-77");
  EXPECT_EQ((*found)["in_use_by"], "");
  EXPECT_EQ((*found)["state"]["stop_step"], 40);
  EXPECT_EQ((*found)["members"].size(), 2u);
  EXPECT_EQ((*found)["members"][1]["incarnation"], 2);
  ASSERT_EQ((*found)["fragments"].size(), 2u);
  const nlohmann::json& first = (*found)["fragments"][0];
  EXPECT_EQ(first["version"], 3);
  EXPECT_EQ(first["last_round"]["contributors"][0], "alice");
  EXPECT_EQ(first["snapshots"].size(), 2u);
  EXPECT_EQ(first["snapshots"][1]["version"], 3);
  EXPECT_EQ(first["contributions"], 5);
  EXPECT_EQ(first["quarantined"], 1);
  EXPECT_EQ(first["deltas_kept"], 2);
  EXPECT_EQ((*found)["fragments"][1]["waiting"][0]["worker_id"], "bob");
  const std::string text = InspectionText(*found);
  EXPECT_THAT(text, HasSubstr("run toy-77, format version 1"));
  EXPECT_THAT(text, HasSubstr("fragment 1: version 1"));
  EXPECT_THAT(text, HasSubstr("waiting      round 2"));
  EXPECT_THAT(text, HasSubstr("member bob: active, incarnation 2"));
  EXPECT_THAT(text, Not(HasSubstr("in use")));
}

TEST_F(InspectTest, ARunInUseIsDescribedToo) {
  const auto store = Live();
  const auto before = AllFiles();
  const absl::StatusOr<nlohmann::json> found = InspectRun(fs_, folder_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(AllFiles(), before);
  EXPECT_NE((*found)["in_use_by"], "");
  EXPECT_THAT(InspectionText(*found), HasSubstr("in use by process"));
  EXPECT_TRUE(store->SaveRunState({}).ok());
}

TEST_F(InspectTest, WhatTheNextStartWouldRemoveIsNamed) {
  Live();
  const std::string orphan = "deltas/000000000001-f0-r9-carol.delta";
  ASSERT_TRUE(WriteFileAtomically(fs_, JoinPath(folder_, orphan), absl::string_view("cut")).ok());
  const absl::StatusOr<nlohmann::json> found = InspectRun(fs_, folder_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)["orphans"][0], orphan);
  EXPECT_THAT(InspectionText(*found), HasSubstr("orphan " + orphan));
}

TEST_F(InspectTest, DamageIsNamedByTheRunsOwnFile) {
  Live();
  std::string content = *fs_.ReadFile(JoinPath(folder_, "run.db"));
  content.resize(content.size() / 2);
  ASSERT_TRUE(
      WriteFileAtomically(fs_, JoinPath(folder_, "run.db"), absl::string_view(content)).ok());
  const absl::Status status = InspectRun(fs_, folder_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(JoinPath(folder_, "run.db")));
}

TEST_F(InspectTest, AFolderWithoutARunIsNotFound) {
  EXPECT_EQ(InspectRun(fs_, parent_.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(InspectRun(fs_, folder_).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace causeway::server
