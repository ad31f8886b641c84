#include "server/store/run_directory_store.h"

#include "absl/strings/match.h"
#include "common/params/draws.h"
#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "server/store/inspect.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

using Options = RunDirectoryStore::Options;

class RunDirectoryStoreTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<RunDirectoryStore>> Open(const Options& options = {}) {
    return RunDirectoryStore::Open(fs_, folder_, options);
  }
  // Opens the store of a new run.
  std::unique_ptr<RunDirectoryStore> Begin(const Options& options = {}) {
    return BeginScriptedRun(fs_, folder_, options);
  }
  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }
  std::vector<std::string> Names(const std::string& name) { return *fs_.List(Path(name)); }

  FileSystem& fs_ = *FileSystem::Real();
  const TemporaryFolder parent_;
  const std::string folder_ = parent_.File("run");
};

void Publish(Store& store, int fragment, int64_t round) {
  for (const char* worker : {"alice", "bob"}) {
    ASSERT_TRUE(SaveDelta(store, fragment, round, worker).ok());
  }
  ASSERT_TRUE(SaveMerged(store, fragment, round).ok());
}

// Rounds 1 to `rounds` of fragment 0, each with a snapshot.
void PublishWithSnapshots(Store& store, int64_t rounds) {
  for (int64_t round = 1; round <= rounds; ++round) {
    Publish(store, 0, round);
    ASSERT_TRUE(SaveTinySnapshot(store, 0, round).ok());
  }
}

TEST_F(RunDirectoryStoreTest, RecoveryTellsOfRecentContributionsAndTheNewestOfEachWorker) {
  constexpr int64_t kRounds = 20;
  const Options options = {.snapshots_kept = 1, .recovered_rounds = 4};
  {
    const auto store = Begin(options);
    ASSERT_TRUE(SaveDelta(*store, 0, 1, "carol").ok());
    // One that was given another part; what it had of the former one is told by no later delta.
    v1::Contribution moved = ScriptedContribution(0, 2, "dave");
    DrawsToProto({{5, 0, 8}, {6, 0, 8}}, moved.mutable_header()->mutable_draws());
    ASSERT_TRUE(store->SaveContribution(moved, ScriptedObject(0, 2, "dave")).ok());
    v1::Contribution back = ScriptedContribution(0, 3, "dave");
    DrawsToProto({{5, 8, 16}}, back.mutable_header()->mutable_draws());
    ASSERT_TRUE(store->SaveContribution(back, ScriptedObject(0, 3, "dave")).ok());
    for (int64_t round = 1; round <= kRounds; ++round) Publish(*store, 0, round);
    ASSERT_TRUE(SaveTinySnapshot(*store, 0, 10).ok());
  }
  const auto told = [&](const Options& with) {
    std::vector<std::string> contributions;
    const auto store = *Open(with);
    const auto run = store->Recover();
    EXPECT_TRUE(run.ok()) << run.status();
    if (!run.ok()) return contributions;
    for (const v1::Contribution& record : (*run)->contributions) {
      contributions.push_back(
          absl::StrCat(record.header().round(), " ", record.header().worker_id()));
    }
    return contributions;
  };
  // Deltas after the snapshot are there still, and all that goes with them.
  std::vector<std::string> expected = {"1 carol", "2 dave", "3 dave"};
  for (int64_t round = 10; round <= kRounds; ++round) {
    for (const char* worker : {"alice", "bob"}) {
      expected.push_back(absl::StrCat(round, " ", worker));
    }
  }
  EXPECT_EQ(told(options), expected);
  EXPECT_THAT(told({.snapshots_kept = 1, .recovered_rounds = kRounds}), SizeIs(2 * kRounds + 3));
  // One of those that are not told of is lost.
  {
    auto database = SqliteDatabase::Open(Path("run.db"), {});
    ASSERT_TRUE((*database)
                    ->Execute("DELETE FROM records WHERE key GLOB 'contribution/*/000000000005/*'")
                    .ok());
  }
  EXPECT_THAT((*Open(options))->Recover(), StatusIs(kDataLoss));
}

