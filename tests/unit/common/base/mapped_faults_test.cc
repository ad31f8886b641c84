#include "common/base/file_system.h"

#include <unistd.h>

#include <csignal>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;

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
