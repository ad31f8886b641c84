#include "worker/data/tokenize.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "worker/data/data_json.h"
#include "worker/data/text_corpus.h"
#include "worker/data/token_shard.h"

namespace causeway::worker {
namespace {

constexpr char kTrainPrefix[] = "train";
constexpr char kHeldOutPrefix[] = "held_out";
constexpr int64_t kProgressBytes = 1 << 20;

// PREFIX_NNNNNN.bin.
bool IsShardName(absl::string_view name, absl::string_view prefix) {
  const std::string start = absl::StrCat(prefix, "_");
  return absl::StartsWith(name, start) && absl::EndsWith(name, ".bin");
}

// data.json goes first, so that at no moment it describes shards that are not there.
absl::Status EmptyFolder(FileSystem& file_system, const TokenizeOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(options.output));
  std::vector<std::string> old;
  for (const std::string& name : names) {
    if (IsShardName(name, kTrainPrefix) || IsShardName(name, kHeldOutPrefix)) old.push_back(name);
  }
  if (std::find(names.begin(), names.end(), kDataJsonName) != names.end()) {
    old.insert(old.begin(), kDataJsonName);
  }
  if (old.empty()) return absl::OkStatus();
  if (!options.replace) {
    return absl::AlreadyExistsError(absl::StrCat(options.output, " holds data already (",
                                                 old.front(),
                                                 "); choose another folder, or replace it"));
  }
  for (const std::string& name : old) {
    RETURN_IF_ERROR(file_system.Remove(JoinPath(options.output, name)));
  }
  return file_system.SyncFolder(options.output);
}

absl::Status CheckOptions(const TokenizeOptions& options) {
  if (options.output.empty()) {
    return absl::InvalidArgumentError("no output folder was named");
  }
  if (options.shard_tokens < 1 || options.shard_tokens > kMaxShardTokens) {
    return absl::InvalidArgumentError(absl::StrCat("shard_tokens must be 1 to ", kMaxShardTokens,
                                                   ", it is ", options.shard_tokens));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizeResult> Tokenize(FileSystem& file_system, const Tokenizer& tokenizer,
                                        const TokenizeOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(const TextCorpus corpus, FindTextCorpus(file_system, options.inputs));
  const int64_t vocabulary_size = tokenizer.vocabulary_size();
  TokenShardWriter train(file_system, options.output, kTrainPrefix, vocabulary_size,
                         options.shard_tokens);
  TokenShardWriter held_out(file_system, options.output, kHeldOutPrefix, vocabulary_size,
                            options.shard_tokens);
  bool started = false;
  int64_t done = 0;
  int64_t reported = 0;
  std::vector<int32_t> tokens;
  const auto write_piece = [&](absl::string_view text, bool is_held_out) -> absl::Status {
    if (!started) {
      // Not before VisitPieces has found the corpus large enough.
      RETURN_IF_ERROR(file_system.CreateFolders(options.output));
      RETURN_IF_ERROR(EmptyFolder(file_system, options));
      started = true;
    }
    tokens.clear();
    RETURN_IF_ERROR(tokenizer.Encode(text, tokens));
    RETURN_IF_ERROR((is_held_out ? held_out : train).Append(tokens));
    done += static_cast<int64_t>(text.size());
    if (options.progress && (done - reported >= kProgressBytes || done == corpus.bytes)) {
      options.progress(done, corpus.bytes);
      reported = done;
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(VisitPieces(file_system, corpus, options.held_out_fraction, write_piece));
  RETURN_IF_ERROR(train.Finish());
  RETURN_IF_ERROR(held_out.Finish());

  TokenizeResult result;
  result.documents = static_cast<int64_t>(corpus.documents.size());
  result.skipped_files = corpus.skipped_files;
  result.bytes = corpus.bytes;
  result.train_tokens = train.tokens();
  result.held_out_tokens = held_out.tokens();

  DataDescription description;
  description.tokenizer = tokenizer.name();
  description.vocabulary_size = vocabulary_size;
  description.held_out_fraction = options.held_out_fraction;
  description.train_tokens = result.train_tokens;
  description.held_out_tokens = result.held_out_tokens;
  description.train_shards = train.names();
  description.held_out_shards = held_out.names();
  description.sources = options.inputs;
  description.documents = result.documents;
  description.bytes = result.bytes;
  RETURN_IF_ERROR(WriteDataJson(file_system, options.output, description));
  return result;
}

}  // namespace causeway::worker
