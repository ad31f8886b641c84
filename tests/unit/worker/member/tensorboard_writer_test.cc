#include "worker/member/run_telemetry.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::worker {
namespace {

using ::testing::EndsWith;

std::span<const uint8_t> Bytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

template <typename T>
T LittleEndian(absl::string_view bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

// Every event of a file, checksums verified by making each record again.
std::vector<tensorboard::Event> Read(const std::string& path) {
  const std::string text = *FileSystem::Real()->ReadFile(path);
  std::vector<tensorboard::Event> events;
  absl::string_view rest = text;
  while (!rest.empty()) {
    const auto length = LittleEndian<uint64_t>(rest);
    const absl::string_view data = rest.substr(12, length);
    EXPECT_EQ(rest.substr(0, length + 16), TensorBoardRecord(data));
    EXPECT_TRUE(events.emplace_back().ParseFromString(std::string(data)));
    rest.remove_prefix(length + 16);
  }
  return events;
}

TEST(Crc32c, HasTheValuesOfRfc3720) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283U);
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\0'))), 0x8A9136AAU);
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\xff'))), 0x62A8AB43U);
  EXPECT_EQ(Crc32c({}), 0U);
}

// RecordWriter of tensorboard 2.21 makes these bytes of the same event.
TEST(TensorBoardRecord, IsThatOfTensorBoard) {
  tensorboard::Event event;
  event.set_wall_time(1700000000.0);
  event.set_file_version("brain.Event:2");
  const std::string data = event.SerializeAsString();
  EXPECT_EQ(absl::BytesToHexString(data), "0900000040fc54d9411a0d627261696e2e4576656e743a32");
  EXPECT_EQ(absl::BytesToHexString(TensorBoardRecord(data)),
            "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d");
}

class TensorBoardWriterTest : public testing::Test {
 protected:
  std::unique_ptr<TensorBoardWriter> Create(int64_t first_step = 1) {
    auto writer = TensorBoardWriter::Create(*FileSystem::Real(), folder_.File("curves/a"), "a",
                                            first_step, clock_);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }
  const TemporaryFolder folder_;
  FakeClock clock_;
};

TEST_F(TensorBoardWriterTest, ScalarsOfAStepAreOneEvent) {
  const auto writer = Create();
  clock_.Advance(absl::Milliseconds(500));
  ASSERT_TRUE(writer->Add(7, {{"train/loss", 2.5}, {"train/learning_rate", 0.01}}).ok());
  const auto events = Read(writer->path());
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[2].step(), 7);
  EXPECT_EQ(events[2].wall_time(), 1'700'000'000.5);
  ASSERT_EQ(events[2].summary().value_size(), 2);
  EXPECT_EQ(events[2].summary().value(0).tag(), "train/loss");
  EXPECT_EQ(events[2].summary().value(0).simple_value(), 2.5F);
}

TEST_F(TensorBoardWriterTest, ASuccessorHasAFileOfItsOwnAndVoidsTheStepsThatItRepeats) {
  const auto first = Create();
  const auto second = Create(31);
  EXPECT_NE(first->path(), second->path());
  EXPECT_THAT(first->path(), EndsWith("events.out.tfevents.1700000000.a"));
  const auto events = Read(second->path());
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1].step(), 31);
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
}

TEST_F(TensorBoardWriterTest, WhatIsNotFiniteIsLeftOut) {
  const auto writer = Create();
  ASSERT_TRUE(writer
                  ->Add(1, {{"a", std::numeric_limits<double>::quiet_NaN()},
                            {"b", std::numeric_limits<double>::infinity()},
                            {"c", 1}})
                  .ok());
  const auto events = Read(writer->path());
  ASSERT_EQ(events.back().summary().value_size(), 1);
  EXPECT_EQ(events.back().summary().value(0).tag(), "c");
}

}  // namespace
}  // namespace causeway::worker
