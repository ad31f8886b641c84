#include <gmock/gmock.h>
#include <array>
#include <optional>

#include "tests/unit/worker/data/data_test_util.h"
#include "worker/data/data_json.h"
#include "worker/data/dataset.h"
#include "worker/data/text_corpus.h"
#include "worker/data/window_sampler.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class DatasetTest : public DataTest {
 protected:
  std::string OpenError(const std::string& folder) {
    const absl::StatusOr<Dataset> data = Dataset::Open(files_, Path(folder));
    EXPECT_FALSE(data.ok());
    return std::string(data.status().message());
  }
  void MakeData(const std::string& folder) {
    WriteFile("text.txt", std::string(40000, 'a'));
    TokenizeOptions options;
    options.inputs = {Path("text.txt")};
    options.output = Path(folder);
    options.shard_tokens = 10000;
    ASSERT_TRUE(Tokenize(files_, options).ok());
  }
};

TEST_F(DatasetTest, ReadsAcrossTheBordersOfShards) {
  WriteShards("d", "train", CountingTokens(30, 100), 100, /*shard_tokens=*/4);
  const auto data = Dataset::Open(files_, Path("d")).value();
  EXPECT_EQ(data.train()->tokens(), 30);
  EXPECT_EQ(data.held_out()->tokens(), 0);
  std::vector<int32_t> out(10);
  ASSERT_TRUE(data.train()->Read(3, 100, out).ok());
  EXPECT_THAT(out, ElementsAre(3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
  out.resize(4);
  ASSERT_TRUE(data.train()->Read(26, 100, out).ok());
  EXPECT_THAT(out, ElementsAre(26, 27, 28, 29));
}

TEST_F(DatasetTest, WhatCountsForNothingIsSaid) {
  WriteShards("d", "train", CountingTokens(30, 100), 100);
  EXPECT_THAT(Dataset::Open(files_, Path("d"))->CountsForNothing(false, false), ElementsAre());
  WriteFile("d/fineweb_000001.bin", "tokens");
  WriteFile("d/more.bin", "tokens");
  WriteFile("d/notes.txt", "no tokens");
  const auto data = Dataset::Open(files_, Path("d")).value();
  EXPECT_EQ(data.train()->tokens(), 30);
  EXPECT_THAT(data.CountsForNothing(/*marked=*/true, /*masks=*/true),
              ElementsAre(AllOf(HasSubstr("d/fineweb_000001.bin (one of 2) is no shard"))));
  EXPECT_THAT(data.CountsForNothing(/*marked=*/true, /*masks=*/false),
              ElementsAre(HasSubstr("no shard"), HasSubstr("no train.document_masking")));
}

TEST_F(DatasetTest, ANameOfBothKindsIsRefused) {
  WriteShards("d", "carnival_train", CountingTokens(30, 100), 100);
  EXPECT_THAT(OpenError("d"),
              AllOf(HasSubstr("carnival_train_000000.bin is to train on by its name, and held out"),
                    HasSubstr("rename it")));
}

TEST_F(DatasetTest, AnotherFormatThanThatOfTheDataJsonIsRefused) {
  MakeData("d");
  EXPECT_TRUE(Dataset::Open(files_, Path("d"), ShardFormat::kLlmC).ok());
  EXPECT_THAT(Dataset::Open(files_, Path("d"), ShardFormat::kUint16).status().message(),
              AllOf(HasSubstr("--shard_format is uint16"), HasSubstr("are llmc by their data.json"),
                    HasSubstr("leave it out")));
  const auto data = Dataset::Open(files_, Path("d")).value();
  EXPECT_THAT(data.CountsForNothing(/*marked=*/true, /*masks=*/true),
              ElementsAre(HasSubstr("the data say where documents begin")));
}

TEST_F(DatasetTest, ForeignFoldersAreSortedOutByName) {
  WriteShards("d", "tiny_train", CountingTokens(30, 100), 100);
  WriteShards("d", "tiny_val", CountingTokens(20, 100), 100);
  for (const char* name : {"d/tiny_train_000000.bin", "d/tiny_val_000000.bin"}) {
    PatchWord(name, 3, 0);
  }
  const auto data = Dataset::Open(files_, Path("d")).value();
  EXPECT_EQ(data.train()->tokens(), 30);
  EXPECT_EQ(data.held_out()->tokens(), 20);
  EXPECT_EQ(data.vocabulary_size(), 0);
  EXPECT_TRUE(data.CheckVocabulary(30).ok());
  const absl::Status status = data.CheckVocabulary(29);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("token 29"), HasSubstr("train_000000.bin")));
}

