// The store on a disk that fails: at every call, after every loss, with every damage. Whatever
// happens, the next opening finds the state before the interrupted step, the state after it, or
// refuses and names a file.

#include "absl/strings/match.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/store/fault_disk_vfs.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

using Fault = FaultDisk::Fault;
using Loss = FaultDisk::Loss;
using StorePointer = std::unique_ptr<RunDirectoryStore>;

constexpr char kFolder[] = "/disk/run";

absl::StatusOr<StorePointer> Open(FaultDisk& disk, const FaultDiskVfs& vfs) {
  // The log is moved after every few commits.
  return RunDirectoryStore::Open(disk, kFolder, {.sqlite_vfs = vfs.name(), .log_pages = 12});
}

// Prints what an opening of the disk finds now; it may change the disk.
absl::StatusOr<std::string> Reopen(FaultDisk& disk) {
  const FaultDiskVfs vfs(disk);
  ASSIGN_OR_RETURN(const StorePointer store, Open(disk, vfs));
  ASSIGN_OR_RETURN(const std::optional<RecoveredRun> run, store->Recover());
  ASSIGN_OR_RETURN(std::string print, Fingerprint(*store, run));
  return print + disk.Content("/disk/run/summary.json");
}

struct Life {
  // The state before the first step, and after each.
  std::vector<std::string> prints;
  int64_t calls = 0;
  std::unique_ptr<FaultDisk> disk;  // At the end; the store is closed.
};

// Without any fault.
Life UndisturbedLife() {
  Life life;
  life.disk = std::make_unique<FaultDisk>();
  FaultDisk& disk = *life.disk;
  const FaultDiskVfs vfs(disk);
  disk.FailCall(-1, Fault::kInputOutput);
  {
    auto store = Open(disk, vfs).value();
    EXPECT_TRUE(store->Recover().ok());
    const auto print = [&] {
      const auto clone = disk.Clone();
      const absl::StatusOr<std::string> found = Reopen(*clone);
      EXPECT_TRUE(found.ok()) << found.status();
      life.prints.push_back(found.value_or(""));
    };
    print();
    for (const ScriptedStep& step : ScriptedLife()) {
      EXPECT_EQ(step.take(*store), absl::OkStatus()) << step.name;
      print();
    }
  }
  life.calls = disk.calls();
  return life;
}

const Life& Undisturbed() {
  static const Life* const life = new Life(UndisturbedLife());
  return *life;
}

// How far a life came on a disk that may fail.
struct Outcome {
  size_t acknowledged = 0;  // Steps that returned OK, all before the one that did not.
  bool failed = false;
  absl::Status status;
};

Outcome Live(FaultDisk& disk) {
  Outcome outcome;
  const FaultDiskVfs vfs(disk);
  const auto fail = [&](const absl::Status& status) {
    outcome.failed = true;
    outcome.status = status;
    return outcome;
  };
  absl::StatusOr<StorePointer> store = Open(disk, vfs);
  if (!store.ok()) return fail(store.status());
  const absl::Status recovered = (*store)->Recover().status();
  if (!recovered.ok()) return fail(recovered);
  for (const ScriptedStep& step : ScriptedLife()) {
    const absl::Status status = step.take(**store);
    if (!status.ok()) return fail(status);
    ++outcome.acknowledged;
  }
  return outcome;
}

// Checks what an opening after the interruption of step number `acknowledged` finds.
void ExpectOldOrNew(const absl::StatusOr<std::string>& found, size_t acknowledged,
                    const std::string& context) {
  const std::vector<std::string>& prints = Undisturbed().prints;
  ASSERT_TRUE(found.ok()) << context << ": " << found.status();
  const bool old_state = *found == prints[acknowledged];
  const bool new_state = acknowledged + 1 < prints.size() && *found == prints[acknowledged + 1];
  ASSERT_TRUE(old_state || new_state) << context << " after " << acknowledged << " steps. Found:\n"
                                      << *found << "\nExpected:\n"
                                      << prints[acknowledged];
}

