#include "worker/data/dataset.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "common/base/checksum.h"
#include "common/base/text.h"
#include "common/files/safetensors.h"
#include "nlohmann/json.hpp"
#include "worker/data/data_json.h"
#include "worker/data/staged_data.h"

namespace causeway::worker {
namespace {

constexpr char kStarts[] = "starts";
constexpr char kTokens[] = "tokens";

}  // namespace

absl::StatusOr<DocumentIndex> DocumentIndex::Create(std::vector<int64_t> starts, int64_t tokens) {
  const bool ascends = std::adjacent_find(starts.begin(), starts.end(),
                                          std::greater_equal<int64_t>()) == starts.end();
  if (starts.empty() || starts.front() != 0 || !ascends || starts.back() >= tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "documents must begin at 0, then at ascending positions below ", tokens, " tokens"));
  }
  DocumentIndex index;
  index.starts_ = std::move(starts);
  index.tokens_ = tokens;
  return index;
}

absl::StatusOr<DocumentIndex> DocumentIndex::Read(FileSystem& file_system, const std::string& path,
                                                  int64_t tokens) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(file_system, path);
  if (!file.ok()) return Annotate(file.status(), "make the data again");
  const auto found = file->tensors().find(kStarts);
  if (found == file->tensors().end() || found->second.dtype != "I64") {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no tensor \"", kStarts, "\" (I64)"));
  }
  const auto promised = file->metadata().find(kTokens);
  const std::string text = promised == file->metadata().end() ? "unknown" : promised->second;
  if (text != absl::StrCat(tokens)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is of ", Printable(text.substr(0, 20)),
                                                   " tokens, the shards hold ", tokens,
                                                   "; copy or make the data again"));
  }
  const std::span<const uint8_t> bytes = found->second.bytes;
  std::vector<int64_t> starts(bytes.size() / sizeof(int64_t));
  std::memcpy(starts.data(), bytes.data(), bytes.size());
  absl::StatusOr<DocumentIndex> index = Create(std::move(starts), tokens);
  if (!index.ok()) return Annotate(index.status(), path);
  return index;
}

absl::Status DocumentIndex::Write(FileSystem& file_system, const std::string& path) const {
  const size_t bytes = starts_.size() * sizeof(int64_t);
  const nlohmann::ordered_json header = {
      {"__metadata__", {{kTokens, absl::StrCat(tokens_)}}},
      {kStarts, {{"dtype", "I64"}, {"shape", {starts_.size()}}, {"data_offsets", {0, bytes}}}}};
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const auto size = static_cast<uint64_t>(text.size());
  std::vector<uint8_t> content(sizeof(size) + text.size() + bytes);
  std::memcpy(content.data(), &size, sizeof(size));
  std::memcpy(content.data() + sizeof(size), text.data(), text.size());
  std::memcpy(content.data() + sizeof(size) + text.size(), starts_.data(), bytes);
  return WriteFileAtomically(file_system, path, std::span<const uint8_t>(content));
}

void DocumentIndex::Fill(int64_t begin, std::span<int32_t> out) const {
  // The first document that begins after `begin`.
  auto next = std::upper_bound(starts_.begin(), starts_.end(), begin);
  int32_t start = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (next != starts_.end() && *next == begin + static_cast<int64_t>(i)) {
      start = static_cast<int32_t>(i);
      ++next;
    }
    out[i] = start;
  }
}

namespace {

absl::Status CheckCount(const std::string& folder, absl::string_view what, int64_t expected,
                        int64_t found) {
  if (expected == found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(JoinPath(folder, kDataJsonName), " promises ",
                                                 expected, " ", what, " tokens, the shards hold ",
                                                 found, "; copy or make the data again"));
}

// One part of a folder's data, as data.json or the names in the folder tell it.
struct PartFiles {
  absl::string_view what;
  std::vector<std::string> shards = {};
  std::string documents = "";    // Empty: there is none.
  int64_t promised_tokens = -1;  // -1: nobody says.
};

absl::StatusOr<std::shared_ptr<const ShardSequence>> OpenPart(FileSystem& file_system,
                                                              const std::string& folder,
                                                              const PartFiles& part,
                                                              ShardFormat format) {
  std::vector<TokenShard> shards;
  int64_t tokens = 0;
  for (const std::string& name : part.shards) {
    ASSIGN_OR_RETURN(TokenShard shard,
                     TokenShard::Open(file_system, JoinPath(folder, name), format));
    tokens += shard.tokens();
    shards.push_back(std::move(shard));
  }
  if (part.promised_tokens >= 0) {
    RETURN_IF_ERROR(CheckCount(folder, part.what, part.promised_tokens, tokens));
  }
  std::optional<DocumentIndex> index;
  if (!part.documents.empty()) {
    ASSIGN_OR_RETURN(index,
                     DocumentIndex::Read(file_system, JoinPath(folder, part.documents), tokens));
  }
  return std::make_shared<const ShardSequence>(std::move(shards), std::move(index));
}

// Returns the token that llm.c's scripts write between documents. Nullopt for shards of other
// origin.
std::optional<DocumentMark> MarkOfLlmC(const ShardSequence& tokens) {
  const bool is_llm_c = std::ranges::all_of(tokens.shards(), [&](const TokenShard& shard) {
    return shard.has_header() && shard.vocabulary_size() == 0 &&
           shard.bytes_per_token() == tokens.shards().front().bytes_per_token();
  });
  if (!is_llm_c || tokens.shards().empty()) return std::nullopt;
  constexpr int64_t kGpt2EndOfText = 50256;
  constexpr int64_t kLlama3BeginOfText = 128000;
  return DocumentMark{
      .token = tokens.shards().front().bytes_per_token() == 2 ? kGpt2EndOfText : kLlama3BeginOfText,
      .begins = true};
}

}  // namespace