TEST_F(DatasetTest, VocabularyMismatchNamesBothSizes) {
  MakeData("d");
  const auto data = Dataset::Open(files_, Path("d")).value();
  EXPECT_TRUE(data.CheckVocabulary(256).ok());
  EXPECT_THAT(data.CheckVocabulary(50257).message(),
              AllOf(HasSubstr("256"), HasSubstr("50257"), HasSubstr("vocabulary_size")));
}

TEST_F(DatasetTest, FoldersWithoutDataAreRefused) {
  EXPECT_THAT(OpenError("missing"), AllOf(HasSubstr("missing"), HasSubstr("tokenize")));
  ASSERT_TRUE(files_.CreateFolders(Path("empty")).ok());
  EXPECT_THAT(OpenError("empty"), HasSubstr("no training shards"));
}

TEST_F(DatasetTest, ShardsOfDifferentVocabulariesAreRefused) {
  WriteShards("d", "train", CountingTokens(30, 100), 100);
  WriteShards("d", "val", CountingTokens(30, 100), 200);
  EXPECT_THAT(OpenError("d"),
              AllOf(HasSubstr("val_000000.bin"), HasSubstr("200"), HasSubstr("100")));
}

TEST_F(DatasetTest, EmptyOrMissingShardIsRefusedByName) {
  MakeData("d");
  WriteFile("d/train_000001.bin", "");
  EXPECT_THAT(OpenError("d"), HasSubstr("train_000001.bin is empty"));
  ASSERT_TRUE(files_.Remove(Path("d/train_000001.bin")).ok());
  EXPECT_THAT(OpenError("d"), HasSubstr("train_000001.bin"));
}

TEST_F(DatasetTest, ShardOfAnotherLengthThanDataJsonSaysIsRefused) {
  MakeData("d");
  WriteShards("other", "train", CountingTokens(7, 256), 256);
  WriteFile("d/train_000001.bin", ReadFile("other/train_000000.bin"));
  EXPECT_THAT(OpenError("d"), HasSubstr("promises 38000 training tokens"));
}

TEST_F(DatasetTest, DamagedDataJsonIsRefused) {
  MakeData("d");
  const std::string good = ReadFile("d/data.json");
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[1]"), std::string("{\"format\": 2}"),
        std::string(100000, '['), good.substr(0, good.size() / 2)}) {
    WriteFile("d/data.json", bad);
    EXPECT_THAT(OpenError("d"), HasSubstr("data.json")) << bad.substr(0, 20);
  }
  // Every field by its name, where the parser's own words would be no help.
  for (const auto& [good_part, bad_part, message] :
       {std::array{"\"tokenizer\": \"bytes\"", "\"tokenizer\": 7", "its tokenizer is not a text"},
        std::array{"\"bytes\": 40000", "\"bytes\": 4e4", "its bytes is not an integer"},
        std::array{"\"sources\":", "\"origins\":", "its sources is not there"},
        std::array{"\"train_shards\": [", "\"train_shards\": [[1],",
                   "its train_shards is not a list"},
        std::array{"\"format\": 1", "\"format\": 2", "its format is 2; this program reads 1"},
        std::array{"\"format\": 1", "\"format\": 1, \"format\": 1",
                   "names the key \"format\" twice"},
        std::array{"\"format\": 1", "\"format\": 1 !", "expected JSON, but byte "}}) {
    std::string bad = good;
    ASSERT_NE(bad.find(good_part), std::string::npos) << good_part;
    bad.replace(bad.find(good_part), std::string(good_part).size(), bad_part);
    WriteFile("d/data.json", bad);
    EXPECT_THAT(OpenError("d"), AllOf(HasSubstr(message), HasSubstr("make the data again"),
                                      Not(HasSubstr("json.exception"))));
  }
  WriteFile("d/data.json", good.substr(0, good.size() / 2));
  EXPECT_THAT(OpenError("d"), HasSubstr("in the middle: is it whole?"));
  std::string escape = good;
  escape.replace(escape.find("train_000000.bin"), 16, "../train_0000.bin");
  WriteFile("d/data.json", escape);
  EXPECT_THAT(OpenError("d"), HasSubstr("same folder"));
}

