#include "worker/data/dataset.h"

#include <gmock/gmock.h>

#include <array>

#include "tests/unit/worker/data/data_test_util.h"
#include "worker/data/text_corpus.h"

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
  const absl::StatusOr<Dataset> data = Dataset::Open(files_, Path("d"));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train()->tokens(), 30);
  EXPECT_EQ(data->held_out()->tokens(), 0);
  std::vector<int32_t> out(10);
  ASSERT_TRUE(data->train()->Read(3, 100, out).ok());
  EXPECT_THAT(out, ElementsAre(3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
  out.resize(4);
  ASSERT_TRUE(data->train()->Read(26, 100, out).ok());
  EXPECT_THAT(out, ElementsAre(26, 27, 28, 29));
}

TEST_F(DatasetTest, ForeignFoldersAreSortedOutByName) {
  WriteShards("d", "tiny_train", CountingTokens(30, 100), 100);
  WriteShards("d", "tiny_val", CountingTokens(20, 100), 100);
  for (const char* name : {"d/tiny_train_000000.bin", "d/tiny_val_000000.bin"}) {
    PatchWord(name, 3, 0);
  }
  const absl::StatusOr<Dataset> data = Dataset::Open(files_, Path("d"));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train()->tokens(), 30);
  EXPECT_EQ(data->held_out()->tokens(), 20);
  EXPECT_EQ(data->vocabulary_size(), 0);
  EXPECT_TRUE(data->CheckVocabulary(30).ok());
  const absl::Status status = data->CheckVocabulary(29);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("token 29"), HasSubstr("train_000000.bin")));
}

TEST_F(DatasetTest, VocabularyMismatchNamesBothSizes) {
  MakeData("d");
  const absl::StatusOr<Dataset> data = Dataset::Open(files_, Path("d"));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE(data->CheckVocabulary(256).ok());
  EXPECT_THAT(data->CheckVocabulary(50257).message(),
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

}  // namespace
}  // namespace causeway::worker
