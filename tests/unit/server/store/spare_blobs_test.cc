// Large blobs that are written over removed ones.

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/store/fault_disk_vfs.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kRunFolder[] = "/disk/run";
constexpr size_t kLarge = size_t{1} << 20;

// A run whose first delta was removed: its place is free.
class LargeRun {
 public:
  LargeRun() {
    EXPECT_TRUE(Contribute(1, 2 * kLarge).ok());
    EXPECT_TRUE(store_->SaveRound(ScriptedRound(0, 1), std::vector<uint8_t>(2 * kLarge, 100)).ok());
    EXPECT_TRUE(SaveTinySnapshot(*store_, 0, 1).ok());
  }
  absl::Status Contribute(int64_t round, size_t bytes) {
    return store_->SaveContribution(ScriptedContribution(0, round, "alice"), Object(round, bytes));
  }
  static std::vector<uint8_t> Object(int64_t round, size_t bytes) {
    return std::vector<uint8_t>(bytes, static_cast<uint8_t>(round));
  }
  std::vector<std::string> Deltas() {
    std::vector<std::string> names;
    for (const std::string& path : disk_.Files()) {
      if (absl::StartsWith(path, absl::StrCat(kRunFolder, "/deltas/"))) names.push_back(path);
    }
    return names;
  }
  void LosePower() {
    store_ = nullptr;
    disk_.FailCall(-1, FaultDisk::Fault::kInputOutput);
    disk_.Crash(FaultDisk::Loss::kEverythingUnsynced, 0);
    store_ = RunDirectoryStore::Open(disk_, kRunFolder, options_).value();
    EXPECT_TRUE(store_->Recover().ok());
  }
  FaultDisk& disk() { return disk_; }
  RunDirectoryStore& store() { return *store_; }

 private:
  FaultDisk disk_;
  const FaultDiskVfs vfs_{disk_};
  const RunDirectoryStore::Options options_ = {.snapshots_kept = 1, .sqlite_vfs = vfs_.name()};
  std::unique_ptr<RunDirectoryStore> store_ = BeginScriptedRun(disk_, kRunFolder, options_);
};

TEST(SpareBlobs, ALargerOneIsWrittenOverThem) {
  LargeRun run;
  EXPECT_THAT(run.Deltas(), ElementsAre(EndsWith("alice.delta.tmp")));
  ASSERT_TRUE(run.Contribute(2, 3 * kLarge).ok());
  EXPECT_THAT(run.Deltas(), ElementsAre(EndsWith("f0-r2-alice.delta")));
  EXPECT_EQ(*run.store().ReadContribution(0, 2, "alice"), LargeRun::Object(2, 3 * kLarge));
  run.LosePower();
  EXPECT_EQ(*run.store().ReadContribution(0, 2, "alice"), LargeRun::Object(2, 3 * kLarge));
}

TEST(SpareBlobs, ASmallerOneIsNot) {
  LargeRun run;
  ASSERT_TRUE(run.Contribute(2, kLarge).ok());
  EXPECT_THAT(run.Deltas(), SizeIs(2));
  EXPECT_EQ(*run.store().ReadContribution(0, 2, "alice"), LargeRun::Object(2, kLarge));
}

TEST(SpareBlobs, OneThatIsShorterThanItsRowSaysIsLeftAlone) {
  LargeRun run;
  const std::vector<uint8_t> half(kLarge / 2);
  ASSERT_TRUE(WriteFileAtomically(run.disk(), run.Deltas().front(), half).ok());
  ASSERT_TRUE(run.Contribute(2, 3 * kLarge).ok());
  EXPECT_THAT(run.Deltas(), ElementsAre(EndsWith("f0-r2-alice.delta")));
  EXPECT_EQ(*run.store().ReadContribution(0, 2, "alice"), LargeRun::Object(2, 3 * kLarge));
}

TEST(SpareBlobs, GoWhenTheDiskIsFullAndWithTheProcess) {
  LargeRun full;
  full.disk().SetCapacity(0);
  EXPECT_THAT(full.Contribute(2, kLarge), StatusIs(kResourceExhausted));
  EXPECT_THAT(full.Deltas(), IsEmpty());
  LargeRun killed;
  killed.LosePower();
  EXPECT_THAT(killed.Deltas(), IsEmpty());
}

TEST(SpareBlobs, MakeRoomForAnAnswerThatFindsNone) {
  LargeRun run;
  ASSERT_TRUE(run.Contribute(2, 64).ok());
  run.disk().SetCapacity(run.disk().UsedBytes() + kLarge / 2);
  // No spare is written over for a blob of this size.
  ASSERT_TRUE(run.store().SaveRound(ScriptedRound(0, 2), std::vector<uint8_t>(kLarge, 7)).ok());
  EXPECT_THAT(run.Deltas(), ElementsAre(EndsWith("f0-r2-alice.delta")));
  EXPECT_EQ(*run.store().ReadAnswer(0, 2), std::vector<uint8_t>(kLarge, 7));
}

TEST(SpareBlobs, MakeRoomForRowsThatFindNone) {
  LargeRun run;
  run.disk().SetCapacity(run.disk().UsedBytes());
  absl::Status saved;
  for (int i = 0; i < 40 && saved.ok(); ++i) {
    saved = run.store().SaveMembers(std::array{ScriptedMember(absl::StrCat("member-", i), 1)});
  }
  EXPECT_TRUE(saved.ok()) << saved;
  EXPECT_THAT(run.Deltas(), IsEmpty());
}

TEST(SpareBlobs, TakeNoMoreOfTheDiskThanTheyLack) {
  LargeRun run;
  ASSERT_TRUE(run.Contribute(2, 8 * kLarge).ok());
  ASSERT_TRUE(run.store().SaveRound(ScriptedRound(0, 2), std::vector<uint8_t>(64, 7)).ok());
  ASSERT_TRUE(SaveTinySnapshot(run.store(), 0, 2).ok());
  ASSERT_TRUE(run.Contribute(3, 64).ok());
  ASSERT_THAT(run.Deltas(), SizeIs(3)) << "spares of 2 and 8 MiB among them";
  run.disk().SetCapacity(run.disk().UsedBytes() + kLarge + kLarge / 2);
  ASSERT_TRUE(run.store().SaveRound(ScriptedRound(0, 3), std::vector<uint8_t>(3 * kLarge, 7)).ok());
  EXPECT_THAT(run.Deltas(), SizeIs(2)) << "the spare of 8 MiB did not have to make room";
  EXPECT_EQ(*run.store().ReadAnswer(0, 3), std::vector<uint8_t>(3 * kLarge, 7));
}

TEST(SpareBlobs, APowerLossAtAnyCallLeavesWhatWasCommitted) {
  for (int64_t call = 0;; ++call) {
    LargeRun run;
    run.disk().FailCall(call, FaultDisk::Fault::kInputOutput, /*sticky=*/true);
    const absl::Status status = run.Contribute(2, 2 * kLarge);
    const std::string failed = run.disk().failed_call();
    SCOPED_TRACE(failed);
    run.LosePower();
    EXPECT_EQ(*run.store().ReadAnswer(0, 1), std::vector<uint8_t>(2 * kLarge, 100));
    const auto delta = run.store().ReadContribution(0, 2, "alice");
    if (delta.ok()) {
      EXPECT_EQ(*delta, LargeRun::Object(2, 2 * kLarge));
    } else {
      EXPECT_FALSE(status.ok());
      EXPECT_TRUE(absl::IsNotFound(delta.status())) << delta.status();
    }
    if (!failed.empty()) continue;
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_GT(call, 5);
    return;
  }
}

}  // namespace
}  // namespace causeway::server