class DocumentsTest : public DataTest {
 protected:
  // Training data as causeway.tokenize writes them, of documents whose tokens are bytes.
  void Write(const std::vector<std::string>& documents, ShardFormat format = ShardFormat::kLlmC) {
    ASSERT_TRUE(files_.CreateFolders(Path("out")).ok());
    TokenShardWriter writer(files_, Path("out"), "train", 256, 1000);
    std::vector<int64_t> starts;
    for (const std::string& document : documents) {
      starts.push_back(writer.tokens());
      const std::vector<int32_t> tokens(document.begin(), document.end());
      ASSERT_TRUE(writer.Append(tokens).ok());
    }
    ASSERT_TRUE(writer.Finish().ok());
    if (format != ShardFormat::kLlmC) {
      WriteFile("out/train_000000.bin", ReadFile("out/train_000000.bin").substr(1024));
    }
    const absl::StatusOr<DocumentIndex> index = DocumentIndex::Create(starts, writer.tokens());
    ASSERT_TRUE(index.ok() && index->Write(files_, Path("out/train.documents")).ok());
    DataDescription description;
    description.tokenizer = "bytes";
    description.vocabulary_size = 256;
    description.train_tokens = writer.tokens();
    description.train_shards = writer.names();
    description.train_documents = "train.documents";
    description.shard_format = format;
    ASSERT_TRUE(WriteDataJson(files_, Path("out"), description).ok());
  }
  // The text of a part, with | where a document begins.
  static std::string Text(const ShardSequence& part) {
    std::vector<int32_t> tokens(static_cast<size_t>(part.tokens()));
    EXPECT_TRUE(part.Read(0, 256, tokens).ok());
    std::vector<int32_t> starts(tokens.size());
    part.documents()->Fill(0, starts);
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (starts[i] == static_cast<int32_t>(i)) text += "|";
      text += static_cast<char>(tokens[i]);
    }
    return text;
  }
};

TEST_F(DocumentsTest, ShardsWithoutAHeaderAreReadByWhatDataJsonSays) {
  Write({"one", "three"}, ShardFormat::kUint16);
  const auto data = Dataset::Open(files_, Path("out")).value();
  EXPECT_EQ(Text(*data.train()), "|one|three");
}

TEST_F(DocumentsTest, AnIndexIsSafetensorsThatOthersRead) {
  Write({"abc", "de"});
  const std::string index = ReadFile("out/train.documents");
  EXPECT_THAT(index, HasSubstr(R"({"__metadata__":{"tokens":"5"},"starts":{"dtype":"I64")"));
  EXPECT_THAT(index, testing::EndsWith(std::string("\0\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 16)));
}

TEST_F(DocumentsTest, DamagedIndexIsRefused) {
  Write({"one", "three"});
  const std::string good = ReadFile("out/train.documents");
  std::string descends = good;
  descends[descends.size() - 16] = 7;
  std::string other = good;
  other[other.find("\"8\"") + 1] = '9';
  const std::string former = "CWAYDOCS" + std::string(40, '\0');
  for (const std::string& bad :
       {std::string(), good.substr(0, good.size() - 1), descends, other, former}) {
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
  Write({"abc", "defghij"});
  const absl::StatusOr<Dataset> data = Dataset::Open(files_, Path("out"));
  ASSERT_TRUE(data.ok());  // abc|defghij
  const auto sampler =
      WindowSampler::Create(
          *data,
          {.sequence_length = 3, .vocabulary_size = 256, .seed = 1, .document_masking = true})
          .value();
  ASSERT_EQ(sampler.windows(), 3);
  int seen = 0;
  for (int64_t cursor = 0; cursor < 3; ++cursor) {
    std::vector<int32_t> inputs(3), targets(3), starts(3);
    ASSERT_TRUE(sampler.Read(cursor, inputs, targets, starts).ok());
    EXPECT_THAT(starts, ElementsAre(0, 0, 0));
    if (sampler.WindowAt(cursor) == 0) {
      EXPECT_THAT(targets, ElementsAre('b', 'c', -1));
      ++seen;
    }
  }
  EXPECT_EQ(seen, 1);
  const auto longer =
      WindowSampler::Create(
          *data,
          {.sequence_length = 7, .vocabulary_size = 256, .seed = 1, .document_masking = true})
          .value();
  std::vector<int32_t> inputs(7), targets(7), starts(7);
  ASSERT_TRUE(longer.Read(0, inputs, targets, starts).ok());
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
    const auto names = files_.List(Path("d")).value();
    for (const std::string& name : names) {
      PatchWord("d/" + name, 3, header_vocabulary);
    }
    data_ = Dataset::Open(files_, Path("d")).value();
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
  const auto sampler =
      WindowSampler::Create(
          *data_, {.sequence_length = 7, .vocabulary_size = 50257, .document_masking = true})
          .value();
  std::vector<int32_t> inputs(7), targets(7), starts(7);
  ASSERT_TRUE(sampler.Read(0, inputs, targets, starts).ok());
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
