#include "server/store/inspect.h"

#include <linux/magic.h>

#include "common/params/draws.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/run_directory.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class InspectTest : public testing::Test {
 protected:
  std::unique_ptr<RunDirectoryStore> Live() {
    auto store = RunDirectoryStore::Open(fs_, folder_, {.durable = false}).value();
    EXPECT_TRUE(store->Recover().ok());
    for (const ScriptedStep& step : ScriptedLife()) EXPECT_TRUE(step.take(*store).ok());
    EXPECT_TRUE(SaveDelta(*store, 1, 2, "bob").ok());
    return store;
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
  const auto found = InspectRun(fs_, folder_).value();
  EXPECT_EQ(AllFiles(), before);
  EXPECT_EQ(found["run"]["run_id"], "toy-77");
  EXPECT_EQ(found["in_use_by"], "");
  EXPECT_EQ(found["state"]["stop_step"], 40);
  EXPECT_EQ(found["members"].size(), 2u);
  EXPECT_EQ(found["members"][1]["incarnation"], 2);
  ASSERT_EQ(found["fragments"].size(), 2u);
  const nlohmann::json& first = found["fragments"][0];
  EXPECT_EQ(first["version"], 3);
  EXPECT_EQ(first["last_round"]["contributors"][0], "alice");
  EXPECT_EQ(first["snapshots"].size(), 2u);
  EXPECT_EQ(first["snapshots"][1]["version"], 3);
  EXPECT_EQ(first["contributions"], 5);
  EXPECT_EQ(first["quarantined"], 1);
  EXPECT_EQ(first["deltas_kept"], 1);  // That of round 3: a quarantined one goes with its round.
  EXPECT_EQ(found["fragments"][1]["waiting"][0]["worker_id"], "bob");
  const std::string text = InspectionText(found);
  EXPECT_THAT(text, HasSubstr("run toy-77, format version 2"));
  EXPECT_THAT(text, HasSubstr("fragment 1: version 1"));
  EXPECT_THAT(text, HasSubstr("waiting      round 2"));
  EXPECT_THAT(text, HasSubstr("member bob: active, incarnation 2"));
  EXPECT_THAT(text, Not(HasSubstr("in use")));
}

TEST_F(InspectTest, ARunInUseIsDescribedToo) {
  const auto store = Live();
  const auto before = AllFiles();
  const auto found = InspectRun(fs_, folder_).value();
  EXPECT_EQ(AllFiles(), before);
  EXPECT_NE(found["in_use_by"], "");
  EXPECT_THAT(InspectionText(found), HasSubstr("in use by process"));
  EXPECT_TRUE(store->SaveRunState({}).ok());
}

// An owner at work while its folder is looked at.
class BusyFileSystem final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) override {
    if (path.ends_with("run.db")) {
      if (before_copy != nullptr) before_copy();
      if (torn_copies > 0 && torn_copies-- > 0) path_of_copy = torn;
    }
    return ForwardingFileSystem::Map(std::exchange(path_of_copy, {}).value_or(path));
  }
  absl::StatusOr<uint64_t> FileSize(const std::string& path) override {
    if (after_copy != nullptr) std::exchange(after_copy, nullptr)();
    return ForwardingFileSystem::FileSize(path);
  }
  std::function<void()> before_copy;
  std::function<void()> after_copy;
  int torn_copies = 0;
  std::string torn;  // Is read in place of the database that often.

 private:
  std::optional<std::string> path_of_copy;
};

TEST_F(InspectTest, ARunThatGoesOnWhileItIsInspectedIsNotCalledDamaged) {
  const auto store = Live();
  BusyFileSystem busy(fs_);
  int64_t round = 2;
  const auto go_on = [&] {
    ASSERT_TRUE(SaveDelta(*store, 1, round, "carol").ok());
    ASSERT_TRUE(SaveMerged(*store, 1, round).ok());
    // The answer before goes.
    ASSERT_TRUE(store->ForgetAnswers(1, round).ok());
    ASSERT_TRUE(store->SaveRunState(v1::State()).ok());
    ++round;
  };
  busy.before_copy = go_on;
  busy.after_copy = go_on;
  const auto never = [](absl::Duration) { FAIL() << "the first try succeeds"; };
  const auto found = InspectRun(busy, folder_, never).value();
  EXPECT_EQ(round, 5);
  // Rounds 2 and 3 were before the copy (the header is read earlier), round 4 after it.
  EXPECT_EQ(found["fragments"][1]["version"], 3);
  EXPECT_TRUE(found["orphans"].is_null());
  EXPECT_THAT(InspectionText(found), Not(HasSubstr("orphan")));
}

