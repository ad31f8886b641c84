// A folder of token shards as two long sequences of tokens: one to train on, one held out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "worker/data/token_shard.h"

namespace causeway::worker {

// Where documents begin in a sequence of tokens. Sequences are packed: a window may hold the end of
// one document and the beginning of the next, and whoever wants to keep them apart looks here.
//
// On disk: safetensors (common/files/safetensors.h) with the tensor "starts": I64, ascending, the
// first 0; metadata: "tokens", the length of the sequence.

// Immutable and thread-safe.
class DocumentIndex {
 public:
  // `starts` ascend from 0 and are below `tokens`; INVALID_ARGUMENT if not.
  static absl::StatusOr<DocumentIndex> Create(std::vector<int64_t> starts, int64_t tokens);
  static absl::StatusOr<DocumentIndex> Read(FileSystem& file_system, const std::string& path,
                                            int64_t tokens);
  absl::Status Write(FileSystem& file_system, const std::string& path) const;

  const std::vector<int64_t>& starts() const { return starts_; }

  // For each of the tokens from `begin` on: where its document begins, counted from `begin`, or 0
  // if that was earlier. begin + out.size() is at most the sequence's length.
  void Fill(int64_t begin, std::span<int32_t> out) const;

 private:
  DocumentIndex() = default;

  std::vector<int64_t> starts_;
  int64_t tokens_ = 0;
};

// Shards one after the other. Immutable and thread-safe.
class ShardSequence {
 public:
  explicit ShardSequence(std::vector<TokenShard> shards,
                         std::optional<DocumentIndex> documents = std::nullopt);

  int64_t tokens() const { return begins_.back(); }
  const std::vector<TokenShard>& shards() const { return shards_; }
  // Where documents begin; nullopt if nobody wrote it down.
  const std::optional<DocumentIndex>& documents() const { return documents_; }

  // Copies the tokens from `begin` on into all of `out`; begin + out.size() <= tokens(). Errors of
  // TokenShard::Read.
  absl::Status Read(int64_t begin, int64_t vocabulary_size, std::span<int32_t> out) const;

  // Hashes the length and tokens spread over the whole sequence, however it is cut into shards: the
  // same for copies, almost surely another for other texts, where anything was inserted or removed
  // too. Never 0. Reads some thousand tokens.
  uint64_t Fingerprint() const;

 private:
  std::vector<TokenShard> shards_;
  std::vector<int64_t> begins_;  // Begin of each shard, and end of the last.
  std::optional<DocumentIndex> documents_;
};

// The token that stands at the beginning or the end of every document.
struct DocumentMark {
  int64_t token = 0;
  bool begins = false;  // Else it ends them.
};

// Immutable, but for FindDocuments, and thread-safe; copies share the mappings.
class Dataset {
 public:
  // Opens what tokenize wrote, this program's or the Python package's, and llm.c's folders: files
  // *.bin whose name contains "held_out" or "val" are held out, others whose name contains "train"
  // are trained on, in order of name. If there is a data.json, its shards are taken, no others.
  // `format` is that of the shards where no data.json says it.
  //
  // NOT_FOUND if there is no such folder or no training shard in it. FAILED_PRECONDITION if
  // `tokenize` has not finished there (staged_data.h). INVALID_ARGUMENT, naming
  // the file, for a damaged or empty shard, one whose name is of both kinds, shards of different
  // vocabularies, or token counts or another `format` than data.json's.
  static absl::StatusOr<Dataset> Open(FileSystem& file_system, const std::string& folder,
                                      ShardFormat format = ShardFormat::kDetect);

  // Where documents begin, in data that nobody wrote it down for, by reading them once: at `mark`,
  // or, in llm.c's files, at the tokens that its data sets have there, 50256 (GPT-2, uint16) and
  // 128000 (Llama 3, uint32). Does nothing where it is known, or there is no mark.
  // INVALID_ARGUMENT if the training data do not hold the mark.
  absl::Status FindDocuments(const std::optional<DocumentMark>& mark);

  // Sentences for people, before FindDocuments: what of the folder and of the flags counts for
  // nothing. `marked`: they name a mark; `masks`: the run asks for documents.
  std::vector<std::string> CountsForNothing(bool marked, bool masks) const;

  const std::string& folder() const { return folder_; }
  // 0 if the shards do not say (llm.c's do not).
  int64_t vocabulary_size() const { return vocabulary_size_; }
  // Whether every token is a byte of the text.
  bool is_bytes() const { return is_bytes_; }
  // Bytes of held-out text per token of it; 0 if there is no data.json that says it.
  double held_out_bytes_per_token() const { return held_out_bytes_per_token_; }

  const std::shared_ptr<const ShardSequence>& train() const { return train_; }
  const std::shared_ptr<const ShardSequence>& held_out() const {
    return held_out_;
  }  // May be empty.

  // Checks that a model of this vocabulary can be trained on the data. The model's size must be the
  // data's, or up to a tenth larger. Where shards do not say theirs, every token must be below the
  // model's size (all are read once). FAILED_PRECONDITION names both sizes, or the file and its
  // largest token.
  absl::Status CheckVocabulary(int64_t model_vocabulary_size) const;

 private:
  Dataset() = default;

  std::string folder_;
  std::vector<std::string> no_shards_;  // Other files *.bin.
  int64_t vocabulary_size_ = 0;
  bool is_bytes_ = false;
  double held_out_bytes_per_token_ = 0;
  std::shared_ptr<const ShardSequence> train_;
  std::shared_ptr<const ShardSequence> held_out_;
};

}  // namespace causeway::worker
