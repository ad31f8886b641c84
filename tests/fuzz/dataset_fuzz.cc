// A folder of training data: data.json, shards with and without a header, tokens, the index of
// documents, and documents that are found by a token between them. What is opened can be read from
// end to end, every token that is handed out lies in the vocabulary asked for, every document
// begins at or before its tokens, and those that are found begin where the tokens say.
//
// Input: a byte of options, the vocabulary that the reader has in mind (4 bytes), two shards (word
// 0 to 3 of the header, each as a byte of choices and 4 bytes; 2 bytes of length), then data.json
// up to the first zero byte; if the documents are to be found by a token that the user names, that
// token (2 bytes); then the tokens.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_files.h"
#include "tests/fuzz/target.h"
#include "worker/data/data_json.h"
#include "worker/data/dataset.h"
#include "worker/data/token_shard.h"

namespace causeway::fuzz {
namespace {

using worker::Dataset;
using worker::ShardSequence;
using worker::TokenShard;

constexpr char kFolder[] = "data";
constexpr size_t kMaxTokens = 2000;

// The two highest bits are the ShardFormat that the reader asks for.
enum Options : uint8_t {
  kDescribed = 1,
  kHeldOut = 2,
  kRawShard = 4,
  kIndexed = 8,
  kMarked = 16,
  kMarkBegins = 32,
};

// The header of one shard; most are whole.
struct ShardShape {
  int32_t words[4];
  size_t bytes;  // Size of the tokens.
};

ShardShape TakeShape(Input& input) {
  const auto choices = input.Take<uint8_t>();
  const size_t tokens = input.Take<uint16_t>() % kMaxTokens;
  const auto word = input.Take<int32_t>();
  const bool wide = (choices & 1) != 0;
  ShardShape shape = {.words = {wide ? 20240801 : 20240520, wide ? 7 : 1,
                                static_cast<int32_t>(tokens), word % (1 << 24)},
                      .bytes = tokens * (wide ? 4 : 2)};
  if ((choices & 2) != 0) shape.words[3] = 0;
  if ((choices & 4) != 0) shape.words[(choices >> 3) % 4] = word;
  if ((choices & 32) != 0) shape.bytes += static_cast<size_t>(choices >> 6) - 1;
  return shape;
}

std::vector<uint8_t> MakeShard(const ShardShape& shape, const Input& input) {
  const std::vector<uint8_t> tokens = input.Repeat(std::min(shape.bytes, 4 * kMaxTokens));
  std::vector<uint8_t> shard(worker::kShardHeaderBytes + tokens.size());
  std::memcpy(shard.data(), shape.words, sizeof(shape.words));
  std::ranges::copy(tokens, shard.begin() + worker::kShardHeaderBytes);
  return shard;
}

void CheckSequence(const ShardSequence& sequence, int64_t vocabulary_size) {
  int64_t largest = -1;
  if (sequence.documents().has_value()) {
    std::vector<int32_t> starts(static_cast<size_t>(sequence.tokens()));
    sequence.documents()->Fill(0, starts);
    for (size_t i = 0; i < starts.size(); ++i) {
      FUZZ_REQUIRE(starts[i] == static_cast<int32_t>(i) || (i > 0 && starts[i] == starts[i - 1]),
                   "a document that goes on after another has begun");
    }
  }
  for (const TokenShard& shard : sequence.shards()) {
    FUZZ_REQUIRE(shard.tokens() > 0, "an empty shard is opened");
    largest = std::max(largest, shard.LargestToken());
  }
  std::vector<int32_t> all(static_cast<size_t>(sequence.tokens()));
  const absl::Status status = sequence.Read(0, vocabulary_size, all);
  FUZZ_REQUIRE(status.ok() == (all.empty() || largest < vocabulary_size),
               absl::StrCat("the largest token is ", largest, ", the vocabulary ", vocabulary_size,
                            ", but: ", status.ToString()));
  if (!status.ok()) {
    FUZZ_REQUIRE(absl::IsDataLoss(status), "a token outside the vocabulary is DATA_LOSS");
    return;
  }
  for (const int32_t token : all) {
    FUZZ_REQUIRE(token >= 0 && token < vocabulary_size, "a token outside the vocabulary");
  }
  // Windows of other lengths see the same tokens.
  for (size_t begin = 0; begin < all.size(); begin += 97) {
    std::vector<int32_t> window(std::min(size_t{97}, all.size() - begin));
    FUZZ_REQUIRE(sequence.Read(static_cast<int64_t>(begin), vocabulary_size, window).ok(),
                 "a window is refused");
    FUZZ_REQUIRE(std::equal(window.begin(), window.end(), all.begin() + static_cast<long>(begin)),
                 "a window differs");
  }
}

// Fill's starts in a sequence whose documents begin, or end, at that token.
std::vector<int32_t> StartsByTokens(const std::vector<int32_t>& tokens,
                                    const worker::DocumentMark& mark) {
  std::vector<int32_t> starts(tokens.size());
  int32_t start = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool begins =
        mark.begins ? tokens[i] == mark.token : i > 0 && tokens[i - 1] == mark.token;
    if (begins) start = static_cast<int32_t>(i);
    starts[i] = start;
  }
  return starts;
}

void CheckFoundDocuments(Dataset dataset, const std::optional<worker::DocumentMark>& mark) {
  const std::shared_ptr<const ShardSequence> before[] = {dataset.train(), dataset.held_out()};
  const absl::Status found = dataset.FindDocuments(mark);
  if (!found.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(found), "data without the mark are INVALID_ARGUMENT");
    FUZZ_REQUIRE(dataset.train() == before[0], "data without the mark have changed");
    return;
  }
  const std::shared_ptr<const ShardSequence> after[] = {dataset.train(), dataset.held_out()};
  for (size_t i = 0; i < 2; ++i) {
    CheckSequence(*after[i], worker::kMaxVocabulary);
    const bool known = before[i]->documents().has_value();
    FUZZ_REQUIRE(!known || after[i] == before[i], "documents that were known have changed");
    if (known || !mark.has_value() || after[i]->tokens() == 0) continue;
    FUZZ_REQUIRE(after[i]->documents().has_value(), "the documents were not found");
    std::vector<int32_t> tokens(static_cast<size_t>(after[i]->tokens()));
    if (!after[i]->Read(0, worker::kMaxVocabulary, tokens).ok()) continue;
    std::vector<int32_t> starts(tokens.size());
    after[i]->documents()->Fill(0, starts);
    FUZZ_REQUIRE(starts == StartsByTokens(tokens, *mark), "documents begin elsewhere");
  }
}

