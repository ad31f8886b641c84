// Turns text into the shards that a worker trains on.
//
//   OUT/train_000000.bin ...      token_shard.h
//   OUT/held_out_000000.bin ...   text that is never trained on, for evaluation
//   OUT/data.json                 written last: a folder that has it is complete
#ifndef CAUSEWAY_WORKER_DATA_TOKENIZE_H_
#define CAUSEWAY_WORKER_DATA_TOKENIZE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "worker/data/tokenizer.h"

namespace causeway::worker {

struct TokenizeOptions {
  std::vector<std::string> inputs;  // Files and folders, as FindTextCorpus takes them.
  std::string output;               // A folder; created if need be.
  double held_out_fraction = 0.05;  // In (0, 0.5].
  int64_t shard_tokens = 100'000'000;
  // Shards that are there already: false refuses, true removes them first.
  bool replace = false;
  // Called now and then, and at the end, with bytes of text.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct TokenizeResult {
  int64_t documents = 0;
  int64_t skipped_files = 0;
  int64_t bytes = 0;
  int64_t train_tokens = 0;
  int64_t held_out_tokens = 0;
};

// The same inputs make the same bytes. Errors of FindTextCorpus and VisitPieces come before
// anything is written. ALREADY_EXISTS if `output` holds shards and `replace` is false. After an
// error on the way, `output` may hold shards but no data.json.
absl::StatusOr<TokenizeResult> Tokenize(FileSystem& file_system, const Tokenizer& tokenizer,
                                        const TokenizeOptions& options);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_TOKENIZE_H_
