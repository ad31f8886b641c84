#include "worker/data/dataset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/data/data_json.h"

namespace causeway::worker {
namespace {

absl::StatusOr<std::shared_ptr<const ShardSequence>> OpenShards(
    FileSystem& file_system, const std::string& folder, const std::vector<std::string>& names) {
  std::vector<TokenShard> shards;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(TokenShard shard, TokenShard::Open(file_system, JoinPath(folder, name)));
    shards.push_back(std::move(shard));
  }
  return std::make_shared<const ShardSequence>(std::move(shards));
}

absl::Status CheckCount(const std::string& folder, absl::string_view what, int64_t expected,
                        int64_t found) {
  if (expected == found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(JoinPath(folder, kDataJsonName), " promises ",
                                                 expected, " ", what, " tokens, the shards hold ",
                                                 found, "; copy or make the data again"));
}

}  // namespace

ShardSequence::ShardSequence(std::vector<TokenShard> shards) : shards_(std::move(shards)) {
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

absl::StatusOr<Dataset> Dataset::Open(FileSystem& file_system, const std::string& folder) {
  if (!file_system.IsFolder(folder)) {
    return absl::NotFoundError(absl::StrCat("there is no data folder ", folder,
                                            "; make one with `causeway-worker tokenize`"));
  }
  Dataset dataset;
  dataset.folder_ = folder;
  std::vector<std::string> train;
  std::vector<std::string> held_out;
  const bool described = file_system.Exists(JoinPath(folder, kDataJsonName));
  DataDescription description;
  if (described) {
    ASSIGN_OR_RETURN(description, ReadDataJson(file_system, folder));
    train = description.train_shards;
    held_out = description.held_out_shards;
    dataset.tokenizer_ = description.tokenizer;
    dataset.vocabulary_size_ = description.vocabulary_size;
  } else {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(folder));
    for (const std::string& name : names) {
      if (!absl::EndsWith(name, ".bin")) continue;
      if (absl::StrContains(name, "held_out") || absl::StrContains(name, "val")) {
        held_out.push_back(name);
      } else if (absl::StrContains(name, "train")) {
        train.push_back(name);
      }
    }
  }
  if (train.empty()) {
    return absl::NotFoundError(absl::StrCat("there are no training shards (train_*.bin) in ",
                                            folder, "; make them with `causeway-worker tokenize`"));
  }
  ASSIGN_OR_RETURN(dataset.train_, OpenShards(file_system, folder, train));
  ASSIGN_OR_RETURN(dataset.held_out_, OpenShards(file_system, folder, held_out));
  if (described) {
    RETURN_IF_ERROR(
        CheckCount(folder, "training", description.train_tokens, dataset.train_->tokens()));
    RETURN_IF_ERROR(
        CheckCount(folder, "held-out", description.held_out_tokens, dataset.held_out_->tokens()));
  }
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

absl::Status Dataset::CheckVocabulary(int64_t model_vocabulary_size) const {
  if (vocabulary_size_ != 0 && vocabulary_size_ != model_vocabulary_size) {
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
