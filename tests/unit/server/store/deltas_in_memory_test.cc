// A run directory whose deltas are in memory: what a death of the process loses (nothing), what a
// restart of the machine does, and how the run goes on.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/forwarding_file_system.h"
#include "common/base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/inspect.h"
#include "server/store/run_directory_store.h"
#include "tests/unit/common/base/fault_disk.h"
#include "tests/unit/server/store/fault_disk_vfs.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Fault = FaultDisk::Fault;
using Loss = FaultDisk::Loss;
using Options = RunDirectoryStore::Options;
using StorePointer = std::unique_ptr<RunDirectoryStore>;

constexpr char kRunWithMemory[] = "/disk/run";
// Its folders are never synced: a loss of what is not synced is a restart of the machine.
constexpr char kMemoryOfRun[] = "/mem/run-1";
constexpr int64_t kAllBytes = int64_t{1} << 60;

class DeltasInMemoryTest : public testing::Test {
 protected:
  static absl::StatusOr<StorePointer> Open(FaultDisk& disk, const FaultDiskVfs& vfs,
                                           Options options) {
    options.sqlite_vfs = vfs.name();
    options.log_pages = 12;
    return RunDirectoryStore::Open(disk, kRunWithMemory, options);
  }
  // Prints what an opening finds, and counts its rounds.
  absl::StatusOr<std::string> Reopen(FaultDisk& disk, Options options = {}) {
    const FaultDiskVfs vfs(disk);
    ASSIGN_OR_RETURN(const StorePointer store, Open(disk, vfs, options));
    ASSIGN_OR_RETURN(const std::optional<RecoveredRun> run, store->Recover());
    rounds_ = run.has_value() ? run->rounds.size() : 0;
    return Fingerprint(*store, run);
  }
  // Takes steps with new deltas in memory; stops at the first that fails. Returns how many did not.
  size_t Live(FaultDisk& disk, size_t steps, bool to_disk = false) {
    const FaultDiskVfs vfs(disk);
    const absl::StatusOr<StorePointer> store = Open(disk, vfs, {.deltas_in = kMemoryOfRun});
    if (!store.ok() || !(*store)->Recover().ok()) return 0;
    (*store)->blobs().set_new_in_memory(true);
    for (size_t i = 0; i < steps; ++i) {
      if (!life_[i].take(**store).ok()) return i;
    }
    if (to_disk) {
      const absl::StatusOr<bool> all = (*store)->blobs().CopyToDisk(kAllBytes);
      EXPECT_TRUE(all.ok() && *all) << all.status();
    }
    return steps;
  }
  // The state after so many steps where everything is on the disk.
  const std::string& Print(size_t steps) {
    while (prints_.size() <= steps) {
      FaultDisk disk;
      {
        const FaultDiskVfs vfs(disk);
        const absl::StatusOr<StorePointer> store = Open(disk, vfs, {});
        EXPECT_TRUE((*store)->Recover().ok());
        for (size_t i = 0; i < prints_.size(); ++i) EXPECT_TRUE(life_[i].take(**store).ok());
      }
      prints_.push_back(*Reopen(disk));
    }
    return prints_[steps];
  }
  static size_t FilesBelow(FaultDisk& disk, const std::string& folder) {
    size_t files = 0;
    for (const std::string& path : disk.Files()) {
      files += absl::StartsWith(path, folder + "/") ? 1 : 0;
    }
    return files;
  }

  const std::vector<ScriptedStep> life_ = ScriptedLife();
  std::vector<std::string> prints_;
  size_t rounds_ = 0;
};

TEST_F(DeltasInMemoryTest, NoDeltaTouchesTheDiskAndADeathLosesNone) {
  FaultDisk disk;
  ASSERT_EQ(Live(disk, 16), 16);
  EXPECT_EQ(FilesBelow(disk, "/disk/run/deltas"), 0);
  EXPECT_EQ(FilesBelow(disk, "/mem/run-1/deltas"), 5);
  EXPECT_EQ(disk.Content("/disk/run/DELTAS_IN"), "/mem/run-1\n");
  disk.Crash(Loss::kNothing, 0);
  const absl::StatusOr<std::string> found = Reopen(disk);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, Print(16));
}

