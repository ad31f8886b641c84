#include "worker/data/token_shard.h"

#include <gmock/gmock.h>

#include "tests/unit/worker/data/data_test_util.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenShardTest : public DataTest {
 protected:
  // The error of opening root/name.
  std::string OpenError(const std::string& name) {
    const absl::StatusOr<TokenShard> shard = TokenShard::Open(files_, Path(name));
    EXPECT_FALSE(shard.ok());
    return std::string(shard.status().message());
  }
};

TEST_F(TokenShardTest, WhatIsWrittenIsReadBackAcrossShards) {
  const std::vector<int32_t> tokens = CountingTokens(25, 256);
  WriteShards("d", "train", tokens, 256, /*shard_tokens=*/10);
  std::vector<int32_t> read;
  for (const char* name : {"d/train_000000.bin", "d/train_000001.bin", "d/train_000002.bin"}) {
    const absl::StatusOr<TokenShard> shard = TokenShard::Open(files_, Path(name));
    ASSERT_TRUE(shard.ok()) << shard.status();
    EXPECT_EQ(shard->vocabulary_size(), 256);
    std::vector<int32_t> part(static_cast<size_t>(shard->tokens()));
    ASSERT_TRUE(shard->Read(0, 256, part).ok());
    read.insert(read.end(), part.begin(), part.end());
  }
  EXPECT_EQ(read, tokens);
  EXPECT_FALSE(files_.Exists(Path("d/train_000003.bin")));
}

TEST_F(TokenShardTest, BytesOnDiskAreThoseOfTheFormat) {
  WriteShards("d", "train", std::vector<int32_t>{1, 258}, 300);
  const std::string content = ReadFile("d/train_000000.bin");
  ASSERT_EQ(content.size(), 1024u + 4u);
  std::vector<int32_t> header(256);
  std::memcpy(header.data(), content.data(), 1024);
  EXPECT_THAT(std::span(header).first(4), ElementsAre(20240520, 1, 2, 300));
  EXPECT_EQ(content.substr(1024), std::string("\x01\x00\x02\x01", 4));
}

TEST_F(TokenShardTest, LargeVocabulariesTakeFourBytes) {
  WriteShards("small", "train", std::vector<int32_t>{65535}, 65536);
  WriteShards("large", "train", std::vector<int32_t>{65536, 7}, 65537);
  EXPECT_EQ(ReadFile("small/train_000000.bin").size(), 1024u + 2u);
  const absl::StatusOr<TokenShard> large = TokenShard::Open(files_, Path("large/train_000000.bin"));
  ASSERT_TRUE(large.ok()) << large.status();
  std::vector<int32_t> read(2);
  ASSERT_TRUE(large->Read(0, 65537, read).ok());
  EXPECT_THAT(read, ElementsAre(65536, 7));
  EXPECT_EQ(large->LargestToken(), 65536);
}

TEST_F(TokenShardTest, WriterRefusesTokensOutsideTheVocabulary) {
  TokenShardWriter writer(files_, root_, "train", 256, 100);
  EXPECT_FALSE(writer.Append(std::vector<int32_t>{256}).ok());
  EXPECT_FALSE(writer.Append(std::vector<int32_t>{-1}).ok());
}

TEST_F(TokenShardTest, TokenOutsideTheVocabularyIsReportedWithItsPlace) {
  WriteShards("d", "train", std::vector<int32_t>{1, 2, 200, 3}, 256);
  const absl::StatusOr<TokenShard> shard = TokenShard::Open(files_, Path("d/train_000000.bin"));
  ASSERT_TRUE(shard.ok());
  std::vector<int32_t> read(3);
  const absl::Status status = shard->Read(1, 128, read);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("token 2"), HasSubstr("train_000000.bin"), HasSubstr("200")));
}

TEST_F(TokenShardTest, TokensBeyondInt32AreNotTakenForNegativeOnes) {
  WriteShards("d", "train", std::vector<int32_t>{1, 2}, 70000);
  PatchWord("d/train_000000.bin", 256, -1);
  const absl::StatusOr<TokenShard> shard = TokenShard::Open(files_, Path("d/train_000000.bin"));
  ASSERT_TRUE(shard.ok());
  std::vector<int32_t> read(2);
  EXPECT_THAT(shard->Read(0, 70000, read).message(), HasSubstr("4294967295"));
}

TEST_F(TokenShardTest, HostileFilesAreRefusedByName) {
  WriteFile("empty.bin", "");
  EXPECT_THAT(OpenError("empty.bin"), AllOf(HasSubstr("empty.bin"), HasSubstr("is empty")));
  WriteFile("short.bin", "abc");
  EXPECT_THAT(OpenError("short.bin"), AllOf(HasSubstr("short.bin"), HasSubstr("header of 1024")));
  WriteFile("text.bin", std::string(2000, 'a'));
  EXPECT_THAT(OpenError("text.bin"), AllOf(HasSubstr("text.bin"), HasSubstr("20240520")));
  EXPECT_THAT(OpenError("missing.bin"), HasSubstr("missing.bin"));

  const auto with_word = [&](size_t word, int32_t value) {
    WriteShards("d", "train", CountingTokens(10, 256), 256);
    PatchWord("d/train_000000.bin", word, value);
    return OpenError("d/train_000000.bin");
  };
  EXPECT_THAT(with_word(1, 2), HasSubstr("version 2"));
  EXPECT_THAT(with_word(2, 0), HasSubstr("without tokens"));
  EXPECT_THAT(with_word(2, 11), HasSubstr("promises 11 tokens"));
  EXPECT_THAT(with_word(2, 9), HasSubstr("promises 9 tokens"));
  EXPECT_THAT(with_word(2, -10), HasSubstr("promises -10 tokens"));
  EXPECT_THAT(with_word(2, 0x7fffffff), HasSubstr("promises 2147483647 tokens"));
  EXPECT_THAT(with_word(3, -1), HasSubstr("vocabulary of -1"));
  EXPECT_THAT(with_word(3, 65537), HasSubstr("vocabulary of 65537"));
}

}  // namespace
}  // namespace causeway::worker
