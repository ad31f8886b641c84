// The store's messages when something is wrong with its disk or its folder.

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/store/fault_disk_vfs.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

using Loss = FaultDisk::Loss;

constexpr char kFolder[] = "/disk/run";

std::string Path(const std::string& name) { return JoinPath(kFolder, name); }

class StoreRefusalsTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<RunDirectoryStore>> Open() {
    return RunDirectoryStore::Open(disk_, kFolder, {.sqlite_vfs = vfs_.name()});
  }
  std::unique_ptr<RunDirectoryStore> Begin() {
    return BeginScriptedRun(disk_, kFolder, {.sqlite_vfs = vfs_.name()});
  }
  absl::Status Recover() {
    auto store = Open();
    if (!store.ok()) return store.status();
    return (*store)->Recover().status();
  }
  // The files below one folder of the run.
  std::vector<std::string> Names(const std::string& folder) {
    std::vector<std::string> names;
    for (const std::string& path : disk_.Files()) {
      if (absl::StartsWith(path, Path(folder) + "/")) names.push_back(path);
    }
    return names;
  }

  FaultDisk disk_;
  const FaultDiskVfs vfs_{disk_};
};

TEST_F(StoreRefusalsTest, AFullDiskRefusesADeltaAndTheRunGoesOnWhenThereIsRoom) {
  const auto store = Begin();
  ASSERT_TRUE(SaveDelta(*store, 0, 1, "alice").ok());
  disk_.SetCapacity(0);
  EXPECT_THAT(SaveDelta(*store, 0, 1, "bob"),
              StatusIs(kResourceExhausted, AllOf(HasSubstr(kFolder), HasSubstr("make room"))));
  EXPECT_THAT(Names("deltas"), SizeIs(1));
  disk_.SetCapacity(uint64_t{1} << 30);
  EXPECT_TRUE(SaveDelta(*store, 0, 1, "bob").ok());
  EXPECT_TRUE(SaveMerged(*store, 0, 1).ok());
}

TEST_F(StoreRefusalsTest, AFullDiskHasRoomForWhatGoesOnFromTheLastContribution) {
  const uint64_t spare = RunDirectoryStore::SpareBytesFor(uint64_t{5} << 20);
  EXPECT_EQ(spare, (uint64_t{16} << 20) + (uint64_t{100} << 20));
  const auto begun =
      BeginScriptedRun(disk_, kFolder, {.spare_bytes = spare, .sqlite_vfs = vfs_.name()});
  RunDirectoryStore& store = *begun;
  ASSERT_TRUE(SaveDelta(store, 0, 1, "alice").ok());
  disk_.SetCapacity(disk_.UsedBytes() + spare);
  EXPECT_THAT(SaveDelta(store, 0, 1, "bob"), StatusIs(kResourceExhausted));
  const std::vector<uint8_t> answer(size_t{20} << 20);
  EXPECT_TRUE(store.SaveRound(ScriptedRound(0, 1), answer).ok());
  const std::vector<float> state(size_t{5} << 20);
  const absl::Status saved = store.SaveSnapshot({.fragment = 0,
                                                 .version = 1,
                                                 .theta = state,
                                                 .published = state,
                                                 .optimizer = {{"m", state}, {"v", state}}});
  EXPECT_TRUE(saved.ok()) << saved;
  disk_.SetCapacity(uint64_t{1} << 40);
  EXPECT_TRUE(SaveDelta(store, 0, 2, "bob").ok());
}

TEST_F(StoreRefusalsTest, ARunIsReadFromADiskThatCannotBeWritten) {
  {
    const auto store = Begin();
    ASSERT_TRUE(SaveDelta(*store, 0, 1, "alice").ok());
    ASSERT_TRUE(SaveMerged(*store, 0, 1).ok());
    ASSERT_TRUE(SaveDelta(*store, 0, 2, "alice").ok());
  }
  disk_.SetReadOnly(true);
  EXPECT_THAT(Recover(), StatusIs(kPermissionDenied));
  auto opened =
      RunDirectoryStore::Open(disk_, kFolder, {.retain_deltas = true, .read_only = true}).value();
  RunDirectoryStore& store = *opened;
  const auto run = store.Recover().value();
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->rounds.size(), 1u);
  EXPECT_EQ(run->contributions.size(), 2u);
  EXPECT_EQ(*store.ReadContribution(0, 2, "alice"), ScriptedObject(0, 2, "alice"));
  EXPECT_EQ(*store.ReadAnswer(0, 1), ScriptedObject(0, 1, "answer"));
}

TEST_F(StoreRefusalsTest, ARunThatSomebodyServesIsNotReadMeanwhile) {
  const auto owner = Begin();
  EXPECT_THAT(RunDirectoryStore::Open(disk_, kFolder, {.read_only = true}),
              StatusIs(kFailedPrecondition, HasSubstr("belongs to another process")));
}