TEST_F(DeltasInMemoryTest, DeltasThatSnapshotsCoverLeaveTheMemory) {
  FaultDisk disk;
  ASSERT_EQ(Live(disk, life_.size()), life_.size());
  EXPECT_EQ(FilesBelow(disk, "/mem/run-1/deltas"), 2);  // Round 3 of 0, round 1 of 1.
}

TEST_F(DeltasInMemoryTest, EveryFailedCallThenTheEndOfTheProcess) {
  FaultDisk whole;
  whole.FailCall(-1, Fault::kInputOutput);
  ASSERT_EQ(Live(whole, life_.size()), life_.size());
  const int64_t calls = whole.calls();
  ASSERT_GT(calls, 300);
  for (const bool sticky : {false, true}) {
    for (int64_t call = 0; call < calls; ++call) {
      FaultDisk disk;
      disk.FailCall(call, Fault::kInputOutput, sticky);
      const size_t taken = Live(disk, life_.size());
      SCOPED_TRACE(absl::StrCat("call ", call, ", ", disk.failed_call()));
      disk.Crash(Loss::kNothing, 0);
      const absl::StatusOr<std::string> found = Reopen(disk);
      ASSERT_TRUE(found.ok()) << found.status();
      ASSERT_TRUE(*found == Print(taken) || (taken < life_.size() && *found == Print(taken + 1)));
    }
  }
}

TEST_F(DeltasInMemoryTest, ARestartOfTheMachineAtAnyCallIsNoticedAndNothingElseIsWrong) {
  FaultDisk whole;
  whole.FailCall(-1, Fault::kInputOutput);
  ASSERT_EQ(Live(whole, life_.size()), life_.size());
  int refused = 0;
  for (int64_t call = 0; call < whole.calls(); ++call) {
    FaultDisk disk;
    disk.FailCall(call, Fault::kInputOutput, /*sticky=*/true);
    const size_t taken = Live(disk, life_.size());
    SCOPED_TRACE(absl::StrCat("call ", call, ", ", disk.failed_call()));
    disk.Crash(Loss::kEverythingUnsynced, 0);
    const absl::StatusOr<std::string> found = Reopen(disk);
    if (found.ok()) {
      ASSERT_TRUE(*found == Print(taken) || (taken < life_.size() && *found == Print(taken + 1)));
      continue;
    }
    ++refused;
    ASSERT_EQ(found.status().code(), absl::StatusCode::kAborted) << found.status();
    ASSERT_THAT(std::string(found.status().message()),
                AllOf(HasSubstr("/disk/run lacks"), HasSubstr("--back_to_snapshots")));
    // It says so as often as it is asked, and goes on by hand.
    ASSERT_TRUE(absl::IsAborted(Reopen(disk).status()));
    const absl::StatusOr<std::string> back = Reopen(disk, {.back_to_snapshots = true});
    ASSERT_TRUE(back.ok()) << back.status();
    const absl::StatusOr<std::string> again = Reopen(disk);
    ASSERT_TRUE(again.ok()) << again.status();
    ASSERT_EQ(*again, *back);
  }
  EXPECT_GT(refused, 100);
}

TEST_F(DeltasInMemoryTest, AfterARestartTheRunGoesBackToItsSnapshotsAndOnFromThere) {
  FaultDisk disk;
  ASSERT_EQ(Live(disk, 20), 20);  // Rounds 1 to 3 of 0, of which snapshots have 2; round 1 of 1.
  disk.Crash(Loss::kEverythingUnsynced, 0);
  ASSERT_TRUE(Reopen(disk, {.back_to_snapshots = true}).ok());
  EXPECT_EQ(rounds_, 2);
  const FaultDiskVfs vfs(disk);
  const absl::StatusOr<StorePointer> store = Open(disk, vfs, {.deltas_in = kMemoryOfRun});
  ASSERT_TRUE(store.ok());
  const auto run = (*store)->Recover();
  ASSERT_TRUE(run.ok() && run->has_value()) << run.status();
  ASSERT_THAT((*run)->rounds, SizeIs(2));
  EXPECT_EQ((*run)->rounds[1].fragment, 0);
  EXPECT_EQ((*run)->rounds[1].round, 2);
  for (const ContributionRecord& record : (*run)->contributions) {
    EXPECT_EQ(record.fragment, 0);
    EXPECT_LE(record.round, 2);
  }
  // The same rounds again, and no worker's delta is there twice.
  for (const size_t step : {9, 11, 18, 19}) {
    const absl::Status taken = life_[step].take(**store);
    EXPECT_TRUE(taken.ok()) << life_[step].name << ": " << taken;
  }
}