class StoreFaultsTest : public testing::Test {
 protected:
  // Fails the k-th call for every k, crashes with `loss`, opens again.
  void FailEveryCall(Fault fault, bool sticky, Loss loss) {
    const int64_t calls = Undisturbed().calls;
    ASSERT_GT(calls, 300);
    int64_t failed = 0;
    for (int64_t call = 0; call < calls; ++call) {
      FaultDisk disk;
      disk.FailCall(call, fault, sticky);
      const Outcome outcome = Live(disk);
      const std::string context = absl::StrCat("call ", call, ", ", disk.failed_call());
      if (outcome.failed) {
        ++failed;
        ASSERT_THAT(std::string(outcome.status.message()), HasSubstr("/disk")) << context;
      }
      disk.Crash(loss, static_cast<uint64_t>(call));
      ASSERT_NO_FATAL_FAILURE(ExpectOldOrNew(Reopen(disk), outcome.acknowledged, context));
      // And a recovery changes nothing that the next one finds.
      disk.Crash(Loss::kEverythingUnsynced, 0);
      ASSERT_NO_FATAL_FAILURE(
          ExpectOldOrNew(Reopen(disk), outcome.acknowledged, context + ", again"));
    }
    EXPECT_GT(failed, calls / 4);
  }
};

TEST_F(StoreFaultsTest, EveryFailedCallThenTheEndOfTheProcess) {
  FailEveryCall(Fault::kInputOutput, /*sticky=*/false, Loss::kNothing);
}

TEST_F(StoreFaultsTest, EveryFailedCallThenAPowerLoss) {
  FailEveryCall(Fault::kInputOutput, /*sticky=*/false, Loss::kEverythingUnsynced);
}

TEST_F(StoreFaultsTest, ADiskThatFailsFromAnyCallOnThenAPartialLoss) {
  FailEveryCall(Fault::kInputOutput, /*sticky=*/true, Loss::kSomeUnsynced);
}

TEST_F(StoreFaultsTest, ADiskThatIsFullFromAnyCallOnThenAPowerLoss) {
  FailEveryCall(Fault::kDiskFull, /*sticky=*/true, Loss::kEverythingUnsynced);
}

// A life that is cut off after any call without any error, as by kill -9 or a power loss: a sticky
// fault whose error nobody has time to act on is the same.
TEST_F(StoreFaultsTest, APowerLossAfterEveryStepLosesNothing) {
  const std::vector<ScriptedStep> steps = ScriptedLife();
  for (const Loss loss : {Loss::kNothing, Loss::kEverythingUnsynced, Loss::kSomeUnsynced}) {
    for (size_t taken = 0; taken <= steps.size(); ++taken) {
      FaultDisk disk;
      const FaultDiskVfs vfs(disk);
      absl::StatusOr<StorePointer> store = Open(disk, vfs);
      ASSERT_TRUE((*store)->Recover().ok());
      for (size_t i = 0; i < taken; ++i) ASSERT_TRUE(steps[i].take(**store).ok());
      const auto clone = disk.Clone();
      clone->Crash(loss, taken);
      const absl::StatusOr<std::string> found = Reopen(*clone);
      ASSERT_TRUE(found.ok()) << steps[taken].name << ": " << found.status();
      EXPECT_EQ(*found, Undisturbed().prints[taken]);
    }
  }
}

// A disk in the middle of a life, after the process died: with a log that was not moved yet.
std::unique_ptr<FaultDisk> DiskAfter(size_t steps) {
  FaultDisk disk;
  const FaultDiskVfs vfs(disk);
  absl::StatusOr<StorePointer> store = Open(disk, vfs);
  EXPECT_TRUE((*store)->Recover().ok());
  for (size_t i = 0; i < steps; ++i) EXPECT_TRUE(ScriptedLife()[i].take(**store).ok());
  auto clone = disk.Clone();
  clone->Crash(Loss::kNothing, 0);
  return clone;
}

