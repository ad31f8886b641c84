// Documents: from text files and JSONL, with separators, into packed sequences that know them.
#include <gmock/gmock.h>

#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/data/data_test_util.h"
#include "worker/data/data_json.h"
#include "worker/data/dataset.h"
#include "worker/data/document_index.h"
#include "worker/data/jsonl.h"
#include "worker/data/tokenize.h"
#include "worker/data/window_sampler.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DocumentsTest : public DataTest {
 protected:
  DocumentsTest() : gpt2_(*LoadTokenizer(files_, JoinPath(CAUSEWAY_TOKENIZER_FIXTURES, "gpt2"))) {}

  TokenizeOptions Options(const std::string& input) {
    TokenizeOptions options;
    options.inputs = {Path(input)};
    options.output = Path("out");
    options.held_out_fraction = 0.5;
    return options;
  }
  // The text of a part, with | where a document begins and the separator as ~.
  std::string Text(const ShardSequence& part, const Tokenizer& tokenizer) {
    std::vector<int32_t> tokens(static_cast<size_t>(part.tokens()));
    EXPECT_TRUE(part.Read(0, tokenizer.vocabulary_size(), tokens).ok());
    std::vector<int32_t> starts(tokens.size());
    part.documents()->Fill(0, starts);
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (starts[i] == static_cast<int32_t>(i)) text += "|";
      text += tokens[i] == tokenizer.end_of_text().value_or(-1)
                  ? "~"
                  : *tokenizer.Decode(std::span(&tokens[i], 1));
    }
    return text;
  }

  const std::unique_ptr<Tokenizer> gpt2_;
};

constexpr char kLines[] =
    "{\"text\": \"one\"}\n"
    "\n"
    "{\"id\": 2, \"text\": \"two\\nlines\", \"more\": {\"text\": 5}}\r\n"
    "{\"text\": \"\"}\n"
    "{\"text\": \"three\"}\n"
    "{\"text\": \"four\"}";

TEST_F(DocumentsTest, LinesOfJsonlBecomeDocumentsWithASeparatorAfterEach) {
  WriteFile("in.jsonl", kLines);
  const absl::StatusOr<TokenizeResult> result = Tokenize(files_, *gpt2_, Options("in.jsonl"));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->documents, 4);
  const absl::StatusOr<Dataset> data = Dataset::Open(files_, Path("out"));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(Text(*data->train(), *gpt2_), "|one~|three~");
  EXPECT_EQ(Text(*data->held_out(), *gpt2_), "|two\nlines~|four~");
  // The folder brings its tokenizer along.
  EXPECT_EQ(data->tokenizer(), Path("out/tokenizer.json"));
  EXPECT_EQ((*LoadTokenizer(files_, data->tokenizer()))->hash(), gpt2_->hash());
}

TEST_F(DocumentsTest, SeparatorMayStandBeforeOrBeLeftOut) {
  WriteFile("in.jsonl", kLines);
  TokenizeOptions options = Options("in.jsonl");
  options.separator = Separator::kBefore;
  ASSERT_TRUE(Tokenize(files_, *gpt2_, options).ok());
  EXPECT_EQ(Text(*Dataset::Open(files_, Path("out"))->train(), *gpt2_), "|~one|~three");
  options.separator = Separator::kNone;
  options.replace = true;
  ASSERT_TRUE(Tokenize(files_, *gpt2_, options).ok());
  EXPECT_EQ(Text(*Dataset::Open(files_, Path("out"))->train(), *gpt2_), "|one|three");
  ASSERT_TRUE(Tokenize(files_, ByteTokenizer(), options).ok());
  EXPECT_EQ(Text(*Dataset::Open(files_, Path("out"))->train(), ByteTokenizer()), "|one|three");
}

TEST_F(DocumentsTest, BadLineIsNamedByFileAndLineOrCounted) {
  WriteFile("in.jsonl", absl::StrCat(kLines, "\n{\"text\": 7}\n", kLines, "\n{\"txt\": \"\"}\n["));
  TokenizeOptions options = Options("in.jsonl");
  EXPECT_THAT(Tokenize(files_, *gpt2_, options).status().message(),
              AllOf(HasSubstr("in.jsonl:7: "), HasSubstr("\"text\" is no text")));
  options.skip_bad_lines = true;
  options.replace = true;
  const absl::StatusOr<TokenizeResult> result = Tokenize(files_, *gpt2_, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->refused_lines, 3);
  EXPECT_EQ(result->documents, 8);
  EXPECT_EQ(ReadDataJson(files_, Path("out"))->refused_lines, 3);
}