TEST_F(DeltasInMemoryTest, WhatWasCopiedToTheDiskOutlivesARestart) {
  for (size_t steps = 1; steps <= life_.size(); ++steps) {
    FaultDisk disk;
    ASSERT_EQ(Live(disk, steps, /*to_disk=*/true), steps);
    disk.Crash(Loss::kEverythingUnsynced, 0);
    const absl::StatusOr<std::string> found = Reopen(disk);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, Print(steps));
  }
}

TEST_F(DeltasInMemoryTest, ACopyThatIsInterruptedAnywhereIsMadeAgain) {
  FaultDisk lived;
  ASSERT_EQ(Live(lived, 16), 16);
  lived.Crash(Loss::kNothing, 0);
  std::string failed_call;
  for (int64_t call = 0; call == 0 || !failed_call.empty(); ++call) {
    const auto disk = lived.Clone();
    disk->FailCall(call, Fault::kInputOutput, /*sticky=*/true);
    Reopen(*disk, {.deltas_in = ""}).status().IgnoreError();
    failed_call = disk->failed_call();
    SCOPED_TRACE(failed_call);
    disk->Crash(Loss::kNothing, 0);
    const absl::StatusOr<std::string> found = Reopen(*disk, {.deltas_in = ""});
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, Print(16));
    disk->Crash(Loss::kEverythingUnsynced, 0);
    EXPECT_EQ(*Reopen(*disk), Print(16));
  }
}

TEST_F(DeltasInMemoryTest, OneCopyTakesAFewDeltasAtATime) {
  FaultDisk disk;
  const FaultDiskVfs vfs(disk);
  const StorePointer store = *Open(disk, vfs, {.deltas_in = kMemoryOfRun});
  ASSERT_TRUE(store->Recover().ok());
  store->blobs().set_new_in_memory(true);
  for (size_t i = 0; i < 16; ++i) ASSERT_TRUE(life_[i].take(*store).ok());
  int copies = 1;
  while (!*store->blobs().CopyToDisk(1)) ++copies;
  EXPECT_EQ(copies, 5);
  EXPECT_EQ(FilesBelow(disk, "/disk/run/deltas"), 5);
  // A delta that leaves the rows leaves both.
  for (size_t i = 16; i < life_.size(); ++i) ASSERT_TRUE(life_[i].take(*store).ok());
  EXPECT_EQ(FilesBelow(disk, "/disk/run/deltas"), 1);
  EXPECT_EQ(FilesBelow(disk, "/mem/run-1/deltas"), 2);
}

// Calls back before a file gets its name.
class BeforeRename final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (callback) callback();
    return ForwardingFileSystem::Rename(from, to);
  }
  std::function<void()> callback;
};

TEST_F(DeltasInMemoryTest, ADeltaThatIsBeingWrittenIsNotForgotten) {
  FaultDisk disk;
  const FaultDiskVfs vfs(disk);
  BeforeRename files(disk);
  const StorePointer store = *RunDirectoryStore::Open(
      files, kRunWithMemory, {.deltas_in = kMemoryOfRun, .sqlite_vfs = vfs.name()});
  ASSERT_TRUE(store->Recover().ok());
  for (size_t i = 0; i < 5; ++i) ASSERT_TRUE(life_[i].take(*store).ok());
  store->blobs().set_new_in_memory(true);
  files.callback = [&] {
    files.callback = nullptr;
    store->blobs().set_new_in_memory(false);
    EXPECT_FALSE(*store->blobs().CopyToDisk(kAllBytes));
  };
  ASSERT_TRUE(life_[5].take(*store).ok());
  EXPECT_EQ(FilesBelow(disk, "/mem/run-1/deltas"), 1);
  EXPECT_EQ(FilesBelow(disk, "/disk/run/deltas"), 0);
  EXPECT_TRUE(*store->blobs().CopyToDisk(kAllBytes));
  EXPECT_EQ(FilesBelow(disk, "/disk/run/deltas"), 1);
}

