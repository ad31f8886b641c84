#include "worker/data/text_bytes.h"

#include <gtest/gtest.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/data/data_test_util.h"

namespace causeway::worker {
namespace {

class TextBytesTest : public DataTest {
 protected:
  std::unique_ptr<Tokenizer> Load(const std::string& name) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        LoadTokenizer(files_, JoinPath(CAUSEWAY_TOKENIZER_FIXTURES, name));
    return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
  }
  // Bytes of the text cut into windows of so many tokens, the first token aside.
  static int64_t InWindows(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                           size_t window) {
    int64_t bytes = 0;
    for (size_t at = 0; at + 1 < tokens.size(); at += window) {
      const size_t count = std::min(window, tokens.size() - at - 1);
      bytes += *TextBytes(tokenizer, tokens.subspan(at, count), tokens.subspan(at + 1, count));
    }
    return bytes;
  }
};

TEST_F(TextBytesTest, WindowsOfSentencePieceLoseNoSpaceAtTheirBeginning) {
  const std::unique_ptr<Tokenizer> tokenizer = Load("sentencepiece_unigram");
  if (tokenizer == nullptr) GTEST_SKIP() << "no SentencePiece in this build";
  EXPECT_FALSE(tokenizer->keeps_text());
  std::string text = "the";
  for (int i = 0; i < 200; ++i) text += i % 3 == 0 ? " tide" : " and the water";
  std::vector<int32_t> tokens;
  ASSERT_TRUE(tokenizer->Encode(text, tokens).ok());
  const auto first = static_cast<int64_t>(tokenizer->Decode(std::span(tokens).first(1))->size());
  for (const size_t window : {size_t{1}, size_t{7}, size_t{64}, tokens.size()}) {
    EXPECT_EQ(InWindows(*tokenizer, tokens, window), std::ssize(text) - first) << window;
  }
}

TEST_F(TextBytesTest, DocumentsOfSentencePieceBeginWithoutTheSpaceThatItAdds) {
  const std::unique_ptr<Tokenizer> tokenizer = Load("sentencepiece_bpe");
  if (tokenizer == nullptr) GTEST_SKIP() << "no SentencePiece in this build";
  ASSERT_TRUE(tokenizer->end_of_text().has_value());
  std::vector<int32_t> tokens;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(tokenizer->Encode("water and wind", tokens).ok());
    tokens.push_back(*tokenizer->end_of_text());
  }
  const auto first = static_cast<int64_t>(tokenizer->Decode(std::span(tokens).first(1))->size());
  for (const size_t window : {size_t{1}, size_t{4}, tokens.size()}) {
    EXPECT_EQ(InWindows(*tokenizer, tokens, window), 3 * 14 - first) << window;
  }
}

TEST_F(TextBytesTest, ByteLevelTokensCountTheBytesOfTheText) {
  const std::unique_ptr<Tokenizer> gpt2 = Load("gpt2");
  ASSERT_NE(gpt2, nullptr);
  EXPECT_TRUE(gpt2->keeps_text());
  EXPECT_TRUE(ByteTokenizer().keeps_text());
  EXPECT_FALSE(Load("prefix")->keeps_text());  // Puts a space before the text.
  const std::string text = "x caf\xC3\xA9 \xF0\x9F\x98\x80\xF0\x9F\x98\x81 \xFF\xFE end";
  std::vector<int32_t> tokens;
  ASSERT_TRUE(gpt2->Encode(text, tokens).ok());
  for (const size_t window : {size_t{1}, size_t{2}, size_t{3}, size_t{100}}) {
    EXPECT_EQ(InWindows(*gpt2, tokens, window), std::ssize(text) - 1);
  }
}

TEST_F(TextBytesTest, WhatStandsBetweenDocumentsHasNoBytesWhateverTokenItIs) {
  const std::unique_ptr<Tokenizer> llama3 = Load("llama3");
  ASSERT_NE(llama3, nullptr);
  ASSERT_TRUE(llama3->begin_of_text().has_value());
  ASSERT_GT(llama3->Decode(std::array{*llama3->begin_of_text()})->size(), 0);
  std::vector<int32_t> tokens = {*llama3->begin_of_text()};
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(llama3->Encode("water", tokens).ok());
    tokens.push_back(*llama3->begin_of_text());
  }
  for (const size_t window : {size_t{1}, size_t{3}, tokens.size()}) {
    EXPECT_EQ(InWindows(*llama3, tokens, window), 10) << window;
  }
  // As data.json names a token that the tokenizer takes for any other.
  const ByteTokenizer bytes;
  const std::vector<int32_t> inputs = {'a', 'b', '|', 'c'};
  const std::vector<int32_t> targets = {'b', '|', 'c', 'd'};
  EXPECT_EQ(*TextBytes(bytes, inputs, targets), 4);
  EXPECT_EQ(*TextBytes(bytes, inputs, targets, std::array{int64_t{-1}, int64_t{'|'}}), 3);
}

TEST_F(TextBytesTest, PositionsWithoutATargetHaveNoBytes) {
  const ByteTokenizer bytes;
  const std::vector<int32_t> inputs = {'a', 'b', 'c', 'd'};
  const std::vector<int32_t> targets = {'b', -1, 'd', 'e'};
  EXPECT_EQ(*TextBytes(bytes, inputs, targets), 3);
}

}  // namespace
}  // namespace causeway::worker
