#include "worker/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <utility>

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ByteTokenizerTest, EveryByteIsItsOwnTokenAndComesBack) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer(*FileSystem::Real(), "bytes");
  ASSERT_TRUE(tokenizer.ok());
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  std::vector<int32_t> tokens = {7};
  ASSERT_TRUE((*tokenizer)->Encode(text, tokens).ok());
  ASSERT_EQ(tokens.size(), 257u);
  EXPECT_THAT(std::span(tokens).first(3), ElementsAre(7, 0, 1));
  EXPECT_EQ(tokens.back(), 255);
  EXPECT_EQ(*(*tokenizer)->Decode(std::span(tokens).subspan(1)), text);
}

TEST(ByteTokenizerTest, TokensThatAreNoBytesAreRefused) {
  const ByteTokenizer tokenizer;
  EXPECT_FALSE(tokenizer.Decode(std::vector<int32_t>{256}).ok());
  EXPECT_FALSE(tokenizer.Decode(std::vector<int32_t>{-1}).ok());
}

TEST(LoadTokenizerTest, UnknownNameListsTheKnownOnes) {
  EXPECT_THAT(LoadTokenizer(*FileSystem::Real(), "letters").status().message(),
              ::testing::AllOf(HasSubstr("letters"), HasSubstr("bytes")));
}

TEST(LoadTokenizerTest, TokensOfByteLevelBpeAreTheTextAgain) {
  for (const char* const name : {"gpt2", "llama3"}) {
    const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        LoadTokenizer(*FileSystem::Real(), JoinPath(CAUSEWAY_TOKENIZER_FIXTURES, name));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    std::mt19937 engine(1);
    // Bytes of any kind, valid UTF-8 or not.
    std::string text = "the causeway's <|endoftext|> \xE2\x82\xAC\n\n 123";
    for (int i = 0; i < 5000; ++i) text.push_back(static_cast<char>(engine() % 256));
    std::vector<int32_t> tokens;
    ASSERT_TRUE((*tokenizer)->Encode(text, tokens).ok());
    EXPECT_EQ(*(*tokenizer)->Decode(tokens), text);
    EXPECT_FALSE((*tokenizer)->Decode(std::vector<int32_t>{-1}).ok());
    const auto beyond = static_cast<int32_t>((*tokenizer)->vocabulary_size());
    EXPECT_FALSE((*tokenizer)->Decode(std::vector<int32_t>{beyond}).ok());
  }
}

TEST(LoadTokenizerTest, EndOfTextIsFoundByName) {
  const auto end_of_text = [](const char* name) {
    const auto tokenizer =
        *LoadTokenizer(*FileSystem::Real(), JoinPath(CAUSEWAY_TOKENIZER_FIXTURES, name));
    return std::pair(tokenizer->end_of_text(), tokenizer.get()->FindToken("<|endoftext|>"));
  };
  EXPECT_TRUE(end_of_text("gpt2").first.has_value());
  EXPECT_EQ(end_of_text("gpt2").first, end_of_text("gpt2").second);
  EXPECT_TRUE(end_of_text("llama3").first.has_value());
  EXPECT_FALSE(end_of_text("llama3").second.has_value());
#ifndef CAUSEWAY_WITHOUT_DEEPBIND
  EXPECT_TRUE(end_of_text("sentencepiece_bpe").first.has_value());
#endif
}

TEST(LoadTokenizerTest, FilesThatAreNoTokenizersAreRefusedByName) {
  FileSystem& files = *FileSystem::Real();
  std::string folder = ::testing::TempDir() + "causeway_tokenizer_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  EXPECT_THAT(LoadTokenizer(files, folder).status().message(), HasSubstr("tokenizer.json"));
  for (const char* const name : {"tokenizer.json", "tokenizer.model"}) {
    const std::string path = JoinPath(folder, name);
    EXPECT_FALSE(LoadTokenizer(files, path).ok());
    ASSERT_TRUE(WriteFileAtomically(files, path, absl::string_view("no tokenizer")).ok());
    EXPECT_THAT(LoadTokenizer(files, path).status().message(), HasSubstr(path));
    ASSERT_TRUE(files.Remove(path).ok());
  }
}

}  // namespace
}  // namespace causeway::worker