TEST(JsonLineTest, ErrorsSayWhereTheLineIsNoJson) {
  std::string text;
  EXPECT_EQ(std::string(ReadJsonLine(R"({"text": x})", "text", text).message()),
            R"(expected JSON, but byte 10, at the end of "\"text\": x", cannot stand there)");
  EXPECT_EQ(std::string(ReadJsonLine(R"({"text": )", "text", text).message()),
            "expected JSON, but it ends after 9 bytes in the middle: is it whole?");
}

TEST(JsonLineTest, OnlyATextFieldOfTheOutermostObjectCounts) {
  std::string text;
  EXPECT_TRUE(
      ReadJsonLine(R"({"a": {"text": "no"}, "text": "yes", "b": ["text"]})", "text", text).ok());
  EXPECT_EQ(text, "yes");
  EXPECT_TRUE(ReadJsonLine(R"({"text": "\ud83d\ude00\u0000"})", "text", text).ok());
  EXPECT_EQ(text, std::string("\xF0\x9F\x98\x80\0", 5));
  for (const std::string& bad :
       {std::string(R"({"text": ["x"]})"), std::string(R"({"text": {"text": "x"}})"),
        std::string(R"({"text": null})"), std::string(R"({"a": {"text": "x"}})"),
        std::string(R"(["text"])"), std::string(R"("text")"), std::string("{\"text\": \"\xFF\"}"),
        std::string(R"({"text": "\ud800"})"), std::string(R"({"text": "x"} {})"),
        "{\"a\":" + std::string(100000, '['), std::string("{\"text\": \"x\"")}) {
    EXPECT_EQ(ReadJsonLine(bad, "text", text).code(), absl::StatusCode::kInvalidArgument)
        << bad.substr(0, 40);
  }
}