TEST_F(StoreRefusalsTest, TheSpareOfAHugeModelIsMoreThanAnyDiskHas) {
  EXPECT_EQ(RunDirectoryStore::SpareBytesFor(uint64_t{1} << 62), ~uint64_t{0});
  EXPECT_EQ(RunDirectoryStore::SpareBytesFor(0), RunDirectoryStore::kLeastSpareBytes);
}

TEST_F(StoreRefusalsTest, ANewRunDirectoryOutlivesAPowerLossWithAllItsParents) {
  for (const char* folder : {"/disk/runs/of/first", "/disk/more/second//"}) {
    BeginScriptedRun(disk_, folder, {.sqlite_vfs = vfs_.name()});
    disk_.Crash(Loss::kEverythingUnsynced, 0);
    const auto store =
        RunDirectoryStore::Open(disk_, folder, {.read_only = true, .sqlite_vfs = vfs_.name()});
    EXPECT_TRUE(store.ok()) << store.status();
  }
}

// The folder was made, and then its process ended before it was durable.
TEST_F(StoreRefusalsTest, AFolderThatWasMadeBeforeIsMadeDurableForANewRun) {
  ASSERT_TRUE(CreateFoldersDurably(disk_, "/disk").ok());
  ASSERT_TRUE(disk_.CreateFolders(kFolder).ok());
  Begin();
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_TRUE(disk_.Exists(Path("run.db")));
}

TEST_F(StoreRefusalsTest, ACutDatabaseIsDamagedAndTheMessageSaysWhatToDo) {
  {
    const auto store = Begin();
    ASSERT_TRUE(SaveDelta(*store, 0, 1, "alice").ok());
  }
  const size_t size = disk_.Content(Path("run.db")).size();
  for (const size_t left : {size_t{50}, size_t{150}, size_t{4096}, size / 2}) {
    const auto cut = disk_.Clone();
    const FaultDiskVfs vfs(*cut);
    cut->Damage(Path("run.db"), [&](std::string& content) { content.resize(left); });
    auto store = RunDirectoryStore::Open(*cut, kFolder, {.sqlite_vfs = vfs.name()});
    const absl::Status status = store.ok() ? (*store)->Recover().status() : store.status();
    EXPECT_THAT(status,
                StatusIs(kDataLoss, AllOf(HasSubstr(Path("run.db") + " is damaged"),
                                          HasSubstr("formats.md"), Not(HasSubstr("PRAGMA")))))
        << left;
  }
}

// Only a sync that fails leaves unknown what the disk holds; then the store stops.
TEST_F(StoreRefusalsTest, ADiskThatFillsUpAnywhereInADeltaLeavesNothingOfIt) {
  auto store = Begin();
  int refused = 0;
  int stopped = 0;
  bool failed = true;
  for (int64_t call = 0; failed || call < 10; ++call) {
    disk_.FailCall(call, FaultDisk::Fault::kDiskFull);
    const absl::Status status = SaveDelta(*store, 0, call + 1, "alice");
    const std::string failed_call = disk_.failed_call();
    failed = !failed_call.empty();
    disk_.FailCall(-1, FaultDisk::Fault::kDiskFull);
    if (!failed) {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    if (absl::StartsWith(failed_call, "sync") || absl::StrContains(failed_call, "COMMITS")) {
      EXPECT_THAT(status, StatusIs(kInternal)) << failed_call << ": " << status;
      EXPECT_EQ(store->SaveRunState({}), status);
      ++stopped;
      store = nullptr;
      disk_.Crash(Loss::kNothing, 0);
      store = *Open();
      ASSERT_TRUE(store->Recover().ok());
      continue;
    }
    ++refused;
    EXPECT_THAT(status, StatusIs(kResourceExhausted)) << failed_call << ": " << status;
    EXPECT_THAT(store->ReadContribution(0, call + 1, "alice"), StatusIs(kNotFound));
    for (const std::string& name : Names("deltas")) EXPECT_FALSE(absl::EndsWith(name, ".tmp"));
    EXPECT_TRUE(SaveDelta(*store, 0, call + 1, "alice").ok()) << failed_call;
  }
  EXPECT_GE(refused, 6);
  EXPECT_GE(stopped, 4);
}

TEST_F(StoreRefusalsTest, AfterAFailedSyncNothingSucceedsUntilTheNextOpening) {
  auto store = Begin();
  ASSERT_TRUE(SaveDelta(*store, 0, 1, "alice").ok());
  absl::Status failure;
  for (int64_t call = 0; failure.ok() || !absl::StartsWith(disk_.failed_call(), "sync"); ++call) {
    disk_.FailCall(call, FaultDisk::Fault::kInputOutput);
    failure = store->SaveRunState(v1::State());
    if (!failure.ok()) break;
  }
  ASSERT_FALSE(failure.ok());
  disk_.FailCall(-1, FaultDisk::Fault::kInputOutput);
  EXPECT_EQ(SaveDelta(*store, 0, 1, "bob"), failure);
  EXPECT_EQ(store->SaveMembers(std::array{ScriptedMember("bob", 1)}), failure);
  EXPECT_EQ(store->ReadContribution(0, 1, "alice").status(), failure);
  EXPECT_EQ(store->ForgetAnswers(0, 1), failure);
  store = nullptr;
  disk_.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_TRUE(Recover().ok());
}

TEST_F(StoreRefusalsTest, AReadOnlyDiskIsNamed) {
  disk_.SetReadOnly(true);
  EXPECT_THAT(Open(), StatusIs(kPermissionDenied, HasSubstr(kFolder)));
}

TEST_F(StoreRefusalsTest, ANewerFormatIsRefusedByItsNumberAndNothingIsWritten) {
  Begin();
  disk_.Damage(Path("run.db"), [](std::string& content) { content[63] = 3; });
  const auto all = [&] {
    std::vector<std::string> files;
    for (const std::string& path : disk_.Files()) files.push_back(path + disk_.Content(path));
    return files;
  };
  const std::vector<std::string> before = all();
  EXPECT_THAT(Open(), StatusIs(kFailedPrecondition,
                               AllOf(HasSubstr(Path("run.db")), HasSubstr("format version 3"),
                                     HasSubstr("reads version 2"))));
  EXPECT_EQ(all(), before);
}

TEST_F(StoreRefusalsTest, ACorruptDeltaIsNamedWhenItIsRead) {
  auto store = Begin();
  ASSERT_TRUE(SaveDelta(*store, 0, 1, "alice").ok());
  const std::string delta = Names("deltas")[0];
  disk_.Damage(delta, [](std::string& content) { content[content.size() - 20] ^= 1; });
  const absl::Status status = store->ReadContribution(0, 1, "alice").status();
  EXPECT_THAT(status, StatusIs(kDataLoss));
  const size_t size = disk_.Content(delta).size();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(delta), HasSubstr(absl::StrCat("has ", size, " bytes")),
                    HasSubstr(absl::StrCat("from offset ", size - 8)),
                    HasSubstr("see Repair in docs/formats.md")));
}

