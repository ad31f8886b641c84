#include "common/files/array_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/checksum.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;

constexpr ArrayFileKind kKind = {'T', 'E', 'S', 'T', 'F', 'I', 'L', 'E'};

class ArrayFileTest : public ::testing::Test {
 protected:
  ArrayFileTest() {
    const std::vector<NamedBytes> arrays = {NameBytes("floats", std::span(floats_)),
                                            NameBytes("nothing", std::span<const float>()),
                                            NameBytes("bytes", std::span(bytes_))};
    EXPECT_TRUE(WriteArrayFile(files_, path_, kKind, 3, {{"step", 7}}, arrays).ok());
  }

  absl::StatusOr<ArrayFile> ReadChanged(const std::string& content) {
    WriteText(path_, content);
    return ArrayFile::Read(files_, path_, kKind, 3);
  }

  FileSystem& files_ = *FileSystem::Real();
  const TemporaryFolder folder_;
  const std::string path_ = folder_.File("arrays");
  const std::vector<float> floats_ = {1.5F, -0.0F, 3e-39F};
  const std::vector<uint8_t> bytes_ = {9, 8, 7};
};

TEST_F(ArrayFileTest, GivesBackWhatWasWritten) {
  const auto file = ArrayFile::Read(files_, path_, kKind, 3).value();
  EXPECT_EQ(file.metadata().at("step"), 7);
  std::vector<float> floats(3);
  ASSERT_TRUE(file.CopyTo("floats", std::span(floats)).ok());
  EXPECT_EQ(floats, floats_);
  EXPECT_EQ(file.Find("nothing")->bytes.size(), 0);
  EXPECT_TRUE(std::ranges::equal(file.Find("bytes")->bytes, bytes_));
  EXPECT_EQ(file.Find("something else"), nullptr);
}

TEST_F(ArrayFileTest, AnArrayOfAnotherSizeIsRefusedByName) {
  const absl::StatusOr<ArrayFile> file = ArrayFile::Read(files_, path_, kKind, 3);
  std::vector<float> floats(4);
  EXPECT_THAT(file->CopyTo("floats", std::span(floats)), StatusIs(kDataLoss, HasSubstr("floats")));
}

TEST_F(ArrayFileTest, EveryTruncationIsNoticed) {
  const std::string content = files_.ReadFile(path_).value();
  for (size_t size = 0; size < content.size(); ++size) {
    const absl::StatusOr<ArrayFile> file = ReadChanged(content.substr(0, size));
    ASSERT_THAT(file, StatusIs(kDataLoss, HasSubstr(path_))) << "cut to " << size;
  }
}

TEST_F(ArrayFileTest, EveryFlippedBitIsNoticed) {
  const std::string content = files_.ReadFile(path_).value();
  for (size_t bit = 0; bit < 8 * content.size(); ++bit) {
    std::string changed = content;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_THAT(ReadChanged(changed), StatusIs(kDataLoss)) << "bit " << bit;
  }
}

TEST_F(ArrayFileTest, MoreBytesAreNoticed) {
  EXPECT_THAT(ReadChanged(files_.ReadFile(path_).value() + "x"), StatusIs(kDataLoss));
}

// A fuzzer's finding.
TEST_F(ArrayFileTest, ASizeThatIsNoIntegerIsRefused) {
  const std::string whole = files_.ReadFile(path_).value();
  for (const char* size : {"1e300", "-1e9", "3.0", "-1"}) {
    std::string header =
        R"({"arrays":[{"bytes":)" + std::string(size) + R"(,"name":"p"}],"metadata":{}})";
    const auto header_bytes = static_cast<uint32_t>(header.size());
    std::string content = whole.substr(0, 12);
    content.append(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
    content += header + "abc";
    const uint64_t hash =
        TreeHash(std::span(reinterpret_cast<const uint8_t*>(content.data()), content.size()));
    content.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
    EXPECT_THAT(ReadChanged(content), StatusIs(kDataLoss)) << size;
  }
}

TEST_F(ArrayFileTest, AnotherVersionIsRefusedWithBothNumbers) {
  EXPECT_THAT(ArrayFile::Read(files_, path_, kKind, 4),
              StatusIs(kFailedPrecondition, AllOf(HasSubstr("version 3"), HasSubstr("version 4"))));
}

TEST_F(ArrayFileTest, AnotherKindIsRefused) {
  constexpr ArrayFileKind kOther = {'O', 'T', 'H', 'E', 'R', 'O', 'N', 'E'};
  EXPECT_THAT(ArrayFile::Read(files_, path_, kOther, 3), StatusIs(kDataLoss));
}

// Former releases wrote them where several coordinators served one run.
TEST_F(ArrayFileTest, ParametersOfSomeFragmentsAloneAreRefused) {
  ASSERT_TRUE(WriteParametersFile(files_, path_, {{"source", "a"}}, "", floats_).ok());
  EXPECT_EQ(MappedParameters::Open(files_, path_)->All(), floats_);
  ASSERT_TRUE(WriteParametersFile(files_, path_, {{"fragments", {0, 2}}}, "", floats_).ok());
  EXPECT_THAT(MappedParameters::Open(files_, path_),
              StatusIs(kFailedPrecondition, HasSubstr("give a file with all of them")));
}

}  // namespace
}  // namespace causeway
