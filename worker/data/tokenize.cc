#include "worker/data/tokenize.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/data/data_json.h"
#include "worker/data/document_index.h"
#include "worker/data/staged_data.h"
#include "worker/data/text_corpus.h"
#include "worker/data/token_shard.h"

namespace causeway::worker {
namespace {

constexpr int64_t kBytes = 256;

// One of the two sequences that come out.
class Part {
 public:
  Part(FileSystem& file_system, const TokenizeOptions& options, std::string prefix)
      : prefix_(std::move(prefix)),
        folder_(StagedData::FolderOf(options.output)),
        writer_(file_system, folder_, prefix_, kBytes, options.shard_tokens) {}

  absl::Status Append(const Piece& piece) {
    // Text from within a document, after a stretch that went to the other part, begins a document
    // here.
    if (piece.begins_document || !continues_) starts_.push_back(writer_.tokens());
    continues_ = !piece.ends_document;
    std::vector<int32_t> tokens(size_t{1} << 20);
    for (size_t begin = 0; begin < piece.text.size(); begin += tokens.size()) {
      const absl::string_view text = piece.text.substr(begin, tokens.size());
      std::transform(text.begin(), text.end(), tokens.begin(),
                     [](char byte) { return static_cast<uint8_t>(byte); });
      RETURN_IF_ERROR(writer_.Append(std::span(tokens).first(text.size())));
    }
    return absl::OkStatus();
  }
  // The other part goes on.
  void Interrupt() { continues_ = false; }

  // Returns the name of the index that it writes. Text is never without tokens here.
  absl::StatusOr<std::string> Finish(FileSystem& file_system) {
    RETURN_IF_ERROR(writer_.Finish());
    ASSIGN_OR_RETURN(const DocumentIndex index,
                     DocumentIndex::Create(std::move(starts_), writer_.tokens()));
    const std::string name = absl::StrCat(prefix_, kDocumentIndexEnding);
    RETURN_IF_ERROR(index.Write(file_system, JoinPath(folder_, name)));
    return name;
  }

  const TokenShardWriter& writer() const { return writer_; }

 private:
  const std::string prefix_;
  const std::string folder_;
  TokenShardWriter writer_;
  std::vector<int64_t> starts_;
  bool continues_ = false;
};

}  // namespace

absl::StatusOr<TokenizeResult> Tokenize(FileSystem& file_system, const TokenizeOptions& options) {
  if (options.output.empty()) return absl::InvalidArgumentError("no output folder was named");
  if (options.shard_tokens < 1 || options.shard_tokens > kMaxShardTokens) {
    return absl::InvalidArgumentError(absl::StrCat("shard_tokens must be 1 to ", kMaxShardTokens,
                                                   ", it is ", options.shard_tokens));
  }
  ASSIGN_OR_RETURN(const TextCorpus corpus,
                   FindTextCorpus(file_system, options.inputs, options.extensions));
  TokenizeResult result;
  result.skipped_files = corpus.skipped_files;
  std::unique_ptr<StagedData> staged;  // Null: nothing was written yet.
  Part train(file_system, options, kTrainPrefix);
  Part held_out(file_system, options, kHeldOutPrefix);
  const auto take = [&](const Piece& piece) -> absl::Status {
    // Not before VisitPieces has found the corpus large enough.
    if (staged == nullptr) {
      ASSIGN_OR_RETURN(staged, StagedData::Create(file_system, options.output, options.replace));
    }
    RETURN_IF_ERROR((piece.held_out ? held_out : train).Append(piece));
    if (!piece.ends_document) (piece.held_out ? train : held_out).Interrupt();
    if (piece.begins_document) ++result.documents;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(VisitPieces(file_system, corpus, options.held_out_fraction, take));
  DataDescription description;
  ASSIGN_OR_RETURN(description.train_documents, train.Finish(file_system));
  ASSIGN_OR_RETURN(description.held_out_documents, held_out.Finish(file_system));
  result.train_tokens = train.writer().tokens();
  result.held_out_tokens = held_out.writer().tokens();
  description.tokenizer = "bytes";
  description.vocabulary_size = kBytes;
  description.held_out_fraction = options.held_out_fraction;
  description.train_tokens = result.train_tokens;
  description.held_out_tokens = result.held_out_tokens;
  description.held_out_bytes = result.held_out_tokens;
  description.train_shards = train.writer().names();
  description.held_out_shards = held_out.writer().names();
  description.sources = options.inputs;
  description.documents = result.documents;
  description.bytes = corpus.bytes;
  RETURN_IF_ERROR(staged->Finish(description));
  return result;
}

}  // namespace causeway::worker
