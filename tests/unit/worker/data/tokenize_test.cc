#include "worker/data/text_corpus.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/data/data_test_util.h"
#include "worker/data/data_json.h"
#include "worker/data/dataset.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Lines of different lengths, each naming its number.
std::string NumberedLines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&text, "line ", i, std::string(static_cast<size_t>(i % 50), '.'), "\n");
  }
  return text;
}

class TokenizeTest : public DataTest {
 protected:
  TokenizeOptions Options(const std::vector<std::string>& names) {
    TokenizeOptions options;
    for (const std::string& name : names) options.inputs.push_back(Path(name));
    options.output = Path("out");
    return options;
  }
  absl::Status Run(const TokenizeOptions& options) { return Tokenize(files_, options).status(); }
  std::string Text(const ShardSequence& sequence) {
    std::vector<int32_t> tokens(static_cast<size_t>(sequence.tokens()));
    EXPECT_TRUE(sequence.Read(0, 256, tokens).ok());
    return {tokens.begin(), tokens.end()};
  }
};

TEST_F(TokenizeTest, FolderBecomesTrainingAndHeldOutShards) {
  WriteFile("corpus/b.txt", NumberedLines(4000));
  WriteFile("corpus/a/x.txt", NumberedLines(2000));
  const auto result = Tokenize(files_, Options({"corpus"})).value();
  EXPECT_EQ(result.documents, 2);
  const auto all = static_cast<double>(result.train_tokens + result.held_out_tokens);
  const double share = static_cast<double>(result.held_out_tokens) / all;
  EXPECT_NEAR(share, 0.05, 0.01);

  const auto data = Dataset::Open(files_, Path("out")).value();
  EXPECT_EQ(data.vocabulary_size(), 256);
  EXPECT_TRUE(data.is_bytes());
  EXPECT_EQ(data.held_out_bytes_per_token(), 1);
  EXPECT_EQ(data.train()->tokens(), result.train_tokens);
  EXPECT_EQ(data.held_out()->tokens(), result.held_out_tokens);
  // a/x.txt comes before b.txt, and its lines are still in order.
  EXPECT_EQ(Text(*data.train()).substr(0, 14), "line 0\nline 1.");
  const auto description = ReadDataJson(files_, Path("out")).value();
  EXPECT_THAT(description.sources, ElementsAre(Path("corpus")));
}