// A disk that loses the end of a file as soon as somebody has mapped it.
class FailingDisk final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) override {
    auto file = ForwardingFileSystem::Map(path);
    if (path.ends_with(".delta")) std::filesystem::resize_file(path, 0);
    return file;
  }
  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    if (path.ends_with(".delta")) return absl::DataLossError(path + ": the disk cannot read it");
    return ForwardingFileSystem::ReadFile(path);
  }
};

TEST_F(RunDirectoryStoreTest, ADiskThatCannotReadADeltaDoesNotEndTheProcess) {
  FailingDisk disk(fs_);
  const auto store = BeginScriptedRun(disk, folder_);
  Publish(*store, 0, 1);
  EXPECT_THAT(store->ReadContribution(0, 1, "alice"), StatusIs(kDataLoss));
  EXPECT_TRUE(store->ReadAnswer(0, 1).ok()) << "the others can be read";
}

TEST_F(RunDirectoryStoreTest, ARunLeavesFilesForPeople) {
  const auto store = Begin();
  const auto config =
      ParseRunConfig(*fs_.ReadFile(Path("config.textproto")), "config.textproto").value();
  EXPECT_EQ(config.run_name(), "toy");
  Publish(*store, 1, 1);
  const nlohmann::json row = nlohmann::json::parse(*fs_.ReadFile(Path("rounds.jsonl")));
  EXPECT_EQ(row["round"], 1);
  EXPECT_EQ(row["contributors"], (std::vector<std::string>{"alice", "bob"}));
  EXPECT_EQ(row["published_hash"], "1000000000000001");
  ASSERT_TRUE(store->SaveSummary({{"rounds", 1}}).ok());
  EXPECT_EQ(nlohmann::json::parse(*fs_.ReadFile(Path("summary.json")))["rounds"], 1);
}

TEST_F(RunDirectoryStoreTest, ARunOfTheFormerLayoutIsRefusedByItsName) {
  ASSERT_TRUE(fs_.CreateFolders(folder_).ok());
  WriteText(Path("run.json"), R"({"format_version": 1, "run_id": "old-5"})");
  EXPECT_THAT(Open(), StatusIs(kFailedPrecondition,
                               AllOf(HasSubstr("old-5"), HasSubstr("former version"))));
  EXPECT_THAT(*fs_.List(folder_), ElementsAre("run.json"));
}

// A release that had shards kept 0 for the hash of what another folder held.
TEST_F(RunDirectoryStoreTest, AFolderWithSomeFragmentsAloneIsRefusedAndStaysAsItIs) {
  {
    auto store = Open();
    ASSERT_TRUE((*store)->Recover().ok());
    v1::RunIdentity identity = ScriptedIdentity();
    identity.set_initial_hashes(1, 0);
    ASSERT_TRUE((*store)->BeginRun(identity).ok());
  }
  WriteText(Path("shards.json"), "{\"shards\": []}");
  const auto names = *fs_.List(folder_);
  EXPECT_THAT((*Open())->Recover(),
              StatusIs(kFailedPrecondition,
                       AllOf(HasSubstr("has 1 of the 2 fragments of run "), HasSubstr("--shards"),
                             HasSubstr("begin a run with them (--initial)"))));
  EXPECT_THAT(*fs_.List(folder_), IsSupersetOf(names));
}

// A release that kept deltas in memory named their folder in a file.
TEST_F(RunDirectoryStoreTest, AFolderWhoseDeltasMayBeInMemoryIsRefusedUntilTheyAreOnTheDisk) {
  Publish(*Begin(), 0, 1);
  WriteText(Path("DELTAS_IN"), "/dev/shm/causeway/a\n");
  const absl::Status status = Open().status();
  EXPECT_THAT(status, StatusIs(kFailedPrecondition,
                               HasSubstr("in memory, in /dev/shm/causeway/a. End it in order")));
  EXPECT_THAT(InspectRun(fs_, folder_).status().message(), HasSubstr("End it in order"));
  ASSERT_TRUE(fs_.Remove(Path("DELTAS_IN")).ok());
  EXPECT_EQ((*(*Open())->Recover())->rounds.size(), 1);
}

TEST_F(RunDirectoryStoreTest, AnAbandonedRunFreesItsFolder) {
  ASSERT_TRUE(Begin()->AbandonRun().ok());
  const auto store = Open().value();
  EXPECT_FALSE(store->Recover()->has_value());
  EXPECT_TRUE(store->BeginRun(ScriptedIdentity()).ok());
}