void CheckDescription(FaultDisk& files) {
  const auto read = worker::ReadDataJson(files, kFolder);
  if (!read.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(read.status()), "a bad data.json is INVALID_ARGUMENT");
    return;
  }
  FUZZ_REQUIRE(
      files.CreateFolders("again").ok() && worker::WriteDataJson(files, "again", *read).ok(),
      "data.json cannot be written");
  const auto again = worker::ReadDataJson(files, "again");
  FUZZ_REQUIRE(again.ok(), std::string(again.status().message()));
  FUZZ_REQUIRE(
      again->vocabulary_size == read->vocabulary_size && again->tokenizer == read->tokenizer &&
          again->train_tokens == read->train_tokens &&
          again->held_out_tokens == read->held_out_tokens &&
          again->train_shards == read->train_shards &&
          again->held_out_shards == read->held_out_shards && again->documents == read->documents &&
          again->bytes == read->bytes && again->shard_format == read->shard_format &&
          again->train_documents == read->train_documents &&
          again->held_out_bytes == read->held_out_bytes,
      "data.json changed");
}

void CheckDataset(Input input) {
  const auto options = input.Take<uint8_t>();
  const int64_t vocabulary_size = int64_t{input.Take<uint32_t>()} % worker::kMaxVocabulary + 1;
  const ShardShape train = TakeShape(input);
  const ShardShape held_out = TakeShape(input);
  const auto end = std::find(input.rest().begin(), input.rest().end(), uint8_t{0});
  const std::vector<uint8_t> json =
      input.TakeBytes(static_cast<size_t>(end - input.rest().begin()));
  input.Take<uint8_t>();
  std::optional<worker::DocumentMark> mark;
  if ((options & kMarked) != 0) {
    // A token as large as half the vocabularies have it, or beyond what any has.
    const auto choice = input.Take<uint16_t>();
    mark = {.token = choice == 0xffff ? int64_t{1} << 40 : int64_t{choice},
            .begins = (options & kMarkBegins) != 0};
  }

  FaultDisk files;
  const bool described = (options & kDescribed) != 0;
  if (described) Put(files, JoinPath(kFolder, worker::kDataJsonName), json);
  Put(files, JoinPath(kFolder, "train_000000.bin"),
      (options & kRawShard) != 0 ? input.TakeBytes(input.rest().size()) : MakeShard(train, input));
  if ((options & kHeldOut) != 0) {
    Put(files, JoinPath(kFolder, "held_out_000000.bin"), MakeShard(held_out, input));
  }
  if ((options & kIndexed) != 0) {
    // Whole, with starts that ascend by what the input says.
    std::vector<int64_t> starts;
    int64_t start = 0;
    for (const uint8_t step : input.Repeat(8)) starts.push_back(start = start + step % 64);
    if (starts.size() > 1) starts.front() = 0;
    const std::string header = absl::StrCat(
        R"({"__metadata__":{"tokens":")", train.words[2], R"("},"starts":{"dtype":"I64","shape":[)",
        starts.size(), R"(],"data_offsets":[0,)", starts.size() * sizeof(int64_t), "]}}");
    const uint64_t length = header.size();
    std::vector<uint8_t> index(sizeof(length) + header.size() + starts.size() * sizeof(int64_t));
    std::memcpy(index.data(), &length, sizeof(length));
    std::ranges::copy(header, index.begin() + sizeof(length));
    std::memcpy(index.data() + sizeof(length) + header.size(), starts.data(),
                starts.size() * sizeof(int64_t));
    Put(files, JoinPath(kFolder, "train.documents"), index);
  }
  if (described) CheckDescription(files);
  const absl::StatusOr<Dataset> dataset =
      Dataset::Open(files, kFolder, static_cast<worker::ShardFormat>(options >> 6));
  if (!dataset.ok()) return;
  const absl::Status fits = dataset->CheckVocabulary(vocabulary_size);
  CheckSequence(*dataset->train(), vocabulary_size);
  CheckSequence(*dataset->held_out(), vocabulary_size);
  CheckFoundDocuments(*dataset, mark);
  if (fits.ok() && dataset->vocabulary_size() == 0) {
    std::vector<int32_t> all(static_cast<size_t>(dataset->train()->tokens()));
    FUZZ_REQUIRE(dataset->train()->Read(0, vocabulary_size, all).ok(),
                 "a token of a checked vocabulary is refused");
  }
}

}  // namespace
}  // namespace causeway::fuzz

FUZZ_TARGET("dataset", CheckDataset)