TEST_F(DeltasInMemoryTest, AStartWithoutAMemoryOrWithAnotherTakesTheDeltasAlong) {
  for (const std::string wanted : {"", "/other/run-2"}) {
    FaultDisk disk;
    ASSERT_EQ(Live(disk, 16), 16);
    disk.Crash(Loss::kNothing, 0);
    EXPECT_EQ(*Reopen(disk, {.deltas_in = wanted}), Print(16));
    EXPECT_EQ(FilesBelow(disk, "/mem"), 0);
    EXPECT_EQ(FilesBelow(disk, "/disk/run/deltas"), 5);
    EXPECT_EQ(disk.Exists("/disk/run/DELTAS_IN"), !wanted.empty());
  }
}

TEST_F(DeltasInMemoryTest, AnotherNameInTheSameMemoryChangesNothing) {
  FaultDisk disk;
  ASSERT_EQ(Live(disk, 16), 16);
  disk.Crash(Loss::kNothing, 0);
  EXPECT_EQ(*Reopen(disk, {.deltas_in = "/mem/run-2"}), Print(16));
  EXPECT_EQ(FilesBelow(disk, "/mem/run-1/deltas"), 5);
  EXPECT_FALSE(disk.Exists("/mem/run-2"));
}

TEST_F(DeltasInMemoryTest, AMemoryWithoutRoomLeavesDeltasToTheDisk) {
  FaultDisk disk;
  const FaultDiskVfs vfs(disk);
  const StorePointer store = *Open(disk, vfs, {.deltas_in = kMemoryOfRun});
  ASSERT_TRUE(store->Recover().ok());
  store->blobs().set_new_in_memory(true);
  for (size_t i = 0; i < 6; ++i) ASSERT_TRUE(life_[i].take(*store).ok());
  EXPECT_EQ(FilesBelow(disk, "/mem/run-1/deltas"), 1);
  disk.SetCapacity(uint64_t{48} << 20);
  ASSERT_TRUE(life_[6].take(*store).ok());
  EXPECT_EQ(FilesBelow(disk, "/mem/run-1/deltas"), 1);
  EXPECT_EQ(FilesBelow(disk, "/disk/run/deltas"), 1);
}

TEST_F(DeltasInMemoryTest, ACopyOfTheFolderDoesNotTakeTheMemoryOfItsOriginal) {
  FaultDisk disk;
  ASSERT_EQ(Live(disk, 16), 16);
  disk.Crash(Loss::kNothing, 0);
  for (const std::string& path : disk.Files()) {
    if (!absl::StartsWith(path, "/disk/run/")) continue;
    const std::string copied = absl::StrCat("/disk/copy/", path.substr(10));
    ASSERT_TRUE(disk.CreateFolders(ParentFolder(copied)).ok());
    ASSERT_TRUE(WriteFileAtomically(disk, copied, absl::string_view(disk.Content(path))).ok());
  }
  const auto open_copy = [&]() -> absl::Status {
    const FaultDiskVfs vfs(disk);
    ASSIGN_OR_RETURN(const StorePointer store,
                     RunDirectoryStore::Open(disk, "/disk/copy", {.sqlite_vfs = vfs.name()}));
    return store->Recover().status();
  };
  const absl::Status refused = open_copy();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("/disk/copy is a copy of /disk/run"));
  EXPECT_EQ(FilesBelow(disk, "/mem/run-1/deltas"), 5);
  EXPECT_EQ(*Reopen(disk), Print(16));
  // As the message says.
  for (const std::string& path : disk.Files()) {
    if (!absl::StartsWith(path, "/mem/run-1/deltas/")) continue;
    const std::string copied = absl::StrCat("/disk/copy/", path.substr(11));
    ASSERT_TRUE(disk.CreateFolders(ParentFolder(copied)).ok());
    ASSERT_TRUE(WriteFileAtomically(disk, copied, absl::string_view(disk.Content(path))).ok());
  }
  ASSERT_TRUE(disk.Remove("/disk/copy/DELTAS_IN").ok());
  EXPECT_TRUE(open_copy().ok());
}

