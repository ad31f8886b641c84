#include "server/store/checkpoint_file.h"

#include <string>
#include <vector>

#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

class CheckpointFileTest : public ::testing::Test {
 protected:
  CheckpointFileTest() {
    identity_.run_id = "run-1234";
    identity_.config.set_run_name("toy");
    identity_.config_hash = 0xfedcba9876543210;
    identity_.plan_hash = 5;
    fragments_ = {{.fragment = 0,
                   .version = 7,
                   .published_hash = 42,
                   .theta = theta_,
                   .published = published_,
                   .optimizer = {{"momentum", momentum_}, {"empty", {}}}},
                  {.fragment = 1, .version = 0, .theta = momentum_, .published = momentum_}};
  }

  std::string WriteAndRead() {
    EXPECT_TRUE(WriteCheckpoint(fs_, path_, identity_, fragments_).ok());
    return *fs_.ReadFile(path_);
  }
  absl::Status ReadChanged(const std::string& bytes) {
    const auto file = fs_.Create(path_).value();
    EXPECT_TRUE(
        file->Append(std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size())).ok());
    return ReadCheckpoint(fs_, path_).status();
  }

  FileSystem& fs_ = *FileSystem::Real();
  const TemporaryFolder folder_;
  const std::string path_ = folder_.File("checkpoint.bin");
  const std::vector<float> theta_ = {1.5f, -2.0f, 3.0f};
  const std::vector<float> published_ = {1.0f, -2.5f, 0.0f};
  const std::vector<float> momentum_ = {0.25f, 1e-30f, -0.0f};
  RunIdentity identity_;
  std::vector<FragmentView> fragments_;
};

TEST_F(CheckpointFileTest, WhatWasWrittenIsRead) {
  WriteAndRead();
  const absl::StatusOr<RunSnapshot> read = ReadCheckpoint(fs_, path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->identity.run_id, "run-1234");
  EXPECT_EQ(read->identity.config.run_name(), "toy");
  EXPECT_EQ(read->identity.config_hash, 0xfedcba9876543210);
  EXPECT_EQ(read->identity.plan_hash, 5u);
  ASSERT_EQ(read->fragments.size(), 2u);
  const FragmentSnapshot& first = read->fragments[0];
  EXPECT_EQ(first.version, 7);
  EXPECT_EQ(first.published_hash, 42u);
  EXPECT_EQ(first.theta, theta_);
  EXPECT_EQ(first.published, published_);
  ASSERT_EQ(first.optimizer.size(), 2u);
  EXPECT_EQ(first.optimizer[0].first, "momentum");
  EXPECT_EQ(first.optimizer[0].second, momentum_);
  EXPECT_TRUE(first.optimizer[1].second.empty());
  EXPECT_EQ(read->fragments[1].fragment, 1);
}

TEST_F(CheckpointFileTest, AnyCutIsRefused) {
  const std::string whole = WriteAndRead();
  for (size_t size = 0; size < whole.size(); ++size) {
    const absl::Status status = ReadChanged(whole.substr(0, size));
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << "cut to " << size << ": " << status;
    ASSERT_THAT(status.message(), HasSubstr(path_));
  }
}

TEST_F(CheckpointFileTest, AnyFlippedBitIsRefused) {
  const std::string whole = WriteAndRead();
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    ASSERT_EQ(ReadChanged(changed).code(), absl::StatusCode::kDataLoss) << "byte " << i;
  }
}

TEST_F(CheckpointFileTest, AMissingFileIsNotFound) {
  EXPECT_EQ(ReadCheckpoint(fs_, path_ + ".absent").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace causeway::server
