#include "worker/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/common/base/temporary_folder.h"

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

// A copy of a tokenizer with files beside it.
class FilesBesideTest : public ::testing::Test {
 protected:
  // Loads `fixture` with one more file.
  std::string Error(const std::string& fixture, const std::string& file, absl::string_view text) {
    const std::string folder = folder_.File(absl::StrCat("t", ++count_));
    std::filesystem::copy(JoinPath(CAUSEWAY_TOKENIZER_FIXTURES, fixture), folder);
    EXPECT_TRUE(WriteFileAtomically(files_, JoinPath(folder, file), text).ok());
    const auto loaded = LoadTokenizer(files_, folder);
    if (loaded.ok()) end_of_text_ = (*loaded)->end_of_text();
    return std::string(loaded.status().message());
  }
  int32_t Number(const std::string& fixture, const std::string& token) {
    const auto loaded = LoadTokenizer(files_, JoinPath(CAUSEWAY_TOKENIZER_FIXTURES, fixture));
    return (*loaded)->FindToken(token).value();
  }

  const TemporaryFolder folder_;
  FileSystem& files_ = *FileSystem::Real();
  std::optional<int32_t> end_of_text_;
  int count_ = 0;
};

TEST_F(FilesBesideTest, TokensThatATokenizerLacksAreRefusedByName) {
  const int32_t end = Number("gpt2", "<|endoftext|>");
  EXPECT_EQ(Error("gpt2", "added_tokens.json", absl::StrCat("{\"<|endoftext|>\": ", end, "}")), "");
  EXPECT_THAT(
      Error("gpt2", "added_tokens.json", absl::StrCat("{\"<|endoftext|>\": ", end + 1, "}")),
      HasSubstr(absl::StrCat("which has the number ", end)));
  EXPECT_THAT(Error("gpt2", "added_tokens.json", R"({"<new>": 90000})"),
              HasSubstr("added_tokens.json has the token \"<new>\" with the number 90000"));
  // A piece of text is no token that is looked for as a whole.
  EXPECT_THAT(Error("gpt2", "tokenizer_config.json", R"({"pad_token": "a"})"),
              HasSubstr("tokenizer_config.json: pad_token has the token \"a\""));
  EXPECT_THAT(Error("gpt2", "tokenizer_config.json",
                    R"({"added_tokens_decoder": {"90000": {"content": "<new>"}}})"),
              HasSubstr("added_tokens_decoder has the token \"<new>\" with the number 90000"));
  EXPECT_THAT(
      Error("gpt2", "special_tokens_map.json", R"({"eos_token": {"content": "<|im_end|>"}})"),
      HasSubstr("special_tokens_map.json: eos_token has the token \"<|im_end|>\""));
  EXPECT_EQ(Error("gpt2", "tokenizer_config.json",
                  R"({"eos_token": "<|endoftext|>", "pad_token": null, "model_max_length": 7})"),
            "");
  EXPECT_EQ(end_of_text_, end);
}

TEST_F(FilesBesideTest, AGitLfsPointerIsNamedAlsoBesideATokenizerThatCannotBeRead) {
  const std::string folder = folder_.File("pointer");
  ASSERT_TRUE(files_.CreateFolders(folder).ok());
  const auto write = [&](const char* name, absl::string_view text) {
    ASSERT_TRUE(WriteFileAtomically(files_, JoinPath(folder, name), text).ok());
  };
  write("tokenizer_config.json",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  for (const char* const tokenizer : {"tokenizer.model", "tokenizer.json"}) {
    write(tokenizer, "neither the one nor the other");
    EXPECT_THAT(std::string(LoadTokenizer(files_, folder).status().message()),
                HasSubstr("tokenizer_config.json is a Git LFS pointer"));
  }
}

TEST_F(FilesBesideTest, ASpaceBeforeTheTextIsTwoFilesMatter) {
  EXPECT_EQ(Error("gpt2", "tokenizer_config.json", R"({"add_prefix_space": false})"), "");
  EXPECT_THAT(Error("gpt2", "tokenizer_config.json", R"({"add_prefix_space": true})"),
              HasSubstr("tokenizer_config.json: add_prefix_space is not what"));
}

TEST_F(FilesBesideTest, ATokenizerJsonThatIsNotUnderstoodNamesTheModelBesideIt) {
  const std::string error =
      Error("sentencepiece_bpe", "tokenizer.json", R"({"model": {"type": "Unigram"}})");
  EXPECT_THAT(error, HasSubstr("tokenizer.json cannot be used"));
  EXPECT_THAT(error, HasSubstr("give --tokenizer="));
  EXPECT_THAT(error, HasSubstr("/tokenizer.model"));
}

#ifndef CAUSEWAY_WITHOUT_DEEPBIND
TEST_F(FilesBesideTest, WhatChangesASentencePieceModelIsRefusedByName) {
  const std::string model = "sentencepiece_bpe";
  EXPECT_EQ(Error(model, "added_tokens.json", R"({"</s>": 2})"), "");
  EXPECT_THAT(Error(model, "added_tokens.json", R"({"[PAD]": 32000})"), HasSubstr("[PAD]"));
  const auto config = [&](const char* text) { return Error(model, "tokenizer_config.json", text); };
  EXPECT_EQ(config(R"({"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>",
                       "sp_model_kwargs": {}, "add_bos_token": true, "legacy": false})"),
            "");
  EXPECT_THAT(config(R"({"tokenizer_class": "XLMRobertaTokenizer"})"),
              HasSubstr("tokenizer_class is \"XLMRobertaTokenizer\""));
  EXPECT_THAT(config(R"({"eos_token": "<s>"})"), HasSubstr("eos_token is not the one"));
  EXPECT_THAT(config(R"({"add_prefix_space": false})"), HasSubstr("add_prefix_space is false"));
  EXPECT_THAT(config(R"({"do_lower_case": true})"), HasSubstr("do_lower_case is set"));
  EXPECT_THAT(config(R"({"sp_model_kwargs": {"enable_sampling": true}})"),
              HasSubstr("sp_model_kwargs is set"));
}
#endif

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