TEST_F(StoreFaultsTest, ARecoveryThatIsInterruptedAnywhereIsRepeated) {
  constexpr size_t kSteps = 15;
  const auto died = DiskAfter(kSteps);
  std::string failed_call;
  for (int64_t call = 0; call == 0 || !failed_call.empty(); ++call) {
    const auto disk = died->Clone();
    disk->FailCall(call, Fault::kInputOutput, /*sticky=*/true);
    const absl::StatusOr<std::string> first = Reopen(*disk);
    failed_call = disk->failed_call();
    if (!first.ok()) {
      ASSERT_THAT(std::string(first.status().message()), HasSubstr("/disk"));
    }
    disk->Crash(Loss::kSomeUnsynced, static_cast<uint64_t>(call));
    ASSERT_NO_FATAL_FAILURE(ExpectOldOrNew(Reopen(*disk), kSteps, failed_call));
  }
}

// Damages every file of the run, anywhere.
class StoreDamageTest : public testing::Test {
 protected:
  // `print`: of the whole disk.
  void ExpectSameOrRefusal(FaultDisk& disk, const std::string& print, const std::string& context) {
    const absl::StatusOr<std::string> found = Reopen(disk);
    if (found.ok()) {
      ASSERT_EQ(*found, print) << context;
      return;
    }
    ++refused_;
    ASSERT_THAT(std::string(found.status().message()), HasSubstr("/disk")) << context;
    ASSERT_NE(found.status().code(), absl::StatusCode::kNotFound) << context;
  }

  int64_t refused_ = 0;
};

bool ForPeople(const std::string& path) {
  return absl::EndsWith(path, ".textproto") || absl::EndsWith(path, "summary.json");
}

// Every offset of small files and of what is around a page's beginning; some of the others, and of
// rounds.jsonl, which nobody reads.
bool Sampled(const std::string& path, size_t offset, size_t size, uint64_t seed) {
  const bool small = size < 2000 && !absl::EndsWith(path, ".jsonl");
  return small || offset % 4096 < 24 || RandomBits(seed, 0, offset) % 97 == 0;
}

// Returns one blob of each kind, which are all alike, and the other files.
std::vector<std::string> FilesToDamage(FaultDisk& disk) {
  std::vector<std::string> files;
  std::set<std::string> folders;
  for (const std::string& path : disk.Files()) {
    const std::string folder = ParentFolder(path);
    if (ForPeople(path) || (folder != kFolder && !folders.insert(folder).second)) continue;
    files.push_back(path);
  }
  return files;
}

TEST_F(StoreDamageTest, AnyFlippedBitIsHarmlessOrRefused) {
  const size_t steps = ScriptedLife().size() - 1;
  for (const bool closed : {false, true}) {
    const auto whole = closed ? Undisturbed().disk->Clone() : DiskAfter(steps);
    const std::string print = *Reopen(*whole->Clone());
    for (const std::string& path : FilesToDamage(*whole)) {
      // The other files are the same in both.
      if (closed && !absl::EndsWith(path, "run.db")) continue;
      const size_t size = whole->Content(path).size();
      for (size_t offset = 0; offset < size; ++offset) {
        if (!Sampled(path, offset, size, 1)) continue;
        const auto disk = whole->Clone();
        const int bit = static_cast<int>(RandomBits(2, 0, offset) % 8);
        disk->Damage(path, [&](std::string& content) {
          content[offset] = static_cast<char>(content[offset] ^ (1 << bit));
        });
        ASSERT_NO_FATAL_FAILURE(ExpectSameOrRefusal(
            *disk, print, absl::StrCat(path, " of ", size, ", offset ", offset, ", bit ", bit)));
      }
    }
  }
  EXPECT_GT(refused_, 1000);
}

TEST_F(StoreDamageTest, AnyCutIsHarmlessOrRefused) {
  const size_t steps = ScriptedLife().size() - 1;
  const auto whole = DiskAfter(steps);
  const std::string print = *Reopen(*whole->Clone());
  for (const std::string& path : FilesToDamage(*whole)) {
    const size_t size = whole->Content(path).size();
    for (size_t left = 0; left < size; ++left) {
      if (!Sampled(path, left, size, 3)) continue;
      const auto disk = whole->Clone();
      disk->Damage(path, [&](std::string& content) { content.resize(left); });
      ASSERT_NO_FATAL_FAILURE(
          ExpectSameOrRefusal(*disk, print, absl::StrCat(path, " cut to ", left)));
    }
  }
  EXPECT_GT(refused_, 1000);
}

}  // namespace
}  // namespace causeway::server
