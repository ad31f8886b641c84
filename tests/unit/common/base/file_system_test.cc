#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fault_disk.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::span<const uint8_t> Bytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Text(const MappedFile& file) { return {file.bytes().begin(), file.bytes().end()}; }

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class FileSystemTest : public testing::Test {
 protected:
  FileSystem& file_system_ = *FileSystem::Real();
  const TemporaryFolder folder_;
};

TEST_F(FileSystemTest, AFileIsEmptiedContinuedOverwrittenAndMapped) {
  const std::string path = folder_.File("data");
  WriteText(path, "old content");
  ASSERT_TRUE(file_system_.Create(path).ok());
  EXPECT_EQ(Text(**file_system_.Map(path)), "");
  for (const char* part : {"abc", "def"}) {
    const auto file = file_system_.OpenForAppend(path).value();
    ASSERT_TRUE(file->Append(Bytes(part)).ok());
    ASSERT_TRUE(file->Overwrite(1, Bytes("XY")).ok());
    ASSERT_TRUE(file->Append({}).ok());
    ASSERT_TRUE(file->Append(Bytes("!")).ok());
    ASSERT_TRUE(file->Sync().ok());
  }
  EXPECT_EQ(*file_system_.ReadFile(path), "aXY!def!");
  EXPECT_EQ(Text(**file_system_.Map(path)), "aXY!def!");
  EXPECT_EQ(*file_system_.FileSize(path), 8u);
  EXPECT_THAT(file_system_.FileSize(path + ".absent"), StatusIs(kNotFound));
}

// On disk, which a file with holes has less of than its size.
int64_t DiskBytes(const std::string& path) {
  struct stat found = {};
  EXPECT_EQ(stat(path.c_str(), &found), 0) << path;
  return int64_t{found.st_blocks} * 512;
}

TEST_F(FileSystemTest, AFileThatIsAppendedToReservesWhatLiesBehindIt) {
  const std::string path = folder_.File("data");
  auto file = file_system_.Create(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Reserve(1 << 20).ok());
  if (DiskBytes(path) == 0) GTEST_SKIP() << "this file system reserves nothing";
  ASSERT_EQ(truncate(path.c_str(), 0), 0);
  ASSERT_EQ(truncate(path.c_str(), 1 << 20), 0);  // A hole.
  file = file_system_.OpenForAppend(path);
  ASSERT_TRUE(file.ok());
  const int64_t before = DiskBytes(path);
  ASSERT_TRUE((*file)->Reserve(3 << 20).ok());
  EXPECT_GE(DiskBytes(path) - before, 2 << 20);
  EXPECT_LT(DiskBytes(path) - before, 3 << 20) << "the hole, too";
}

TEST_F(FileSystemTest, ReservedSpaceIsNotContent) {
  const std::string path = folder_.File("data");
  auto file = file_system_.Create(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Reserve(1 << 20).ok());
  EXPECT_EQ(*file_system_.FileSize(path), 0u);
  ASSERT_TRUE((*file)->Append(Bytes("abc")).ok());
  file = file_system_.OpenForAppend(path);
  ASSERT_TRUE(file.ok());
  for (const uint64_t bytes : {2, 3, 4, 1 << 20}) ASSERT_TRUE((*file)->Reserve(bytes).ok());
  EXPECT_EQ(*file_system_.FileSize(path), 3u);
  const uint64_t free = *file_system_.FreeBytes(folder_.path());
  EXPECT_GT(free, 0u);
  EXPECT_THAT(file_system_.FreeBytes(path + ".absent"), StatusIs(kNotFound));
}

TEST_F(FileSystemTest, TheOwnerOfALockIsNamedToOthers) {
  EXPECT_EQ(*file_system_.LockOwner(folder_.path()), "");
  auto lock = file_system_.Lock(folder_.path()).value();
  EXPECT_EQ(*file_system_.LockOwner(folder_.path()), absl::StrCat(getpid()));
  const absl::Status second = file_system_.Lock(folder_.path()).status();
  EXPECT_THAT(second, StatusIs(kAlreadyExists, HasSubstr(absl::StrCat("pid ", getpid()))));
  EXPECT_THAT(Message(second), HasSubstr(folder_.path()));
  lock.reset();
  EXPECT_EQ(*file_system_.LockOwner(folder_.path()), "");
}

TEST_F(FileSystemTest, WhoAsksForTheOwnerKeepsNobodyOut) {
  std::atomic<bool> done = false;
  std::thread asking([&] {
    while (!done) EXPECT_TRUE(file_system_.LockOwner(folder_.path()).ok());
  });
  for (int i = 0; i < 300; ++i) {
    const auto lock = file_system_.Lock(folder_.path());
    EXPECT_TRUE(lock.ok()) << lock.status();
    EXPECT_THAT(file_system_.Lock(folder_.path()), StatusIs(kAlreadyExists));
  }
  done = true;
  asking.join();
}

