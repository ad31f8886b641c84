// Token for token what Hugging Face's `tokenizers` and Google's `sentencepiece` make of the texts
// that tell tokenizers apart. The fixtures are made by tests/compat/make_fixtures.py.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "worker/data/tokenizer.h"

namespace causeway::worker {
namespace {

class TokenizerEqualityTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string folder = JoinPath(CAUSEWAY_TOKENIZER_FIXTURES, GetParam());
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        LoadTokenizer(*FileSystem::Real(), folder);
    if (absl::IsUnimplemented(tokenizer.status())) GTEST_SKIP() << tokenizer.status();
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    const auto expected = FileSystem::Real()->ReadFile(JoinPath(folder, "expected.json"));
    ASSERT_TRUE(expected.ok()) << expected.status();
    expected_ = nlohmann::json::parse(*expected);
    ASSERT_GT(expected_.at("cases").size(), 100u);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json expected_;
};

TEST_P(TokenizerEqualityTest, EveryTextBecomesTheSameTokens) {
  for (const nlohmann::json& one : expected_.at("cases")) {
    const auto text = one.at("text").get<std::string>();
    std::vector<int32_t> tokens;
    ASSERT_TRUE(tokenizer_->Encode(text, tokens).ok()) << one.at("text");
    EXPECT_EQ(tokens, one.at("tokens").get<std::vector<int32_t>>()) << one.at("text");
  }
}

TEST_P(TokenizerEqualityTest, CutsDoNotChangeTheTokens) {
  for (const nlohmann::json& one : expected_.at("cases")) {
    const auto text = one.at("text").get<std::string>();
    std::vector<int32_t> tokens;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = tokenizer_->NextCut(text, begin + 1);
      ASSERT_GT(end, begin);
      ASSERT_TRUE(
          tokenizer_->Encode(absl::string_view(text).substr(begin, end - begin), tokens).ok());
      begin = end;
    }
    EXPECT_EQ(tokens, one.at("tokens").get<std::vector<int32_t>>()) << one.at("text");
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TokenizerEqualityTest,
                         ::testing::Values("gpt2", "llama3", "qwen", "prefix",
                                           "sentencepiece_unigram", "sentencepiece_bpe"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace causeway::worker