TEST_F(RunDirectoryStoreTest, TwoSnapshotsAreKeptAndTheDeltasThatTheOlderNeeds) {
  const auto store = Begin();
  PublishWithSnapshots(*store, 4);
  EXPECT_THAT(Names("snapshots"), SizeIs(2));
  EXPECT_TRUE(absl::IsNotFound(store->ReadSnapshot(0, 2).status()));
  EXPECT_TRUE(store->ReadSnapshot(0, 3).ok());
  EXPECT_TRUE(store->ReadSnapshot(0, 4).ok());
  // The snapshot of version 3 needs the deltas of round 4.
  EXPECT_THAT(Names("deltas"), SizeIs(2));
  EXPECT_TRUE(absl::IsNotFound(store->ReadContribution(0, 3, "alice").status()));
  EXPECT_TRUE(store->ReadContribution(0, 4, "alice").ok());
}

TEST_F(RunDirectoryStoreTest, AllDeltasStayWhereTheyAreToBeRetained) {
  const auto store = Begin({.retain_deltas = true});
  PublishWithSnapshots(*store, 4);
  EXPECT_THAT(Names("snapshots"), SizeIs(2));
  EXPECT_THAT(Names("deltas"), SizeIs(8));
}

TEST_F(RunDirectoryStoreTest, AQuarantinedDeltaStaysAsLongAsTheOthersOfItsRound) {
  const auto store = Begin({.snapshots_kept = 1});
  v1::Contribution record = ScriptedContribution(0, 1, "mallory");
  record.set_quarantined(true);
  ASSERT_TRUE(store->SaveContribution(record, ScriptedObject(0, 1, "mallory")).ok());
  Publish(*store, 0, 1);
  EXPECT_EQ(*store->ReadContribution(0, 1, "mallory"), ScriptedObject(0, 1, "mallory"));
  ASSERT_TRUE(SaveTinySnapshot(*store, 0, 1).ok());
  EXPECT_THAT(Names("deltas"), SizeIs(0)) << "nobody fills the disk with what is not merged";
}

TEST_F(RunDirectoryStoreTest, ADamagedSnapshotIsDroppedWithItsFile) {
  const auto store = Begin();
  PublishWithSnapshots(*store, 2);
  ASSERT_TRUE(store->DropSnapshot(0, 2).ok());
  EXPECT_THAT(Names("snapshots"), SizeIs(1));
  EXPECT_TRUE(absl::IsNotFound(store->ReadSnapshot(0, 2).status()));
  EXPECT_TRUE(store->ReadSnapshot(0, 1).ok());
  EXPECT_TRUE(SaveTinySnapshot(*store, 0, 2).ok()) << "it may be saved again";
  EXPECT_THAT(Names("snapshots"), SizeIs(2));
}

TEST_F(RunDirectoryStoreTest, EveryTakeOverHasALargerNumberAndSeveralMembersAreOneCommit) {
  const auto store = Begin();
  const int64_t first = store->TakeOver().value();
  const int64_t second = store->TakeOver().value();
  EXPECT_GT(second, first);
  std::vector<v1::Member> members(2);
  members[0].set_worker_id("a");
  members[1].set_worker_id("b");
  ASSERT_TRUE(store->SaveMembers(members).ok());
  EXPECT_EQ(store->TakeOver().value(), second + 2);
}

TEST_F(RunDirectoryStoreTest, ForgottenAnswersLeaveTheDiskWithTheNextCommit) {
  const auto store = Begin();
  Publish(*store, 0, 1);
  Publish(*store, 0, 2);
  ASSERT_TRUE(store->ForgetAnswers(0, 2).ok());
  ASSERT_TRUE(store->SaveRunState(v1::State()).ok());
  EXPECT_THAT(Names("answers"), SizeIs(1));
}

