#include "worker/data/text_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/data/data_test_util.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;

// Counts what is decoded.
class CountingTokenizer final : public Tokenizer {
 public:
  explicit CountingTokenizer(const Tokenizer& base) : base_(base) {}
  std::string name() const override { return base_.name(); }
  int64_t vocabulary_size() const override { return base_.vocabulary_size(); }
  absl::Status Encode(absl::string_view text, std::vector<int32_t>& tokens) const override {
    return base_.Encode(text, tokens);
  }
  absl::StatusOr<std::string> Decode(std::span<const int32_t> tokens) const override {
    decoded_ += tokens.size();
    return base_.Decode(tokens);
  }
  size_t decoded() const { return decoded_; }

 private:
  const Tokenizer& base_;
  mutable size_t decoded_ = 0;
};

class TextStreamTest : public DataTest {
 protected:
  static std::vector<std::string> Parts(const Tokenizer& tokenizer, const std::string& prompt,
                                        std::span<const int32_t> tokens) {
    std::vector<int32_t> before;
    EXPECT_TRUE(tokenizer.Encode(prompt, before).ok());
    std::vector<std::string> parts;
    TextStream stream(tokenizer, before, [&](absl::string_view text) { parts.emplace_back(text); });
    for (const int32_t token : tokens) stream.Add(token);
    stream.Finish();
    return parts;
  }
  static std::string Streamed(const Tokenizer& tokenizer, const std::string& prompt,
                              std::span<const int32_t> tokens) {
    std::string text;
    for (const std::string& part : Parts(tokenizer, prompt, tokens)) text += part;
    return text;
  }
};

TEST_F(TextStreamTest, CharactersComeWhole) {
  const ByteTokenizer bytes;
  std::vector<int32_t> tokens;
  ASSERT_TRUE(bytes.Encode("a\xC3\xA9\xF0\x9F\x98\x80z", tokens).ok());
  EXPECT_THAT(Parts(bytes, "x", tokens), ElementsAre("a", "\xC3\xA9", "\xF0\x9F\x98\x80", "z"));
}

TEST_F(TextStreamTest, BytesThatAreNoCharacterComeAllTheSame) {
  const ByteTokenizer bytes;
  const std::string text = "\x80\x80\x80\x80\x80\xFF\xF0\x9F";
  std::vector<int32_t> tokens;
  ASSERT_TRUE(bytes.Encode(text, tokens).ok());
  EXPECT_EQ(Streamed(bytes, "x", tokens), text);
}

TEST_F(TextStreamTest, EveryTokenizersTextComesAsItIsDecodedAsAWhole) {
  const std::string text =
      " the tide \n\n  and\tthe caf\xC3\xA9 \xF0\x9F\x98\x80\xE4\xB8\xAD\xE6\x96\x87 1234 \xC2\xA0 "
      "x \n";
  for (const char* name :
       {"gpt2", "llama3", "qwen", "prefix", "sentencepiece_bpe", "sentencepiece_unigram"}) {
    const auto tokenizer = LoadTokenizer(files_, JoinPath(CAUSEWAY_TOKENIZER_FIXTURES, name));
#ifdef CAUSEWAY_WITHOUT_DEEPBIND
    if (absl::IsUnimplemented(tokenizer.status())) continue;
#endif
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    std::vector<int32_t> prompt;
    std::vector<int32_t> tokens;
    ASSERT_TRUE((*tokenizer)->Encode("Once", prompt).ok());
    for (int i = 0; i < 5; ++i) ASSERT_TRUE((*tokenizer)->Encode(text, tokens).ok());
    // A token without a text of its own in between.
    const std::optional<int32_t> end = (*tokenizer)->end_of_text();
    if (end.has_value()) tokens.insert(tokens.begin() + std::ssize(tokens) / 2, *end);
    const absl::StatusOr<std::string> whole = DecodeAfter(**tokenizer, prompt, tokens);
    ASSERT_TRUE(whole.ok());
    EXPECT_EQ(Streamed(**tokenizer, "Once", tokens), *whole) << name;
  }
}

TEST_F(TextStreamTest, ALongTextWithoutALineCostsEachTokenAFew) {
  const auto gpt2 = LoadTokenizer(files_, JoinPath(CAUSEWAY_TOKENIZER_FIXTURES, "gpt2"));
  ASSERT_TRUE(gpt2.ok());
  std::string text;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&text, " word", i);
  std::vector<int32_t> tokens;
  ASSERT_TRUE((*gpt2)->Encode(text, tokens).ok());
  const CountingTokenizer counting(**gpt2);
  EXPECT_EQ(Streamed(counting, "x", tokens), text);
  EXPECT_LT(counting.decoded(), 10 * tokens.size());
}

}  // namespace
}  // namespace causeway::worker
