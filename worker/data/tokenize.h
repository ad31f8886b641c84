// Turns text into the token files that a worker trains on, each byte a token. Tokenizers are those
// of the Python package, python3 -m causeway.tokenize, which writes the same:
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
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"

namespace causeway::worker {

struct TokenizeOptions {
  std::vector<std::string> inputs;      // Files and folders, as FindTextCorpus takes them.
  std::vector<std::string> extensions;  // In folders; empty: all.
  std::string output;                   // A folder; created if need be.
  double held_out_fraction = 0.05;      // In (0, 0.5].
  int64_t shard_tokens = 100'000'000;
  // Data that are there already: false refuses, true removes them once the new are whole.
  bool replace = false;
};

struct TokenizeResult {
  int64_t documents = 0;
  int64_t skipped_files = 0;
  int64_t train_tokens = 0;
  int64_t held_out_tokens = 0;
};

// The same inputs make the same bytes. A file is a document; every 1/held_out_fraction-th stretch
// of the text is held out (text_corpus.h). Errors of FindTextCorpus and VisitPieces come before
// anything is written. ALREADY_EXISTS if `output` holds data and `replace` is false. After an error
// on the way `output` is as it was; after a crash, or an error of the disk while the new data take
// their place, the next call clears up.
absl::StatusOr<TokenizeResult> Tokenize(FileSystem& file_system, const TokenizeOptions& options);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_TOKENIZE_H_