TEST_F(DocumentsTest, NumberOfThreadsDoesNotChangeAByte) {
  std::mt19937 engine(1);
  std::string jsonl;
  for (int file = 0; file < 3; ++file) {
    std::string text;
    while (text.size() < 700'000) {
      absl::StrAppend(&text, engine() % 9 == 0 ? "\n" : " ", engine() % 3 == 0 ? "the tide" : "x",
                      engine() % 1000);
    }
    WriteFile(absl::StrCat("corpus/", file, ".txt"), text);
    absl::StrAppend(&jsonl, "{\"text\": \"", std::string(engine() % 500'000, 'y'), "\"}\n");
  }
  WriteFile("corpus/lines.jsonl", jsonl);
  TokenizeOptions options = Options("corpus");
  options.shard_tokens = 100'000;
  ASSERT_TRUE(Tokenize(files_, *gpt2_, options).ok());
  options.output = Path("again");
  options.threads = 3;
  ASSERT_TRUE(Tokenize(files_, *gpt2_, options).ok());
  const std::vector<std::string> names = *files_.List(Path("out"));
  EXPECT_GT(names.size(), 10u);
  EXPECT_EQ(names, *files_.List(Path("again")));
  for (const std::string& name : names) {
    EXPECT_EQ(ReadFile("out/" + name), ReadFile("again/" + name)) << name;
  }
}

TEST_F(DocumentsTest, TextCutForTheThreadsHasTheTokensOfTheWholeText) {
  std::string text;
  for (int i = 0; text.size() < 3'000'000; ++i) {
    absl::StrAppend(&text, "word", i % 11 == 0 ? " it's  " : " ", i, i % 7 == 0 ? "\n\n" : " and ");
  }
  WriteFile("in.txt", text);
  TokenizeOptions options = Options("in.txt");
  options.held_out_fraction = 0.005;
  options.separator = Separator::kNone;
  ASSERT_TRUE(Tokenize(files_, *gpt2_, options).ok());
  const absl::StatusOr<Dataset> data = Dataset::Open(files_, Path("out"));
  const ShardSequence& train = *data->train();
  // The held-out stretches interrupt the text; up to the first it is one.
  const auto length = static_cast<size_t>(train.documents()->starts().at(1));
  std::vector<int32_t> tokens(length);
  ASSERT_TRUE(train.Read(0, gpt2_->vocabulary_size(), tokens).ok());
  const std::string stretch = *gpt2_->Decode(tokens);
  EXPECT_GT(stretch.size(), 300'000u);
  EXPECT_EQ(stretch, text.substr(0, stretch.size()));
  std::vector<int32_t> at_once;
  ASSERT_TRUE(gpt2_->Encode(stretch, at_once).ok());
  EXPECT_EQ(tokens, at_once);
}

TEST_F(DocumentsTest, OnlyFilesWithTheExtensionsAreTaken) {
  WriteFile("corpus/a.txt", std::string(3000, 'a'));
  WriteFile("corpus/b.md", std::string(3000, 'b'));
  WriteFile("corpus/c.log", std::string(3000, 'c'));
  TokenizeOptions options = Options("corpus");
  options.extensions = {".txt", ".md"};
  const absl::StatusOr<TokenizeResult> result = Tokenize(files_, ByteTokenizer(), options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->documents, 2);
  EXPECT_EQ(result->bytes, 6000);
}

TEST_F(DocumentsTest, ShardsWithoutAHeaderAreReadByWhatDataJsonSays) {
  WriteFile("in.jsonl", kLines);
  TokenizeOptions options = Options("in.jsonl");
  options.format = ShardFormat::kUint16;
  ASSERT_TRUE(Tokenize(files_, ByteTokenizer(), options).ok());
  const absl::StatusOr<Dataset> data = Dataset::Open(files_, Path("out"));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(Text(*data->train(), ByteTokenizer()), "|one|three");
}

TEST_F(DocumentsTest, DamagedIndexIsRefused) {
  WriteFile("in.jsonl", kLines);
  ASSERT_TRUE(Tokenize(files_, ByteTokenizer(), Options("in.jsonl")).ok());
  const std::string good = ReadFile("out/train.documents");
  std::string flipped = good;
  flipped[flipped.size() - 20] ^= 1;
  for (const std::string& bad : {std::string(), good.substr(0, good.size() - 1), flipped}) {
    WriteFile("out/train.documents", bad);
    EXPECT_THAT(Dataset::Open(files_, Path("out")).status().message(),
                HasSubstr("train.documents"));
  }
  for (const std::vector<int64_t>& starts :
       std::vector<std::vector<int64_t>>{{}, {1}, {0, 0}, {0, 5, 3}, {0, 9}, {-1, 0}}) {
    EXPECT_FALSE(DocumentIndex::Create(starts, 9).ok());
  }
}

TEST_F(DocumentsTest, MaskedWindowsKeepDocumentsApart) {
  ASSERT_TRUE(files_.CreateFolders(Path("out")).ok());
  WriteFile("in.jsonl",
            "{\"text\": \"abc\"}\n{\"text\": \"x\"}\n{\"text\": \"defghij\"}\n{\"text\": \"y\"}\n");
  ASSERT_TRUE(Tokenize(files_, ByteTokenizer(), Options("in.jsonl")).ok());
  const absl::StatusOr<Dataset> data = Dataset::Open(files_, Path("out"));
  ASSERT_TRUE(data.ok());  // abc|defghij
  const absl::StatusOr<WindowSampler> sampler = WindowSampler::Create(
      *data, {.sequence_length = 3, .vocabulary_size = 256, .seed = 1, .document_masking = true});
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  ASSERT_EQ(sampler->windows(), 3);
  int seen = 0;
  for (int64_t cursor = 0; cursor < 3; ++cursor) {
    std::vector<int32_t> inputs(3), targets(3), starts(3);
    ASSERT_TRUE(sampler->Read(cursor, inputs, targets, starts).ok());
    EXPECT_THAT(starts, ElementsAre(0, 0, 0));
    if (sampler->WindowAt(cursor) == 0) {
      EXPECT_THAT(targets, ElementsAre('b', 'c', -1));
      ++seen;
    }
  }
  EXPECT_EQ(seen, 1);
  const absl::StatusOr<WindowSampler> longer = WindowSampler::Create(
      *data, {.sequence_length = 7, .vocabulary_size = 256, .seed = 1, .document_masking = true});
  ASSERT_TRUE(longer.ok());
  std::vector<int32_t> inputs(7), targets(7), starts(7);
  ASSERT_TRUE(longer->Read(0, inputs, targets, starts).ok());
  EXPECT_THAT(targets, ElementsAre('b', 'c', -1, 'e', 'f', 'g', 'h'));
  EXPECT_THAT(starts, ElementsAre(0, 0, 0, 3, 3, 3, 3));
}

TEST_F(DocumentsTest, MaskingOfDataThatDoNotKnowTheirDocumentsIsRefused) {
  WriteShards("d", "train", CountingTokens(100, 256), 256);
  const absl::StatusOr<Dataset> data = Dataset::Open(files_, Path("d"));
  EXPECT_THAT(WindowSampler::Create(
                  *data, {.sequence_length = 3, .vocabulary_size = 256, .document_masking = true})
                  .status()
                  .message(),
              HasSubstr("train.document_masking"));
}

// Shards of foreign data, in llm.c's format unless the header's vocabulary says that they are ours.
class ForeignDocumentsTest : public DataTest {
 protected:
  void Write(const std::vector<int32_t>& train, int64_t vocabulary_size, int32_t header_vocabulary,
             int64_t shard_tokens = 1000) {
    WriteShards("d", "x_train", train, vocabulary_size, shard_tokens);
    WriteShards("d", "x_val", train, vocabulary_size, shard_tokens);
    const absl::StatusOr<std::vector<std::string>> names = files_.List(Path("d"));
    ASSERT_TRUE(names.ok()) << names.status();
    for (const std::string& name : *names) {
      PatchWord("d/" + name, 3, header_vocabulary);
    }
    absl::StatusOr<Dataset> data = Dataset::Open(files_, Path("d"));
    ASSERT_TRUE(data.ok()) << data.status();
    data_ = *std::move(data);
  }
  std::vector<int64_t> Starts() { return data_->train()->documents()->starts(); }

  std::optional<Dataset> data_;
};

TEST_F(ForeignDocumentsTest, ShardsOfLlmCBeginDocumentsAtTheirEndOfText) {
  Write({50256, 1, 2, 50256, 3, 50256, 4, 5}, 50257, 0, /*shard_tokens=*/3);
  ASSERT_TRUE(data_->FindDocuments(std::nullopt).ok());
  EXPECT_THAT(Starts(), ElementsAre(0, 3, 5));
  EXPECT_TRUE(data_->held_out()->documents().has_value());
  // Masked: nobody predicts the first token of a document.
  const auto sampler = WindowSampler::Create(
      *data_, {.sequence_length = 7, .vocabulary_size = 50257, .document_masking = true});
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  std::vector<int32_t> inputs(7), targets(7), starts(7);
  ASSERT_TRUE(sampler->Read(0, inputs, targets, starts).ok());
  EXPECT_THAT(targets, ElementsAre(1, 2, -1, 3, -1, 4, 5));
  EXPECT_THAT(starts, ElementsAre(0, 0, 0, 3, 3, 5, 5));
}

TEST_F(ForeignDocumentsTest, WideShardsHaveTheTokenOfLlama3) {
  Write({7, 128000, 1, 2, 128000, 3}, 128256, 0);
  ASSERT_TRUE(data_->FindDocuments(std::nullopt).ok());
  EXPECT_THAT(Starts(), ElementsAre(0, 1, 4));
}

TEST_F(ForeignDocumentsTest, ANamedTokenBeginsOrEndsDocuments) {
  Write({1, 2, 0, 3, 0, 4, 0}, 256, 0);
  Dataset begins = *data_;
  ASSERT_TRUE(begins.FindDocuments(DocumentMark{.token = 0, .begins = true}).ok());
  EXPECT_THAT(begins.train()->documents()->starts(), ElementsAre(0, 2, 4, 6));
  ASSERT_TRUE(data_->FindDocuments(DocumentMark{.token = 0, .begins = false}).ok());
  EXPECT_THAT(Starts(), ElementsAre(0, 3, 5));
}

TEST_F(ForeignDocumentsTest, DataWithoutAMarkAreRefusedWithTheFlagsThatNameOne) {
  Write({1, 2, 0, 3}, 256, 0);
  const absl::Status none = data_->FindDocuments(std::nullopt);
  EXPECT_TRUE(absl::IsInvalidArgument(none));
  EXPECT_THAT(none.message(),
              AllOf(HasSubstr("do not hold the token 50256"), HasSubstr("--document_begin=TOKEN")));
  // A header that names its vocabulary is not llm.c's.
  Write({1, 2, 0, 3}, 256, 256);
  ASSERT_TRUE(data_->FindDocuments(std::nullopt).ok());
  EXPECT_THAT(WindowSampler::Create(
                  *data_, {.sequence_length = 2, .vocabulary_size = 256, .document_masking = true})
                  .status()
                  .message(),
              HasSubstr("--document_end=TOKEN"));
}

}  // namespace
}  // namespace causeway::worker
