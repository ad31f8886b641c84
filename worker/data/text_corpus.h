// The text that a run is trained on: files, and the text files in folders.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "worker/data/data_json.h"

namespace causeway::worker {

struct Document {
  std::string path;
  int64_t bytes = 0;  // At least 1.
};

struct TextCorpus {
  // In the order of the inputs; within a folder by name, files and folders alike.
  std::vector<Document> documents;
  int64_t bytes = 0;
  // In folders: files with a NUL byte among their first 4096, links that lead nowhere, and what
  // lies in folders of shards (data.json and train_000000.bin).
  int64_t skipped_files = 0;
};

// Visits the inputs: a file is a document, a folder stands for all text files in it and below, but
// for those whose names begin with a dot and for folders of shards, and, with `extensions`, only
// those whose names end so. Empty files are passed over.
//
// NOT_FOUND or PERMISSION_DENIED names the first path that cannot be read. INVALID_ARGUMENT if
// there is no input, no text in them, a binary file among the inputs themselves, JSON Lines, whose
// documents the Python package reads, or folders that nest too deeply (links in a circle).
absl::StatusOr<TextCorpus> FindTextCorpus(FileSystem& file_system,
                                          const std::vector<std::string>& inputs,
                                          const std::vector<std::string>& extensions = {});

// The longest stretch of one document's text that belongs to one part of the data.
struct Piece {
  std::shared_ptr<const MappedFile> file;  // Where the text lies.
  absl::string_view text;
  bool held_out = false;
  bool begins_document = false;
  bool ends_document = false;
};
using PieceVisitor = std::function<absl::Status(const Piece& piece)>;

// Reads the documents in order and cuts them into training and held-out text.
//
// The corpus as a whole is cut into segments of equal size (64 KiB; shorter in a small corpus),
// and every (1 / held_out_fraction)-th is held out: a deterministic choice, spread evenly over
// the corpus, of stretches long enough that little context is lost at their borders. A border
// within a document is moved to the next end of a line, or else of a UTF-8 character.
//
// INVALID_ARGUMENT, before anything is visited, if held_out_fraction is not in (0, 0.5] or the
// corpus is too small for both parts. FAILED_PRECONDITION if a file changed its size since it was
// found. Returns the visitor's first error.
absl::Status VisitPieces(FileSystem& file_system, const TextCorpus& corpus,
                         double held_out_fraction, const PieceVisitor& visitor);

// Turns text into the token files that a worker trains on, each byte a token. Tokenizers are those
// of the Python package, python3 -m causeway.tokenize, which writes the same:
//
//   OUT/train_000000.bin ...      token_shard.h
//   OUT/held_out_000000.bin ...   text that is never trained on, for evaluation
//   OUT/train.documents, OUT/held_out.documents    dataset.h
//   OUT/tokenizer.json or .model  a copy of the tokenizer's file, if it has one
//   OUT/data.json                 a folder that has it is complete
//   OUT/unfinished                where they lie until all of them are whole (staged_data.h)

struct TokenizeOptions {
  std::vector<std::string> inputs;      // Files and folders, as FindTextCorpus takes them.
  std::vector<std::string> extensions;  // In folders; empty: all.
  std::string output;                   // A folder; created if need be.
  double held_out_fraction = 0.05;      // In (0, 0.5].
  int64_t shard_tokens = 100'000'000;
  // Data that are there already: false refuses, true removes them once the new are whole.
  bool replace = false;
};

struct TokenizeResult : DataDescription {
  int64_t skipped_files = 0;
};

// The same inputs make the same bytes. A file is a document; every 1/held_out_fraction-th stretch
// of the text is held out (text_corpus.h). Errors of FindTextCorpus and VisitPieces come before
// anything is written. ALREADY_EXISTS if `output` holds data and `replace` is false. After an error
// on the way `output` is as it was; after a crash, or an error of the disk while the new data take
// their place, the next call clears up.
absl::StatusOr<TokenizeResult> Tokenize(FileSystem& file_system, const TokenizeOptions& options);

}  // namespace causeway::worker