ShardSequence::ShardSequence(std::vector<TokenShard> shards, std::optional<DocumentIndex> documents)
    : shards_(std::move(shards)), documents_(std::move(documents)) {
  begins_.push_back(0);
  for (const TokenShard& shard : shards_) begins_.push_back(begins_.back() + shard.tokens());
}

absl::Status ShardSequence::Read(int64_t begin, int64_t vocabulary_size,
                                 std::span<int32_t> out) const {
  // The last shard that begins at or before `begin`.
  auto at = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) -
                                begins_.begin() - 1);
  while (!out.empty()) {
    const int64_t offset = begin - begins_[at];
    const auto available = static_cast<size_t>(shards_[at].tokens() - offset);
    const std::span<int32_t> part = out.first(std::min(available, out.size()));
    RETURN_IF_ERROR(shards_[at].Read(offset, vocabulary_size, part));
    out = out.subspan(part.size());
    begin += static_cast<int64_t>(part.size());
    ++at;
  }
  return absl::OkStatus();
}

uint64_t ShardSequence::Fingerprint() const {
  constexpr int64_t kSamples = 256;
  constexpr int64_t kSampleTokens = 16;
  std::vector<int32_t> sampled;
  const int64_t length = std::min(kSampleTokens, tokens());
  const int64_t begins = tokens() - length + 1;
  for (int64_t i = 0; i < kSamples; ++i) {
    // floor(i * begins / kSamples), without overflow.
    const int64_t begin = i * (begins / kSamples) + i * (begins % kSamples) / kSamples;
    sampled.resize(sampled.size() + static_cast<size_t>(length));
    const absl::Status read =
        Read(begin, kMaxVocabulary, std::span(sampled).last(static_cast<size_t>(length)));
    if (!read.ok()) sampled.back() = -1;  // Whoever trains on it gets the error.
  }
  const uint64_t hash = Checksum64(std::span(reinterpret_cast<const uint8_t*>(sampled.data()),
                                             sampled.size() * sizeof(int32_t)));
  return std::max<uint64_t>(1, hash ^ static_cast<uint64_t>(tokens()));
}

absl::StatusOr<Dataset> Dataset::Open(FileSystem& file_system, const std::string& folder,
                                      ShardFormat format) {
  if (!file_system.IsFolder(folder)) {
    return absl::NotFoundError(absl::StrCat("there is no data folder ", folder,
                                            "; make one with `causeway-worker tokenize`"));
  }
  Dataset dataset;
  dataset.folder_ = folder;
  PartFiles train = {.what = "training"};
  PartFiles held_out = {.what = "held-out"};
  if (file_system.Exists(JoinPath(folder, kDataJsonName))) {
    ASSIGN_OR_RETURN(const DataDescription description, ReadDataJson(file_system, folder));
    train.shards = description.train_shards;
    train.documents = description.train_documents;
    train.promised_tokens = description.train_tokens;
    held_out.shards = description.held_out_shards;
    held_out.documents = description.held_out_documents;
    held_out.promised_tokens = description.held_out_tokens;
    dataset.is_bytes_ = description.tokenizer == "bytes";
    if (description.held_out_tokens > 0) {
      dataset.held_out_bytes_per_token_ = static_cast<double>(description.held_out_bytes) /
                                          static_cast<double>(description.held_out_tokens);
    }
    dataset.vocabulary_size_ = description.vocabulary_size;
    if (format != ShardFormat::kDetect && format != description.shard_format) {
      return absl::InvalidArgumentError(
          absl::StrCat("--shard_format is ", ShardFormatName(format), ", and the data in ", folder,
                       " are ", ShardFormatName(description.shard_format), " by their ",
                       kDataJsonName, ": leave it out"));
    }
    format = description.shard_format;
  } else if (file_system.IsFolder(StagedData::FolderOf(folder))) {
    return absl::UnavailableError(
        absl::StrCat("the data in ", folder, " are not finished (", StagedData::FolderOf(folder),
                     "): wait for `causeway-worker tokenize`, or run it again if it was ended"));
  } else {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(folder));
    for (const std::string& name : names) {
      if (!absl::EndsWith(name, ".bin")) continue;
      const bool trains = absl::StrContains(name, "train");
      const bool is_held_out =
          absl::StrContains(name, "held_out") || absl::StrContains(name, "val");
      if (trains && is_held_out) {
        return absl::InvalidArgumentError(
            absl::StrCat(JoinPath(folder, name),
                         " is to train on by its name, and held out: it may contain "
                         "train, or val or held_out; rename it"));
      }
      (trains ? train.shards : is_held_out ? held_out.shards : dataset.no_shards_).push_back(name);
    }
  }
  if (train.shards.empty()) {
    return absl::NotFoundError(absl::StrCat("there are no training shards (train_*.bin) in ",
                                            folder, "; make them with `causeway-worker tokenize`"));
  }
  ASSIGN_OR_RETURN(dataset.train_, OpenPart(file_system, folder, train, format));
  ASSIGN_OR_RETURN(dataset.held_out_, OpenPart(file_system, folder, held_out, format));
  for (const auto* sequence : {dataset.train_.get(), dataset.held_out_.get()}) {
    for (const TokenShard& shard : sequence->shards()) {
      if (shard.vocabulary_size() == 0) continue;
      if (dataset.vocabulary_size_ == 0) dataset.vocabulary_size_ = shard.vocabulary_size();
      if (shard.vocabulary_size() != dataset.vocabulary_size_) {
        return absl::InvalidArgumentError(
            absl::StrCat(shard.path(), " has a vocabulary of ", shard.vocabulary_size(),
                         " tokens, the data beside it one of ", dataset.vocabulary_size_,
                         "; put data of different tokenizers into different folders"));
      }
    }
  }
  return dataset;
}