TEST_F(RunDirectoryStoreTest, WhatDoesNotFitIsRefusedAndWhatIsThereStays) {
  const auto store = Begin();
  Publish(*store, 0, 1);
  EXPECT_THAT(store->SaveContribution(ScriptedContribution(0, 1, "alice"), {}),
              StatusIs(kAlreadyExists));
  EXPECT_EQ(*store->ReadContribution(0, 1, "alice"), ScriptedObject(0, 1, "alice"));
  EXPECT_THAT(Names("deltas"), SizeIs(2));
  EXPECT_THAT(store->SaveContribution(ScriptedContribution(0, 1, "../alice"), {}),
              StatusIs(kInvalidArgument));
  Publish(*store, 0, 2);
  EXPECT_THAT(store->SaveRound(ScriptedRound(0, 4), {}), StatusIs(kFailedPrecondition)) << "a gap";
  EXPECT_THAT(store->SaveRound(ScriptedRound(0, 3), {}), StatusIs(kFailedPrecondition))
      << "the store has stopped";
}

TEST_F(RunDirectoryStoreTest, RoundsForPeopleAreRebuiltFromTheDatabase) {
  {
    const auto store = Begin();
    Publish(*store, 1, 1);
    Publish(*store, 0, 1);
  }
  const std::string whole = *fs_.ReadFile(Path("rounds.jsonl"));
  const std::string cut = whole.substr(0, whole.size() / 2);
  WriteText(Path("rounds.jsonl"), cut);
  const auto store = Open();
  ASSERT_TRUE((*store)->Recover().ok());
  EXPECT_EQ(*fs_.ReadFile(Path("rounds.jsonl")), whole);
  Publish(**store, 0, 2);
  EXPECT_TRUE(absl::StartsWith(*fs_.ReadFile(Path("rounds.jsonl")), whole));
}

TEST_F(RunDirectoryStoreTest, OnlyWhatThisProgramWasWritingIsRemoved) {
  const std::vector<std::string> own = {"run.db.tmp",
                                        "run.db.tmp-wal",
                                        "COMMITS.tmp",
                                        "config.textproto.tmp",
                                        "rounds.jsonl.tmp",
                                        "summary.json.tmp",
                                        "report.html.tmp",
                                        "deltas/000000000001-f0-r2-carol-2.delta.tmp",
                                        "answers/000000000001-f0-r2.answer.tmp",
                                        "snapshots/000000000001-f0-v2.snapshot.tmp"};
  const std::vector<std::string> others = {"thesis.tmp",
                                           "run.db.tmp-notes",
                                           "run.dbx.tmp",
                                           "deltas/notes.tmp",
                                           "deltas/000000000001-f0-r2.answer.tmp",
                                           "deltas/000000000001-plan.delta",
                                           "answers/-00000000001-f0-r2.answer.tmp",
                                           "snapshots/000000000001-f0-r2.snapshot.tmp"};
  const std::vector<std::string> folders = {"cache.tmp", "events.tmp/summary.json.tmp",
                                            "answers/000000000002-f0-r2.answer.tmp"};
  // A crash leaves it between a blob and its row.
  const std::string orphan = "deltas/000000000001-f0-r2-carol.delta";
  for (const bool run : {false, true}) {
    if (run) {
      Publish(*Begin(), 0, 1);
      WriteText(Path(orphan), "cut");
    }
    for (const char* name : {"deltas", "answers", "snapshots"}) {
      ASSERT_TRUE(fs_.CreateFolders(Path(name)).ok());
    }
    for (const std::string& name : folders) ASSERT_TRUE(fs_.CreateFolders(Path(name)).ok());
    for (const auto* names : {&own, &others}) {
      for (const std::string& name : *names) {
        ASSERT_TRUE(fs_.Create(Path(name)).ok()) << name;
      }
    }
    const auto store = Open().value();
    const auto recovered = store->Recover().value();
    for (const std::string& name : own) EXPECT_FALSE(fs_.Exists(Path(name))) << name;
    EXPECT_FALSE(fs_.Exists(Path(orphan)));
    EXPECT_EQ(run && store->ReadContribution(0, 1, "alice").ok(), run);
    for (const std::string& name : others) EXPECT_TRUE(fs_.Exists(Path(name))) << name;
    for (const std::string& name : folders) EXPECT_TRUE(fs_.IsFolder(Path(name))) << name;
  }
}