TEST_F(DeltasInMemoryTest, AFolderThatWasRenamedKeepsItsMemory) {
  FaultDisk disk;
  ASSERT_EQ(Live(disk, 16), 16);
  disk.Crash(Loss::kNothing, 0);
  disk.Damage("/mem/run-1/OWNER", [](std::string& content) { content = "/disk/former\n"; });
  EXPECT_EQ(*Reopen(disk, {.deltas_in = kMemoryOfRun}), Print(16));
  EXPECT_EQ(disk.Content("/mem/run-1/OWNER"), "/disk/run\n");
}

TEST_F(DeltasInMemoryTest, NobodyGoesBackBehindADeltaThatIsDamaged) {
  FaultDisk disk;
  ASSERT_EQ(Live(disk, 16, /*to_disk=*/true), 16);
  disk.Crash(Loss::kEverythingUnsynced, 0);
  std::string needed;
  for (const std::string& path : disk.Files()) {
    if (absl::StrContains(path, "/deltas/") && absl::StrContains(path, "-f1-r1-")) needed = path;
  }
  ASSERT_FALSE(needed.empty());
  disk.Damage(needed, [](std::string& content) { content.resize(content.size() / 2); });
  const absl::Status refused = Reopen(disk, {.back_to_snapshots = true}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr(needed), HasSubstr("not behind damaged ones")));
  ASSERT_TRUE(disk.Remove(needed).ok());
  EXPECT_TRUE(Reopen(disk, {.back_to_snapshots = true}).ok());
}

// Fails one sync of a folder's names.
class OneFailedSync final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  absl::Status SyncFolder(const std::string& folder) override {
    if (folder != std::exchange(failing, "")) return ForwardingFileSystem::SyncFolder(folder);
    return absl::InternalError("a failed sync");
  }
  std::string failing;
};

TEST_F(DeltasInMemoryTest, ACopyWhoseLastSyncFailedIsSyncedByTheNextOne) {
  FaultDisk disk;
  ASSERT_EQ(Live(disk, 6), 6);
  OneFailedSync files(disk);
  BlobFolder blobs(files, kRunWithMemory);
  ASSERT_TRUE(blobs.FindMemory().ok());
  files.failing = "/disk/run/deltas";
  ASSERT_FALSE(blobs.CopyToDisk(kAllBytes).ok());
  EXPECT_EQ(FilesBelow(disk, "/disk/run/deltas"), 1);
  ASSERT_TRUE(*blobs.CopyToDisk(kAllBytes));
  disk.Crash(Loss::kEverythingUnsynced, 0);
  EXPECT_EQ(*Reopen(disk), Print(6));
}

// Calls back before the size of a file is read.
class BeforeSize final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  absl::StatusOr<uint64_t> FileSize(const std::string& path) override {
    if (callback) std::exchange(callback, nullptr)();
    return ForwardingFileSystem::FileSize(path);
  }
  std::function<void()> callback;
};

TEST_F(DeltasInMemoryTest, ADeltaThatGoesToTheDiskWhileItIsLookedForIsNotMissed) {
  FaultDisk disk;
  ASSERT_EQ(Live(disk, 16), 16);
  BeforeSize files(disk);
  BlobFolder looking(files, kRunWithMemory);
  ASSERT_TRUE(looking.FindMemory().ok());
  BlobFolder owner(disk, kRunWithMemory);
  ASSERT_TRUE(owner.FindMemory().ok());
  BlobRef delta;
  for (const std::string& path : disk.Files()) {
    if (!absl::StartsWith(path, "/mem/run-1/deltas/")) continue;
    delta = {.file = path.substr(11), .bytes = static_cast<int64_t>(disk.Content(path).size())};
  }
  files.callback = [&] {
    ASSERT_TRUE(*owner.CopyToDisk(kAllBytes));
    ASSERT_TRUE(owner.DropMemory().ok());
  };
  EXPECT_TRUE(looking.CheckPresent(delta).ok());
  EXPECT_EQ(files.callback, nullptr);
}

TEST_F(DeltasInMemoryTest, ADamagedNameOfTheMemoryIsRefused) {
  FaultDisk disk;
  ASSERT_EQ(Live(disk, 16), 16);
  disk.Damage("/disk/run/DELTAS_IN", [](std::string& content) { content = "mem\n"; });
  const absl::Status found = Reopen(disk).status();
  EXPECT_EQ(found.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(found.message(), HasSubstr("/disk/run/DELTAS_IN should name a folder"));
}

}  // namespace
}  // namespace causeway::server