TEST_F(StoreRefusalsTest, ADeltaInThePlaceOfAnotherIsNoticed) {
  auto store = Begin();
  ASSERT_TRUE(SaveDelta(*store, 0, 1, "alice").ok());
  ASSERT_TRUE(SaveDelta(*store, 0, 2, "alice").ok());
  const std::vector<std::string> deltas = Names("deltas");
  const std::string other = disk_.Content(deltas[1]);
  disk_.Damage(deltas[0], [&](std::string& content) { content = other; });
  EXPECT_THAT(store->ReadContribution(0, 1, "alice"),
              StatusIs(kDataLoss, AllOf(HasSubstr(deltas[0]), HasSubstr("another blob"))));
}

TEST_F(StoreRefusalsTest, AMissingDeltaIsNamedAtTheStart) {
  ASSERT_TRUE(SaveDelta(*Begin(), 0, 1, "alice").ok());
  const std::string delta = Names("deltas")[0];
  ASSERT_TRUE(disk_.Remove(delta).ok());
  EXPECT_THAT(Recover(), StatusIs(kDataLoss, AllOf(HasSubstr(delta), HasSubstr("is missing"))));
}

TEST_F(StoreRefusalsTest, AMissingDatabaseIsNoNewRun) {
  Begin();
  ASSERT_TRUE(disk_.Remove(Path("run.db")).ok());
  EXPECT_THAT(Recover(),
              StatusIs(kDataLoss, AllOf(HasSubstr(Path("run.db")), HasSubstr("is missing"))));
}

// The log ends silently at a damaged frame. A refusal must leave the evidence where it is.
TEST_F(StoreRefusalsTest, LostCommitsAreRefusedAgainAndAgain) {
  auto store = Begin();
  ASSERT_TRUE(SaveDelta(*store, 0, 1, "alice").ok());
  ASSERT_TRUE(store->SaveMembers(std::array{ScriptedMember("bob", 1)}).ok());
  disk_.Crash(Loss::kNothing, 0);
  const auto died = disk_.Clone();
  store = nullptr;
  died->Damage(Path("run.db-wal"), [](std::string& content) { content[40] ^= 1; });
  const std::string log = died->Content(Path("run.db-wal"));
  const FaultDiskVfs vfs(*died);
  for (const bool witness : {true, false}) {
    if (!witness) {
      // Without the witness, a blob's name still tells: commit 2 was known when it was written.
      ASSERT_TRUE(died->Remove(Path("COMMITS")).ok());
      ASSERT_TRUE(died->Rename(Path("deltas/000000000001-f0-r1-alice.delta"),
                               Path("deltas/000000000002-f0-r1-alice.delta"))
                      .ok());
    }
    for (int opening = 0; opening < 2; ++opening) {
      auto opened = RunDirectoryStore::Open(*died, kFolder, {.sqlite_vfs = vfs.name()}).value();
      EXPECT_THAT(opened->Recover(), StatusIs(kDataLoss, HasSubstr("has lost commits")));
      opened.reset();
      EXPECT_EQ(died->Content(Path("run.db-wal")), log);
    }
  }
}

}  // namespace
}  // namespace causeway::server
