#include "worker/data/tokenizer_json.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "common/base/file_system.h"

namespace causeway::worker {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenizerJsonTest : public ::testing::Test {
 protected:
  TokenizerJsonTest() {
    const std::string path = JoinPath(CAUSEWAY_TOKENIZER_FIXTURES, "llama3/tokenizer.json");
    file_ = json::parse(*FileSystem::Real()->ReadFile(path));
  }
  std::string Error() {
    const absl::StatusOr<ByteLevelBpe> bpe = ParseTokenizerJson(file_.dump());
    EXPECT_EQ(bpe.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(bpe.status().message());
  }
  json& Model() { return file_["model"]; }

  json file_;
};

TEST_F(TokenizerJsonTest, WhatTheFileSaysIsRead) {
  const absl::StatusOr<ByteLevelBpe> bpe = ParseTokenizerJson(file_.dump());
  ASSERT_TRUE(bpe.ok()) << bpe.status();
  EXPECT_EQ(bpe->pattern, SplitPattern::kLlama3);
  EXPECT_TRUE(bpe->ignore_merges);
  EXPECT_FALSE(bpe->compose);
  ASSERT_TRUE(bpe->begin_of_text.has_value());
  EXPECT_EQ(bpe->texts[static_cast<size_t>(*bpe->begin_of_text)], "<|begin_of_text|>");
  EXPECT_EQ(bpe->texts[static_cast<size_t>(bpe->byte_tokens[' '])], " ");
  EXPECT_EQ(bpe->added_tokens.size(), 2u);
}

TEST_F(TokenizerJsonTest, UnknownExpressionIsRefusedWithTheKnownOnes) {
  file_["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = R"(\w+|\s+)";
  EXPECT_THAT(Error(), AllOf(HasSubstr(R"(\\w+|\\s+)"), HasSubstr("GPT-2, Llama 3 and Qwen"),
                             HasSubstr(R"(\p{N}{1,3})")));
}

TEST_F(TokenizerJsonTest, UnknownComponentsAreRefusedByName) {
  const json good = file_;
  file_["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_THAT(Error(), AllOf(HasSubstr("normalizer"), HasSubstr("Lowercase"), HasSubstr("NFC")));
  file_ = good;
  file_["pre_tokenizer"] = {{"type", "Metaspace"}};
  EXPECT_THAT(Error(), AllOf(HasSubstr("Metaspace"), HasSubstr("supported: ByteLevel")));
  file_["pre_tokenizer"] = nullptr;
  EXPECT_THAT(Error(), HasSubstr("pre_tokenizer is missing"));
  file_ = good;
  file_["decoder"] = {{"type", "WordPiece"}};
  EXPECT_THAT(Error(), AllOf(HasSubstr("decoder"), HasSubstr("WordPiece")));
  file_ = good;
  Model()["type"] = "Unigram";
  EXPECT_THAT(Error(), AllOf(HasSubstr("Unigram"), HasSubstr("supported: BPE")));
  file_ = good;
  Model()["end_of_word_suffix"] = "</w>";
  EXPECT_THAT(Error(), HasSubstr("end_of_word_suffix"));
  file_ = good;
  Model()["dropout"] = 0.1;
  EXPECT_THAT(Error(), HasSubstr("dropout"));
  file_ = good;
  file_["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  EXPECT_THAT(Error(), HasSubstr("Removed"));
}

TEST_F(TokenizerJsonTest, MergesMustLeadFromTokensToTokens) {
  const json good = file_;
  Model()["merges"][3] = {"\u0120", "nothing"};
  EXPECT_THAT(Error(), AllOf(HasSubstr("merge 3"), HasSubstr("nothing")));
  file_ = good;
  Model()["merges"][0] = "a b c";
  EXPECT_THAT(Error(), HasSubstr("merge 0"));
  file_ = good;
  Model()["merges"][0] = 7;
  EXPECT_THAT(Error(), HasSubstr("merge 0"));
}

TEST_F(TokenizerJsonTest, NumbersMustBeUniqueAndInRange) {
  const json good = file_;
  Model()["vocab"]["zz"] = 3;
  EXPECT_THAT(Error(), HasSubstr("two tokens the number 3"));
  file_ = good;
  for (const json& bad : {json(-1), json(1 << 24), json(1.5), json("7"), json(1e300)}) {
    Model()["vocab"]["zz"] = bad;
    EXPECT_THAT(Error(), HasSubstr("zz")) << bad;
  }
  Model()["vocab"]["zz"] = (1 << 24) - 1;
  EXPECT_THAT(Error(), HasSubstr("numbers are missing"));
  file_ = good;
  Model()["vocab"].erase("!");
  EXPECT_THAT(Error(), HasSubstr("no token for byte 33"));
}

TEST_F(TokenizerJsonTest, AddedTokensMustHaveTheNumbersThatTheLibraryGivesThem) {
  const json good = file_;
  file_["added_tokens"][0]["id"] = 5000;
  EXPECT_THAT(Error(), AllOf(HasSubstr("<|begin_of_text|>"), HasSubstr("5000")));
  file_ = good;
  file_["added_tokens"].push_back(file_["added_tokens"][0]);
  EXPECT_THAT(Error(), HasSubstr("twice"));
  file_ = good;
  file_["added_tokens"][1]["content"] = "";
  EXPECT_THAT(Error(), HasSubstr("0 bytes"));
  file_["added_tokens"][1]["content"] = std::string(2000, 'x');
  EXPECT_THAT(Error(), HasSubstr("2000 bytes"));
}

TEST_F(TokenizerJsonTest, HostileTextIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("nonsense"),
        std::string(100000, '['), std::string(R"({"a": 1, "a": 2})"),
        std::string("{\"\xFF\": 1}")}) {
    EXPECT_EQ(ParseTokenizerJson(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text.substr(0, 20);
  }
  EXPECT_THAT(ParseTokenizerJson(std::string(100, '[')).status().message(), HasSubstr("deep"));
  EXPECT_THAT(ParseTokenizerJson(R"({"a": 1, "a": 2})").status().message(), HasSubstr("twice"));
}

}  // namespace
}  // namespace causeway::worker
