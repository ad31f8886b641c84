// Byte-level BPE: the tokenizers of GPT-2, Llama 3, Qwen and their like.
#ifndef CAUSEWAY_WORKER_DATA_BPE_TOKENIZER_H_
#define CAUSEWAY_WORKER_DATA_BPE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "worker/data/added_tokens.h"
#include "worker/data/bpe_merges.h"
#include "worker/data/pre_tokens.h"
#include "worker/data/tokenizer.h"
#include "worker/data/tokenizer_json.h"

namespace causeway::worker {

class BpeTokenizer final : public Tokenizer {
 public:
  // `name` and `hash` as Tokenizer gives them.
  BpeTokenizer(ByteLevelBpe bpe, std::string name, std::string hash);
  ~BpeTokenizer() override;

  std::string name() const override { return name_; }
  std::string hash() const override { return hash_; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(texts_.size()); }
  bool keeps_text() const override { return keeps_text_; }
  std::optional<int32_t> begin_of_text() const override { return begin_of_text_; }
  // The token that the post-processor adds; else the first that there is of the names in common
  // use.
  std::optional<int32_t> end_of_text() const override { return end_of_text_; }
  std::optional<int32_t> FindToken(absl::string_view name) const override;
  // For what tokenizer_config.json says.
  void set_end_of_text(int32_t token) { end_of_text_ = token; }

  absl::Status Encode(absl::string_view text, std::vector<int32_t>& tokens) const override;
  absl::StatusOr<std::string> Decode(std::span<const int32_t> tokens) const override;
  size_t NextCut(absl::string_view text, size_t from) const override;

 private:
  struct Scratch;  // Serves one Encode at a time: buffers, and words that were encoded before.

  std::unique_ptr<Scratch> TakeScratch() const;
  void ReturnScratch(std::unique_ptr<Scratch> scratch) const;
  void EncodeText(absl::string_view text, Scratch& scratch, std::vector<int32_t>& tokens) const;
  void EncodeWords(absl::string_view text, Scratch& scratch, std::vector<int32_t>& tokens) const;
  void EncodeWord(absl::string_view word, Scratch& scratch, std::vector<int32_t>& tokens) const;

  const std::string name_;
  const std::string hash_;
  const std::vector<std::string> texts_;
  const BpeMerges merges_;
  const SplitPattern pattern_;
  const WordEnd word_end_;
  const bool add_prefix_space_;
  const bool compose_;
  const std::array<int32_t, 256> byte_tokens_;
  absl::flat_hash_map<absl::string_view, int32_t> words_;  // Views of texts_; if ignore_merges.
  absl::flat_hash_map<std::string, int32_t> added_;
  AddedTokenFinder added_as_written_;
  AddedTokenFinder added_in_normalized_;
  bool can_cut_ = true;
  bool keeps_text_ = true;
  std::optional<int32_t> begin_of_text_;
  std::optional<int32_t> end_of_text_;

  mutable absl::Mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> free_scratch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_BPE_TOKENIZER_H_