TEST_F(FileSystemTest, AGitLfsPointerInTheFilesPlaceIsCalledThat) {
  const std::string path = folder_.File("model.safetensors");
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, '0') +
      "\nsize 4943162240\n";
  ASSERT_TRUE(WriteFileAtomically(file_system_, path, absl::string_view(pointer)).ok());
  for (const absl::Status& status :
       {file_system_.ReadFile(path).status(), file_system_.Map(path).status()}) {
    EXPECT_THAT(status,
                StatusIs(kFailedPrecondition,
                         ::testing::HasSubstr(path + " is a Git LFS pointer, not the file")));
  }
}

TEST_F(FileSystemTest, AFileLargerThanOneReadComesBackWhole) {
  std::string content;
  for (int i = 0; content.size() < 300'000; ++i) absl::StrAppend(&content, i, ";");
  const std::string path = folder_.File("large");
  ASSERT_TRUE(WriteFileAtomically(file_system_, path, absl::string_view(content)).ok());
  EXPECT_EQ(*file_system_.ReadFile(path), content);
}

TEST_F(FileSystemTest, AMappingOutlivesTheRemovalOfItsFile) {
  const std::string path = folder_.File("data");
  ASSERT_TRUE(WriteFileAtomically(file_system_, path, absl::string_view("kept")).ok());
  auto mapped = file_system_.Map(path).value();
  ASSERT_TRUE(file_system_.Remove(path).ok());
  EXPECT_FALSE(file_system_.Exists(path));
  EXPECT_EQ(Text(*mapped), "kept");
}

TEST_F(FileSystemTest, AFolderCannotBeMapped) {
  const absl::Status status = file_system_.Map(folder_.path()).status();
  EXPECT_THAT(status, StatusIs(kInvalidArgument));
  EXPECT_THAT(Message(status), HasSubstr(folder_.path()));
}

TEST_F(FileSystemTest, EveryCallOnAMissingPathIsNotFoundAndNamesIt) {
  const std::string path = folder_.File("missing/file");
  const absl::Status statuses[] = {file_system_.Create(path).status(),
                                   file_system_.Map(path).status(),
                                   file_system_.ReadFile(path).status(),
                                   file_system_.Rename(path, path + "2"),
                                   file_system_.Remove(path),
                                   file_system_.SyncFolder(path),
                                   file_system_.List(path).status(),
                                   file_system_.Lock(path).status(),
                                   WriteFileAtomically(file_system_, path, absl::string_view("x"))};
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(kNotFound));
    EXPECT_THAT(Message(status), HasSubstr(path));
    EXPECT_THAT(Message(status), HasSubstr("No such file or directory"));
  }
}

TEST_F(FileSystemTest, AFileInThePlaceOfAFolderIsAnErrorThatNamesThePath) {
  const std::string file = folder_.File("file");
  ASSERT_TRUE(WriteFileAtomically(file_system_, file, absl::string_view("x")).ok());
  const absl::Status status = file_system_.CreateFolders(JoinPath(file, "below"));
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(Message(status), HasSubstr(file));
  EXPECT_THAT(file_system_.ReadFile(JoinPath(file, "below")), StatusIs(kNotFound));
}

TEST_F(FileSystemTest, AForbiddenFileIsPermissionDenied) {
  if (geteuid() == 0) GTEST_SKIP() << "root may do everything";
  const std::string path = folder_.File("secret");
  ASSERT_TRUE(WriteFileAtomically(file_system_, path, absl::string_view("x")).ok());
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  EXPECT_THAT(file_system_.ReadFile(path), StatusIs(kPermissionDenied));
}

TEST_F(FileSystemTest, ListGivesSortedNames) {
  EXPECT_THAT(*file_system_.List(folder_.path()), IsEmpty());
  for (const char* name : {"b", "c", "a"}) {
    ASSERT_TRUE(file_system_.Create(folder_.File(name)).ok());
  }
  ASSERT_TRUE(file_system_.CreateFolders(folder_.File("aa/deep/er")).ok());
  EXPECT_THAT(*file_system_.List(folder_.path()), ElementsAre("a", "aa", "b", "c"));
  EXPECT_TRUE(file_system_.IsFolder(folder_.File("aa/deep/er")));
  EXPECT_FALSE(file_system_.IsFolder(folder_.File("a")));
  EXPECT_TRUE(file_system_.CreateFolders(folder_.File("aa/deep")).ok());
}

TEST_F(FileSystemTest, AtomicWriteLeavesNothingBesideTheFile) {
  const std::string path = folder_.File("state");
  ASSERT_TRUE(WriteFileAtomically(file_system_, path, absl::string_view("first")).ok());
  ASSERT_TRUE(WriteFileAtomically(file_system_, path, absl::string_view("second")).ok());
  EXPECT_EQ(*file_system_.ReadFile(path), "second");
  EXPECT_THAT(*file_system_.List(folder_.path()), ElementsAre("state"));
}