TEST_F(TokenizeTest, PiecesAreTheWholeTextCutAtEndsOfLines) {
  const std::string text = NumberedLines(5000);
  WriteFile("corpus.txt", text);
  const auto corpus = FindTextCorpus(files_, {Path("corpus.txt")}).value();
  std::string together;
  int held_out = 0;
  const absl::Status status = VisitPieces(files_, corpus, 0.1, [&](const Piece& piece) {
    EXPECT_EQ(piece.text.back(), '\n');
    EXPECT_EQ(piece.begins_document, together.empty());
    absl::StrAppend(&together, piece.text);
    EXPECT_EQ(piece.ends_document, together.size() == text.size());
    held_out += piece.held_out ? 1 : 0;
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(together, text);
  EXPECT_EQ(held_out, 8);
}

TEST_F(TokenizeTest, CutsWithoutLinesFallBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 3001; ++i) text += i % 2 == 0 ? "\xE2\x82\xAC" : "\xF0\x9F\x98\x80";
  WriteFile("corpus.txt", "x" + text);
  const auto corpus = FindTextCorpus(files_, {Path("corpus.txt")}).value();
  int pieces = 0;
  ASSERT_TRUE(VisitPieces(files_, corpus, 0.05, [&](const Piece& piece) {
                EXPECT_NE(static_cast<uint8_t>(piece.text.front()) & 0xC0, 0x80);
                ++pieces;
                return absl::OkStatus();
              }).ok());
  EXPECT_GT(pieces, 10);
}

TEST_F(TokenizeTest, BinaryEmptyAndHiddenFilesInFoldersArePassedOver) {
  WriteFile("corpus/a.txt", NumberedLines(1000));
  WriteFile("corpus/b.bin", std::string("MZ\0\0", 4));
  WriteFile("corpus/c.txt", "");
  WriteFile("corpus/.git/objects", NumberedLines(10));
  ASSERT_EQ(symlink("nowhere", Path("corpus/dangling").c_str()), 0);
  const auto corpus = FindTextCorpus(files_, {Path("corpus")}).value();
  ASSERT_EQ(corpus.documents.size(), 1u);
  EXPECT_EQ(corpus.documents[0].path, Path("corpus/a.txt"));
  EXPECT_EQ(corpus.skipped_files, 2);
}

TEST_F(TokenizeTest, ShardsBelowTheCorpusAreNotTokenizedAgain) {
  WriteFile("corpus/a.txt", NumberedLines(1000));
  WriteFile("corpus/notes/data.json", "{}");  // No shards beside it.
  TokenizeOptions options = Options({"corpus"});
  options.output = Path("corpus/shards");
  ASSERT_TRUE(Run(options).ok());
  const std::string before = ReadFile("corpus/shards/train_000000.bin");
  options.replace = true;
  ASSERT_TRUE(Run(options).ok());
  EXPECT_EQ(ReadFile("corpus/shards/train_000000.bin"), before);
  const auto corpus = FindTextCorpus(files_, {Path("corpus")}).value();
  ASSERT_EQ(corpus.documents.size(), 2u);
  EXPECT_EQ(corpus.documents[1].path, Path("corpus/notes/data.json"));
  EXPECT_EQ(corpus.skipped_files, 5);
}

TEST_F(TokenizeTest, WhatCannotBeTokenizedIsNamedAndLeavesNothing) {
  WriteFile("program", std::string("ELF\0", 4));
  WriteFile("empty.txt", "");
  ASSERT_TRUE(files_.CreateFolders(Path("nothing")).ok());
  WriteFile("lines/a.txt", NumberedLines(1000));
  WriteFile("lines/b.jsonl", "{\"text\": \"one\"}\n");
  WriteFile("circle/a.txt", "text\n");
  ASSERT_EQ(symlink(".", Path("circle/loop").c_str()), 0);
  for (const auto& [input, named, said] :
       {std::array{"missing", "missing", "missing"},
        {"program", "program", "not text"},
        {"nothing", "nothing", "no text in"},
        {"empty.txt", "empty.txt", "no text in"},
        {"circle", "circle", "in a circle"},
        {"lines", "lines/b.jsonl", "python3 -m causeway.tokenize"}}) {
    EXPECT_THAT(Run(Options({input})).message(), AllOf(HasSubstr(Path(named)), HasSubstr(said)));
  }
  EXPECT_EQ(Run(Options({"missing"})).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Run(Options({})).message(), HasSubstr("no corpus"));
  TokenizeOptions options = Options({"lines/a.txt"});
  for (const double fraction : {0.0, 0.6}) {
    options.held_out_fraction = fraction;
    EXPECT_THAT(Run(options).message(), HasSubstr("held_out_fraction"));
  }
  options.held_out_fraction = 0.05;
  options.shard_tokens = 0;
  EXPECT_THAT(Run(options).message(), HasSubstr("shard_tokens"));
  EXPECT_FALSE(files_.Exists(Path("out")));
}

TEST_F(TokenizeTest, UnreadableFileInAFolderIsAnError) {
  WriteFile("corpus/a.txt", NumberedLines(1000));
  WriteFile("corpus/secret.txt", "x");
  std::filesystem::permissions(Path("corpus/secret.txt"), std::filesystem::perms::none);
  std::filesystem::permissions(root_, std::filesystem::perms::all);
  // Root may read everything.
  constexpr uid_t kNobody = 65534;
  const bool is_root = geteuid() == 0;
  if (is_root && seteuid(kNobody) != 0) GTEST_SKIP() << "root that cannot become another user";
  const absl::Status status = Run(Options({"corpus"}));
  if (is_root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("secret.txt"));
}

TEST_F(TokenizeTest, SmallestCorpusFillsBothPartsAndASmallerOneIsRefused) {
  WriteFile("small.txt", std::string(20 * 64, 'a'));
  ASSERT_TRUE(Run(Options({"small.txt"})).ok());
  const auto data = Dataset::Open(files_, Path("out")).value();
  EXPECT_EQ(data.held_out()->tokens(), 64);

  WriteFile("smaller.txt", std::string(20 * 64 - 1, 'a'));
  TokenizeOptions options = Options({"smaller.txt"});
  options.output = Path("other");
  EXPECT_THAT(Run(options).message(), AllOf(HasSubstr("1279 bytes"), HasSubstr("at least 1280")));
  EXPECT_FALSE(files_.Exists(Path("other")));
}

TEST_F(TokenizeTest, ManyTinyDocumentsStillLeaveBothPartsText) {
  for (int i = 0; i < 500; ++i) WriteFile(absl::StrCat("corpus/", i), "tiny\n");
  ASSERT_TRUE(Run(Options({"corpus"})).ok());
  const auto data = Dataset::Open(files_, Path("out")).value();
  EXPECT_GT(data.held_out()->tokens(), 50);
  EXPECT_EQ(data.held_out()->tokens() + data.train()->tokens(), 2500);
}

TEST_F(TokenizeTest, OldShardsAreNeitherMixedInNorLostByAccident) {
  WriteFile("a.txt", NumberedLines(1000));
  TokenizeOptions options = Options({"a.txt"});
  options.shard_tokens = 10000;
  ASSERT_TRUE(Run(options).ok());
  const std::string before = ReadFile("out/train_000000.bin");
  options.shard_tokens = 1 << 30;
  EXPECT_EQ(Run(options).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile("out/train_000000.bin"), before);
  options.replace = true;
  ASSERT_TRUE(Run(options).ok());
  EXPECT_FALSE(files_.Exists(Path("out/train_000001.bin")));
  EXPECT_TRUE(Dataset::Open(files_, Path("out")).ok());
}

TEST_F(TokenizeTest, OnlyFilesWithTheExtensionsAreTaken) {
  WriteFile("corpus/a.txt", std::string(3000, 'a'));
  WriteFile("corpus/b.md", std::string(3000, 'b'));
  WriteFile("corpus/c.log", std::string(3000, 'c'));
  TokenizeOptions options = Options({"corpus"});
  options.extensions = {".txt", ".md"};
  const auto result = Tokenize(files_, options).value();
  EXPECT_EQ(result.documents, 2);
  EXPECT_EQ(result.train_tokens + result.held_out_tokens, 6000);
}

}  // namespace
}  // namespace causeway::worker