absl::Status Dataset::FindDocuments(const std::optional<DocumentMark>& mark) {
  for (auto* sequence : {&train_, &held_out_}) {
    const ShardSequence& tokens = **sequence;
    if (tokens.tokens() == 0 || tokens.documents().has_value()) continue;
    const std::optional<DocumentMark> used = mark.has_value() ? mark : MarkOfLlmC(tokens);
    if (!used.has_value()) continue;
    std::vector<int64_t> starts;
    int64_t first = 0;
    for (const TokenShard& shard : tokens.shards()) {
      shard.Find(used->token, first, starts);
      first += shard.tokens();
    }
    if (starts.empty() && sequence == &train_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "train.document_masking needs to know where documents begin, and the training data in ",
          folder_, " do not hold the token ", used->token,
          ": say which token stands there by --document_begin=TOKEN or --document_end=TOKEN"));
    }
    if (!used->begins) {
      for (int64_t& start : starts) ++start;
      if (!starts.empty() && starts.back() == first) starts.pop_back();
    }
    if (starts.empty() || starts.front() != 0) starts.insert(starts.begin(), 0);
    ASSIGN_OR_RETURN(DocumentIndex index, DocumentIndex::Create(std::move(starts), first));
    *sequence = std::make_shared<const ShardSequence>(tokens.shards(), std::move(index));
  }
  return absl::OkStatus();
}

std::vector<std::string> Dataset::CountsForNothing(bool marked, bool masks) const {
  std::vector<std::string> said;
  if (!no_shards_.empty()) {
    said.push_back(absl::StrCat(JoinPath(folder_, no_shards_.front()), " (one of ",
                                no_shards_.size(),
                                ") is no shard by its name, which contains neither train nor val "
                                "nor held_out: it counts for nothing"));
  }
  if (marked && (!masks || train_->documents().has_value())) {
    said.push_back(absl::StrCat(
        "--document_begin and --document_end count for nothing: ",
        masks ? "the data say where documents begin" : "the run has no train.document_masking"));
  }
  return said;
}

absl::Status Dataset::CheckVocabulary(int64_t model_vocabulary_size) const {
  // Published models have rows beyond their tokenizer's vocabulary, to round it up.
  const int64_t least = model_vocabulary_size - model_vocabulary_size / 10;
  if (vocabulary_size_ != 0 &&
      (vocabulary_size_ < least || vocabulary_size_ > model_vocabulary_size)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the data in ", folder_, " has a vocabulary of ", vocabulary_size_,
        " tokens, the run's model has ", model_vocabulary_size,
        " (model.vocabulary_size); tokenize with the run's tokenizer, or change the run"));
  }
  for (const auto* sequence : {train_.get(), held_out_.get()}) {
    for (const TokenShard& shard : sequence->shards()) {
      if (shard.vocabulary_size() != 0) continue;
      const int64_t largest = shard.LargestToken();
      if (largest < model_vocabulary_size) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          shard.path(), " holds token ", largest, ", the run's model has a vocabulary of ",
          model_vocabulary_size,
          " (model.vocabulary_size); tokenize with the run's tokenizer, or change the run"));
    }
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
