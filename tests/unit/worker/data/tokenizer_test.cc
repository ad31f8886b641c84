#include "worker/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ByteTokenizerTest, EveryByteIsItsOwnTokenAndComesBack) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeTokenizer("bytes");
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

TEST(MakeTokenizerTest, UnknownNameListsTheKnownOnes) {
  EXPECT_THAT(MakeTokenizer("letters").status().message(),
              ::testing::AllOf(HasSubstr("letters"), HasSubstr("bytes")));
}

}  // namespace
}  // namespace causeway::worker
