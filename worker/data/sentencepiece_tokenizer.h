// SentencePiece models, unigram and BPE, by Google's library.
#ifndef CAUSEWAY_WORKER_DATA_SENTENCEPIECE_TOKENIZER_H_
#define CAUSEWAY_WORKER_DATA_SENTENCEPIECE_TOKENIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/tokenizer.h"

namespace causeway::worker {

// `model` is the content of a *.model file, `name` its path. INVALID_ARGUMENT if the library does
// not take it for a model.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(absl::string_view model,
                                                                      std::string name);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_SENTENCEPIECE_TOKENIZER_H_
