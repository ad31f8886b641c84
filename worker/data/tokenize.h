// Turns text into the shards that a worker trains on.
//
//   OUT/train_000000.bin ...      token_shard.h
//   OUT/held_out_000000.bin ...   text that is never trained on, for evaluation
//   OUT/train.documents, OUT/held_out.documents    document_index.h
//   OUT/tokenizer.json or .model  a copy of the tokenizer's file, if it has one
//   OUT/data.json                 a folder that has it is complete
//   OUT/unfinished                where they lie until all of them are whole (staged_data.h)
#ifndef CAUSEWAY_WORKER_DATA_TOKENIZE_H_
#define CAUSEWAY_WORKER_DATA_TOKENIZE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "worker/data/token_shard.h"
#include "worker/data/tokenizer.h"

namespace causeway::worker {

enum class Separator { kNone, kAfter, kBefore };  // Each document.

struct TokenizeOptions {
  std::vector<std::string> inputs;      // Files and folders, as FindTextCorpus takes them.
  std::vector<std::string> extensions;  // In folders; empty: all.
  // The text's field in lines of *.jsonl and *.ndjson; empty: such files are text.
  std::string jsonl_field = "text";
  bool skip_bad_lines = false;      // Counts them; else the first is refused.
  std::string output;               // A folder; created if need be.
  double held_out_fraction = 0.05;  // In (0, 0.5].
  int64_t shard_tokens = 100'000'000;
  ShardFormat format = ShardFormat::kLlmC;
  Separator separator = Separator::kAfter;
  std::optional<int32_t> separator_token;  // Nullopt: the tokenizer's end of text, if it has one.
  int threads = 1;                         // Do not change a byte of what is written.
  // Data that are there already: false refuses, true removes them once the new are whole.
  bool replace = false;
  // Called now and then, and at the end, with bytes of text.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct TokenizeResult {
  int64_t documents = 0;
  int64_t skipped_files = 0;
  int64_t refused_lines = 0;
  int64_t bytes = 0;  // Size of the text.
  int64_t train_tokens = 0;
  int64_t held_out_tokens = 0;
};

// The same inputs make the same bytes. A text file is a document; of many and large ones every
// 1/held_out_fraction-th stretch is held out (text_corpus.h), of lines of JSONL, which come after
// the text files, every 1/held_out_fraction-th. INVALID_ARGUMENT names file and line of bad JSONL.
// Errors of FindTextCorpus and VisitPieces come before anything is written. ALREADY_EXISTS if
// `output` holds data and `replace` is false. After an error on the way `output` is as it was;
// after a crash, or an error of the disk while the new data take their place, the next call clears
// up.
absl::StatusOr<TokenizeResult> Tokenize(FileSystem& file_system, const Tokenizer& tokenizer,
                                        const TokenizeOptions& options);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_TOKENIZE_H_
