#include "server/standby/delta_places.h"

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "server/store/run_directory_store.h"
#include "tests/unit/common/base/fault_disk.h"
#include "tests/unit/server/store/fault_disk_vfs.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

class DeltaPlacesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto store = RunDirectoryStore::Open(disk_, "/disk/run",
                                         {.deltas_in = "/mem/run-1", .sqlite_vfs = vfs_.name()});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    ASSERT_TRUE(store_->Recover().ok());
    ASSERT_TRUE(store_->BeginRun(ScriptedIdentity()).ok());
  }
  void Contribute(const std::string& worker) {
    const absl::Status saved =
        store_->SaveContribution(ScriptedContribution(0, 1, worker), ScriptedObject(0, 1, worker));
    ASSERT_TRUE(saved.ok()) << saved;
  }
  int FilesBelow(const std::string& folder) {
    int files = 0;
    for (const std::string& path : disk_.Files()) {
      files += absl::StartsWith(path, folder) && absl::EndsWith(path, ".delta") ? 1 : 0;
    }
    return files;
  }
  int OnDisk() { return FilesBelow("/disk/run/deltas/"); }
  int InMemory() { return FilesBelow("/mem/"); }

  FaultDisk disk_;
  const FaultDiskVfs vfs_{disk_};
  FakeClock clock_;
  Standbys standbys_{{.clock = &clock_}};
  std::unique_ptr<RunDirectoryStore> store_;
};

TEST_F(DeltaPlacesTest, DeltasAreInMemoryWhileACopyHasThem) {
  DeltaPlaces places(store_->blobs(), standbys_);
  places.Tick();
  Contribute("alone");
  EXPECT_EQ(OnDisk(), 1);
  const int64_t stream = standbys_.Attach("spare", store_->Position().commits);
  places.Tick();
  Contribute("both");
  EXPECT_EQ(OnDisk(), 1);
  EXPECT_EQ(InMemory(), 1);
  standbys_.Detach(stream);
  places.Tick();
  EXPECT_EQ(OnDisk(), 2);
  Contribute("alone-again");
  EXPECT_EQ(OnDisk(), 3);
  EXPECT_EQ(InMemory(), 1);
}

TEST_F(DeltaPlacesTest, ACopyThatIsFarBehindIsNone) {
  DeltaPlaces places(store_->blobs(), standbys_);
  standbys_.Begin(1000);
  const int64_t stream = standbys_.Attach("spare", 1);
  places.Tick();
  EXPECT_FALSE(store_->blobs().new_in_memory());
  standbys_.Acknowledge(stream, 1000);
  places.Tick();
  EXPECT_TRUE(store_->blobs().new_in_memory());
}

TEST_F(DeltaPlacesTest, WithARegistryTheSetSaysWhoHasThem) {
  DeltaPlaces places(store_->blobs(), standbys_);
  standbys_.Attach("joining", store_->Position().commits);
  standbys_.Require({"joining"}, /*alone=*/true);
  places.Tick();
  EXPECT_FALSE(store_->blobs().new_in_memory());
  standbys_.Require({"joining"}, /*alone=*/false);
  places.Tick();
  EXPECT_TRUE(store_->blobs().new_in_memory());
  standbys_.Require({}, /*alone=*/true);
  places.Tick();
  EXPECT_FALSE(store_->blobs().new_in_memory());
}

TEST_F(DeltaPlacesTest, ADiskThatIsFullIsTriedAgain) {
  DeltaPlaces places(store_->blobs(), standbys_);
  const int64_t stream = standbys_.Attach("spare", store_->Position().commits);
  places.Tick();
  Contribute("both");
  standbys_.Detach(stream);
  disk_.SetCapacity(0);
  places.Tick();
  EXPECT_EQ(OnDisk(), 0);
  disk_.SetCapacity(uint64_t{1} << 30);
  places.Tick();
  EXPECT_EQ(OnDisk(), 1);
}

TEST_F(DeltaPlacesTest, ACopyThatIsNotAtItsEndAsksForTheNextTurnAtOnce) {
  DeltaPlaces places(store_->blobs(), standbys_, /*bytes_per_tick=*/1);
  const int64_t stream = standbys_.Attach("spare", store_->Position().commits);
  places.Tick();
  for (const char* worker : {"a", "b", "c"}) Contribute(worker);
  EXPECT_FALSE(places.copies());
  standbys_.Detach(stream);
  for (int copied = 1; copied <= 3; ++copied) {
    places.Tick();
    EXPECT_EQ(OnDisk(), copied);
    EXPECT_EQ(places.copies(), copied < 3);
  }
}

TEST_F(DeltaPlacesTest, AnOrderlyEndLeavesNothingInMemory) {
  store_->blobs().set_new_in_memory(true);
  Contribute("both");
  BringToDisk(store_->blobs());
  EXPECT_EQ(OnDisk(), 1);
  EXPECT_EQ(InMemory(), 0);
  EXPECT_FALSE(disk_.Exists("/mem/run-1"));
  EXPECT_FALSE(disk_.Exists("/disk/run/DELTAS_IN"));
}

}  // namespace
}  // namespace causeway::server