TEST(FaultyDisk, AtomicWriteThatFailsAnywhereKeepsTheOldContentWhole) {
  const char* const calls[] = {"create /state.tmp", "write /state.tmp", "sync /state.tmp",
                               "rename to /state"};
  for (int n = 0; n < 4; ++n) {
    FaultDisk disk;
    ASSERT_TRUE(WriteFileAtomically(disk, "/state", absl::string_view("old")).ok());
    disk.FailCall(n, FaultDisk::Fault::kInputOutput);
    EXPECT_THAT(WriteFileAtomically(disk, "/state", absl::string_view("a longer text")),
                StatusIs(kInternal));
    EXPECT_THAT(disk.failed_call(), StartsWith(calls[n]));
    EXPECT_EQ(disk.Content("/state"), "old") << "after a failed " << calls[n];
    EXPECT_THAT(disk.Files(), ElementsAre("/state")) << "after a failed " << calls[n];
    ASSERT_TRUE(WriteFileAtomically(disk, "/state", absl::string_view("short")).ok());
    EXPECT_EQ(disk.Content("/state"), "short");
  }
}

TEST(FaultyDisk, AtomicWriteReportsAFolderThatCannotBeSynced) {
  FaultDisk disk;
  disk.FailCall(4, FaultDisk::Fault::kInputOutput);
  EXPECT_THAT(WriteFileAtomically(disk, "/state", absl::string_view("new")), StatusIs(kInternal));
  EXPECT_THAT(disk.failed_call(), StartsWith("sync /"));
  EXPECT_EQ(disk.Content("/state"), "new") << "either content is whole";
}

TEST_F(FileSystemTest, ALockFileLeftByADeadOwnerIsNoObstacle) {
  ASSERT_TRUE(
      WriteFileAtomically(file_system_, folder_.File("LOCK"), absl::string_view("123456789012"))
          .ok());
  auto lock = file_system_.Lock(folder_.path()).value();
  EXPECT_EQ(*file_system_.ReadFile(folder_.File("LOCK")), absl::StrCat(getpid()));
}

TEST(JoinPath, PutsOneSlashBetween) {
  EXPECT_EQ(JoinPath("a/b", "c"), "a/b/c");
  EXPECT_EQ(JoinPath("a/b/", "c"), "a/b/c");
  EXPECT_EQ(JoinPath("/", "c"), "/c");
  EXPECT_EQ(JoinPath("", "c"), "c");
}

TEST(ParentFolder, IsWhereThePathLies) {
  EXPECT_EQ(ParentFolder("a/b/c"), "a/b");
  EXPECT_EQ(ParentFolder("/a/b"), "/a");
  EXPECT_EQ(ParentFolder("/a"), "/");
  EXPECT_EQ(ParentFolder("c"), ".");
  EXPECT_EQ(ParentFolder("a/b/"), "a");
  EXPECT_EQ(ParentFolder("a//b"), "a");
  EXPECT_EQ(ParentFolder("c/"), ".");
  EXPECT_EQ(ParentFolder("/a/"), "/");
  EXPECT_EQ(ParentFolder("/"), "/");
}

// A mapped file of many pages that has become one page long.
class ShorterFile {
 public:
  ShorterFile() {
    const std::vector<uint8_t> content(size_t{64} << 10, 7);
    EXPECT_TRUE(WriteFileAtomically(*FileSystem::Real(), path_, content).ok());
    file_ = FileSystem::Real()->Map(path_).value();
    EXPECT_EQ(truncate(path_.c_str(), 4096), 0);
  }
  const std::string& path() const { return path_; }
  uint8_t At(size_t index) const {
    return static_cast<const volatile uint8_t*>(file_->bytes().data())[index];
  }

 private:
  const TemporaryFolder folder_;
  const std::string path_ = folder_.File("shard.bin");
  std::unique_ptr<MappedFile> file_;
};

TEST(MappedFaultsDeathTest, AReadBeyondTheNewEndIsAnErrorThatNamesTheFileAndOthersGoOn) {
  // In a process of its own: the handler stays.
  const auto read = [] {
    NameMappedFaults();
    const ShorterFile file;
    int value = 0;
    for (int i = 0; i < 2; ++i) {
      const absl::Status status =
          ReadMapped(file.path(), [&] { value = file.At(size_t{40} << 10); });
      if (!absl::IsDataLoss(status) ||
          status.message().substr(0, file.path().size()) != file.path()) {
        _exit(2);
      }
    }
    const absl::Status status = ReadMapped(file.path(), [&] { value = file.At(100); });
    _exit(status.ok() && value == 7 ? 0 : 3);
  };
  EXPECT_EXIT(read(), ::testing::ExitedWithCode(0), "");
}

TEST(MappedFaultsDeathTest, OutsideOfSuchAReadTheProcessEndsWithALineThatNamesTheFile) {
  const auto read = [] {
    NameMappedFaults();
    const ShorterFile file;
    _exit(file.At(size_t{40} << 10));
  };
  EXPECT_EXIT(read(), ::testing::ExitedWithCode(1),
              HasSubstr("/shard.bin became shorter while it was read"));
}

TEST(MappedFaultsDeathTest, ASignalThatIsNoFaultOfAFileEndsTheProcessAsBefore) {
  const auto raised = [] {
    NameMappedFaults();
    raise(SIGBUS);
  };
  EXPECT_EXIT(raised(), ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace causeway