TEST_F(RunDirectoryStoreTest, AFolderWithoutARunIsNotTouchedWhereARunMustExist) {
  const Options options = {.read_only = true};
  EXPECT_THAT(Open(options), StatusIs(kNotFound));
  EXPECT_FALSE(fs_.Exists(folder_));
  ASSERT_TRUE(fs_.CreateFolders(folder_).ok());
  ASSERT_TRUE(fs_.Create(Path("summary.json.tmp")).ok());
  EXPECT_THAT(Open(options), StatusIs(kNotFound, HasSubstr("holds no run")));
  EXPECT_THAT(*fs_.List(folder_), ElementsAre("summary.json.tmp"));
  Begin();
  EXPECT_TRUE(Open(options).ok());
}

// Calls `before_read` when a blob is about to be read.
class ReadingHook final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    if (before_read != nullptr) std::exchange(before_read, nullptr)();
    return ForwardingFileSystem::ReadFile(path);
  }
  std::function<void()> before_read;
};

TEST_F(RunDirectoryStoreTest, AFileThatGoesWhileItIsReadIsNotFound) {
  ReadingHook hooked(fs_);
  const auto store = BeginScriptedRun(hooked, folder_, {.snapshots_kept = 1});
  Publish(*store, 0, 1);
  Publish(*store, 0, 2);
  ASSERT_TRUE(SaveTinySnapshot(*store, 0, 1).ok());
  hooked.before_read = [&] {
    EXPECT_TRUE(store->ForgetAnswers(0, 2).ok());
    EXPECT_TRUE(store->SaveRunState(v1::State()).ok());
  };
  EXPECT_TRUE(absl::IsNotFound(store->ReadAnswer(0, 1).status()));
  hooked.before_read = [&] { EXPECT_TRUE(SaveTinySnapshot(*store, 0, 2).ok()); };
  EXPECT_TRUE(absl::IsNotFound(store->ReadContribution(0, 2, "alice").status()));
  Publish(*store, 0, 3);
  hooked.before_read = [&] { EXPECT_TRUE(SaveTinySnapshot(*store, 0, 3).ok()); };
  EXPECT_TRUE(absl::IsNotFound(store->ReadSnapshot(0, 2).status()));
  // A file that nobody removed on purpose is damage still.
  hooked.before_read = [&] {
    EXPECT_TRUE(fs_.Remove(Path("answers/" + Names("answers")[0])).ok());
  };
  EXPECT_THAT(store->ReadAnswer(0, 2), StatusIs(kDataLoss));
}

// Has 1000 bytes more than the spare; calls `before_create` when a file is about to be written.
class NarrowDisk final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  absl::StatusOr<uint64_t> FreeBytes(const std::string&) override {
    return RunDirectoryStore::kLeastSpareBytes + 1000;
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    if (before_create != nullptr) std::exchange(before_create, nullptr)();
    return ForwardingFileSystem::Create(path);
  }
  std::function<void()> before_create;
};

TEST_F(RunDirectoryStoreTest, ContributionsThatOverlapLeaveTheSpareTogether) {
  NarrowDisk disk(fs_);
  const auto store = BeginScriptedRun(disk, folder_);
  const std::vector<uint8_t> object(600);
  const auto contribute = [&](const std::string& worker) {
    return store->SaveContribution(ScriptedContribution(0, 1, worker), object);
  };
  absl::Status second;
  disk.before_create = [&] { second = contribute("bob"); };
  EXPECT_TRUE(contribute("alice").ok());
  EXPECT_THAT(second, StatusIs(kResourceExhausted));
  EXPECT_TRUE(contribute("bob").ok());
}

TEST_F(RunDirectoryStoreTest, NothingIsToldBeforeTheRunHasBegun) {
  const auto store = Open();
  EXPECT_THAT((*store)->SaveRunState({}), StatusIs(kFailedPrecondition));
  EXPECT_THAT((*store)->BeginRun(ScriptedIdentity()), StatusIs(kFailedPrecondition));
  ASSERT_TRUE((*store)->Recover().ok());
  EXPECT_TRUE((*store)->BeginRun(ScriptedIdentity()).ok());
  EXPECT_THAT((*store)->BeginRun(ScriptedIdentity()), StatusIs(kFailedPrecondition));
}

}  // namespace
}  // namespace causeway::server
