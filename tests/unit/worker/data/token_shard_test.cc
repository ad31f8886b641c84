#include "worker/data/token_shard.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "common/base/file_system.h"
#include "tests/unit/common/base/status_is.h"
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
    const auto shard = TokenShard::Open(files_, Path(name)).value();
    EXPECT_EQ(shard.vocabulary_size(), 256);
    std::vector<int32_t> part(static_cast<size_t>(shard.tokens()));
    ASSERT_TRUE(shard.Read(0, 256, part).ok());
    read.insert(read.end(), part.begin(), part.end());
  }
  EXPECT_EQ(read, tokens);
  EXPECT_FALSE(files_.Exists(Path("d/train_000003.bin")));
}

TEST_F(TokenShardTest, AFileThatBecomesShorterIsAnErrorWithItsName) {
  NameMappedFaults();
  WriteShards("d", "train", CountingTokens(20'000, 256), 256, /*shard_tokens=*/20'000);
  const std::string path = Path("d/train_000000.bin");
  const auto shard = TokenShard::Open(files_, path).value();
  std::vector<int32_t> read(1000);
  ASSERT_TRUE(shard.Read(19'000, 256, read).ok());
  ASSERT_EQ(truncate(path.c_str(), 4096), 0);
  EXPECT_THAT(shard.Read(19'000, 256, read),
              StatusIs(kDataLoss, HasSubstr(path + " became shorter")));
  EXPECT_TRUE(shard.Read(0, 256, read).ok());
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
  const auto large = TokenShard::Open(files_, Path("large/train_000000.bin")).value();
  std::vector<int32_t> read(2);
  ASSERT_TRUE(large.Read(0, 65537, read).ok());
  EXPECT_THAT(read, ElementsAre(65536, 7));
  EXPECT_EQ(large.LargestToken(), 65536);
}

TEST_F(TokenShardTest, WriterRefusesTokensOutsideTheVocabulary) {
  TokenShardWriter writer(files_, root_, "train", 256, 100);
  EXPECT_FALSE(writer.Append(std::vector<int32_t>{256}).ok());
  EXPECT_FALSE(writer.Append(std::vector<int32_t>{-1}).ok());
}

TEST_F(TokenShardTest, TokenOutsideTheVocabularyIsReportedWithItsPlace) {
  WriteShards("d", "train", std::vector<int32_t>{1, 2, 200, 3}, 256);
  const auto shard = TokenShard::Open(files_, Path("d/train_000000.bin")).value();
  std::vector<int32_t> read(3);
  EXPECT_THAT(shard.Read(1, 128, read),
              StatusIs(kDataLoss, AllOf(HasSubstr("token 2"), HasSubstr("train_000000.bin"),
                                        HasSubstr("200"))));
}

TEST_F(TokenShardTest, TokensBeyondInt32AreNotTakenForNegativeOnes) {
  WriteShards("d", "train", std::vector<int32_t>{1, 2}, 70000);
  PatchWord("d/train_000000.bin", 256, -1);
  const auto shard = TokenShard::Open(files_, Path("d/train_000000.bin")).value();
  std::vector<int32_t> read(2);
  EXPECT_THAT(shard.Read(0, 70000, read).message(), HasSubstr("4294967295"));
}

std::string Bytes16(std::span<const int32_t> tokens) {
  std::string bytes;
  for (const int32_t token : tokens) {
    bytes.push_back(static_cast<char>(token & 0xFF));
    bytes.push_back(static_cast<char>(token >> 8 & 0xFF));
  }
  return bytes;
}

std::string Bytes32(std::span<const int32_t> tokens) {
  std::string bytes;
  for (const int32_t token : tokens) {
    bytes += Bytes16(std::vector<int32_t>{token, token >> 16});
  }
  return bytes;
}

TEST_F(TokenShardTest, FilesWithoutAHeaderAreReadWhereTheyTellTheirFormat) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < 3000; ++i) tokens.push_back(i * 7919 % 50257);
  WriteFile("16.bin", Bytes16(tokens));
  WriteFile("32.bin", Bytes32(tokens));
  for (int32_t& token : tokens) token = token * 2 + 20000;  // Beyond 65536, as in Llama 3.
  WriteFile("large.bin", Bytes32(tokens));
  for (const char* name : {"16.bin", "32.bin", "large.bin"}) {
    const auto shard = TokenShard::Open(files_, Path(name)).value();
    ASSERT_EQ(shard.tokens(), 3000) << name;
    EXPECT_EQ(shard.vocabulary_size(), 0);
    std::vector<int32_t> read(3000);
    ASSERT_TRUE(shard.Read(0, 200000, read).ok());
    if (name == std::string("large.bin")) {
      EXPECT_EQ(read, tokens);
    } else {
      EXPECT_EQ(read[2999], 2999 * 7919 % 50257);
    }
  }
}

TEST_F(TokenShardTest, AmbiguousFilesAreRefusedUntilTheirFormatIsSaid) {
  const std::vector<int32_t> bytes = CountingTokens(1000, 256);
  WriteFile("16.bin", Bytes16(bytes));
  WriteFile("32.bin", Bytes32(bytes));
  EXPECT_THAT(OpenError("16.bin"), HasSubstr("--shard_format=uint16"));
  EXPECT_THAT(OpenError("32.bin"), HasSubstr("--shard_format=uint32"));
  EXPECT_EQ(TokenShard::Open(files_, Path("16.bin"), ShardFormat::kUint16)->tokens(), 1000);
  EXPECT_EQ(TokenShard::Open(files_, Path("32.bin"), ShardFormat::kUint32)->tokens(), 1000);
  EXPECT_EQ(TokenShard::Open(files_, Path("32.bin"), ShardFormat::kUint16)->tokens(), 2000);
  WriteFile("odd.bin", std::string(1001, '\0'));
  EXPECT_THAT(TokenShard::Open(files_, Path("odd.bin"), ShardFormat::kUint16).status().message(),
              HasSubstr("no whole number"));
  EXPECT_THAT(TokenShard::Open(files_, Path("16.bin"), ShardFormat::kLlmC).status().message(),
              HasSubstr("20240520"));
}

TEST_F(TokenShardTest, DamagedHeaderIsNotTakenForTokens) {
  WriteShards("d", "train", CountingTokens(3000, 50000), 50000);
  PatchWord("d/train_000000.bin", 0, 20240521);
  EXPECT_THAT(OpenError("d/train_000000.bin"), HasSubstr("20240520"));
}

TEST_F(TokenShardTest, FormatsAreKnownByTheirNames) {
  for (const ShardFormat format : {ShardFormat::kUint16, ShardFormat::kUint32}) {
    EXPECT_EQ(*ParseShardFormat(ShardFormatName(format)), format);
  }
  EXPECT_THAT(ParseShardFormat("npy").status().message(),
              AllOf(HasSubstr("npy"), HasSubstr("llmc")));
}

TEST_F(TokenShardTest, HostileFilesAreRefusedByName) {
  WriteFile("empty.bin", "");
  EXPECT_THAT(OpenError("empty.bin"), AllOf(HasSubstr("empty.bin"), HasSubstr("is empty")));
  WriteFile("short.bin", "abc");
  EXPECT_THAT(OpenError("short.bin"), AllOf(HasSubstr("short.bin"), HasSubstr("--shard_format")));
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