TEST_F(InspectTest, ATornCopyIsTriedAgainAfterAPause) {
  Live();  // Closed, so that the database itself holds all.
  const auto store = RunDirectoryStore::Open(fs_, folder_, {.durable = false}).value();
  BusyFileSystem busy(fs_);
  busy.torn = parent_.File("torn");
  std::string content = *fs_.ReadFile(JoinPath(folder_, "run.db"));
  content.resize(content.size() / 2);
  WriteText(busy.torn, content);
  int pauses = 0;
  const auto pause = [&](absl::Duration duration) {
    EXPECT_GT(duration, absl::ZeroDuration());
    ++pauses;
    busy.torn_copies = 0;
  };
  // The header is read before the copy.
  busy.before_copy = [&] { busy.torn_copies = pauses == 0 ? 1 : 0; };
  absl::StatusOr<nlohmann::json> found = InspectRun(busy, folder_, pause);
  EXPECT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(pauses, 1);
  busy.before_copy = [&] { busy.torn_copies = 1; };
  found = InspectRun(busy, folder_, pause);
  EXPECT_THAT(found, StatusIs(kUnavailable, HasSubstr("try again")));
  EXPECT_EQ(pauses, 10);
}

TEST_F(InspectTest, WhatTheNextStartWouldRemoveIsNamed) {
  Live();
  const std::string orphan = "deltas/000000000001-f0-r9-carol.delta";
  WriteText(JoinPath(folder_, orphan), "cut");
  const auto found = InspectRun(fs_, folder_).value();
  EXPECT_EQ(found["orphans"][0], orphan);
  EXPECT_THAT(InspectionText(found), HasSubstr("orphan " + orphan));
}

TEST_F(InspectTest, DamageIsNamedByTheRunsOwnFile) {
  Live();
  std::string content = *fs_.ReadFile(JoinPath(folder_, "run.db"));
  content.resize(content.size() / 2);
  WriteText(JoinPath(folder_, "run.db"), content);
  EXPECT_THAT(InspectRun(fs_, folder_),
              StatusIs(kDataLoss, HasSubstr(JoinPath(folder_, "run.db"))));
}

TEST_F(InspectTest, AFolderWithoutARunIsNotFound) {
  EXPECT_THAT(InspectRun(fs_, parent_.path()), StatusIs(kNotFound));
  EXPECT_THAT(InspectRun(fs_, folder_), StatusIs(kNotFound));
}

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

v1::Contribution Record(int fragment, int64_t round, const std::string& worker,
                        const Draws& draws) {
  v1::Contribution record;
  v1::PushHeader& header = *record.mutable_header();
  header.set_fragment(fragment);
  header.set_round(round);
  header.set_worker_id(worker);
  DrawsToProto(draws, header.mutable_draws());
  return record;
}

TEST(DrawReport, FragmentsThatSawTheSameWindowsCountThemOnce) {
  const nlohmann::json report =
      ReportDraws({Record(0, 1, "a", {{0, 0, 8}}), Record(0, 2, "a", {{0, 8, 16}}),
                   Record(1, 1, "a", {{0, 0, 12}}), Record(0, 1, "b", {{1, 0, 8}})});
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[0]["data_slot"], 0);
  EXPECT_TRUE(report[0]["worker_id"].is_null());
  EXPECT_EQ(report[0]["next_draw"], 16);
  EXPECT_EQ(report[0]["skipped"], 0);
  EXPECT_EQ(report[0]["repeated"], 0);
  ASSERT_EQ(report[0]["trained_by"].size(), 1u);
  EXPECT_EQ(report[0]["trained_by"][0]["worker_id"], "a");
  EXPECT_EQ(report[0]["trained_by"][0]["draws"], "0:0-16");
  EXPECT_EQ(report[0]["trained_by"][0]["count"], 16);
}

TEST(DrawReport, WhatIsTakenOverRepeatedOrSkippedIsSaid) {
  const nlohmann::json report =
      ReportDraws({Record(0, 1, "a", {{0, 0, 8}}), Record(0, 2, "b", {{0, 6, 10}, {0, 12, 16}})});
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0]["trained_by"].size(), 2u);
  EXPECT_EQ(report[0]["trained_by"][1]["draws"], "0:6-10 0:12-16");
  EXPECT_EQ(report[0]["repeated"], 2);
  EXPECT_EQ(report[0]["skipped"], 2);
  EXPECT_EQ(report[0]["next_draw"], 16);
}

TEST(DrawReport, EachSitesOwnDataAreAPartForThemselves) {
  const nlohmann::json report =
      ReportDraws({Record(0, 1, "a", {{kOwnData, 0, 8}}), Record(0, 1, "b", {{kOwnData, 0, 8}})});
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[0]["worker_id"], "a");
  EXPECT_EQ(report[1]["worker_id"], "b");
  EXPECT_EQ(report[1]["repeated"], 0);
}

}  // namespace
}  // namespace causeway::server
