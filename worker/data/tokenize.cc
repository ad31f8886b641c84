#include "worker/data/tokenize.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/base/threads.h"
#include "worker/data/data_json.h"
#include "worker/data/document_index.h"
#include "worker/data/encode_jobs.h"
#include "worker/data/staged_data.h"
#include "worker/data/text_corpus.h"
#include "worker/data/token_shard.h"

namespace causeway::worker {
namespace {

constexpr int64_t kProgressBytes = 1 << 20;

absl::Status CheckOptions(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (options.output.empty()) {
    return absl::InvalidArgumentError("no output folder was named");
  }
  if (!(options.held_out_fraction > 0 && options.held_out_fraction <= 0.5)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "held_out_fraction must be above 0 and at most 0.5, it is ", options.held_out_fraction));
  }
  if (options.shard_tokens < 1 || options.shard_tokens > kMaxShardTokens) {
    return absl::InvalidArgumentError(absl::StrCat("shard_tokens must be 1 to ", kMaxShardTokens,
                                                   ", it is ", options.shard_tokens));
  }
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads must be 1 to ", kMaxThreads, ", it is ", options.threads));
  }
  if (options.format == ShardFormat::kDetect) {
    return absl::InvalidArgumentError("format must be llmc, uint16 or uint32");
  }
  constexpr int64_t kUint16Vocabulary = 65536;
  if (options.format == ShardFormat::kUint16 && tokenizer.vocabulary_size() > kUint16Vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat("the format uint16 holds ", kUint16Vocabulary, " tokens, ", tokenizer.name(),
                     " has ", tokenizer.vocabulary_size(), "; take uint32 or llmc"));
  }
  return absl::OkStatus();
}

// One of the two sequences that come out.
class Part {
 public:
  Part(FileSystem& file_system, const Tokenizer& tokenizer, const TokenizeOptions& options,
       std::string prefix)
      : prefix_(std::move(prefix)),
        folder_(StagedData::FolderOf(options.output)),
        writer_(file_system, folder_, prefix_, tokenizer.vocabulary_size(), options.shard_tokens,
                options.format) {}

  // `separator`: the token, or -1.
  absl::Status Append(const EncodedText& text, Separator placement, int32_t separator) {
    const std::span<const int32_t> separator_token(&separator, separator >= 0 ? 1 : 0);
    // Text from within a document, after a stretch that went to the other part, begins a document
    // here.
    if (text.begins_document || !continues_) starts_.push_back(writer_.tokens());
    if (text.begins_document && placement == Separator::kBefore) {
      RETURN_IF_ERROR(writer_.Append(separator_token));
    }
    RETURN_IF_ERROR(writer_.Append(text.tokens));
    if (text.ends_document && placement == Separator::kAfter) {
      RETURN_IF_ERROR(writer_.Append(separator_token));
    }
    continues_ = !text.ends_document;
    return absl::OkStatus();
  }
  // The other part goes on.
  void Interrupt() { continues_ = false; }

  // The name of the index that it writes; empty if there are no tokens.
  absl::StatusOr<std::string> Finish(FileSystem& file_system) {
    RETURN_IF_ERROR(writer_.Finish());
    if (writer_.tokens() == 0) return "";
    // A document without tokens begins where the next does.
    starts_.erase(std::unique(starts_.begin(), starts_.end()), starts_.end());
    if (starts_.back() == writer_.tokens()) starts_.pop_back();
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

class Run {
 public:
  Run(FileSystem& file_system, const Tokenizer& tokenizer, const TokenizeOptions& options,
      const TextCorpus& corpus)
      : file_system_(file_system),
        tokenizer_(tokenizer),
        options_(options),
        corpus_(corpus),
        separator_(ChooseSeparator(tokenizer, options)),
        pool_(options.threads),
        train_(file_system, tokenizer, options, kTrainPrefix),
        held_out_(file_system, tokenizer, options, kHeldOutPrefix) {}

  absl::StatusOr<TokenizeResult> Tokenize() {
    RETURN_IF_ERROR(pool_.started());
    EncodeJobs jobs(tokenizer_, options_.jsonl_field, pool_,
                    [this](EncodeJob& job) { return Take(job); });
    if (!corpus_.documents.empty()) {
      const auto add = [&](const Piece& piece) -> absl::Status {
        // Not before VisitPieces has found the corpus large enough.
        RETURN_IF_ERROR(Start());
        return jobs.AddPiece(piece);
      };
      RETURN_IF_ERROR(VisitPieces(file_system_, corpus_, options_.held_out_fraction, add));
    }
    RETURN_IF_ERROR(Start());
    for (const Document& file : corpus_.jsonl_files) {
      ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, file_system_.Map(file.path));
      RETURN_IF_ERROR(jobs.AddJsonl(std::move(mapped), file.path));
    }
    RETURN_IF_ERROR(jobs.Finish());
    return Finish();
  }

 private:
  static int32_t ChooseSeparator(const Tokenizer& tokenizer, const TokenizeOptions& options) {
    if (options.separator == Separator::kNone) return -1;
    return options.separator_token.value_or(tokenizer.end_of_text().value_or(-1));
  }

  absl::Status Start() {
    if (staged_ != nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(staged_, StagedData::Create(file_system_, options_.output, options_.replace));
    return absl::OkStatus();
  }

  absl::Status Take(EncodeJob& job) {
    if (job.is_jsonl) RETURN_IF_ERROR(TakeLines(job));
    for (const EncodedText& text : job.texts) {
      const bool held_out = job.is_jsonl ? HoldOutNextLine() : job.held_out;
      RETURN_IF_ERROR((held_out ? held_out_ : train_).Append(text, options_.separator, separator_));
      if (!text.ends_document) (held_out ? train_ : held_out_).Interrupt();
      result_.bytes += text.bytes;
      if (text.begins_document) ++result_.documents;
    }
    done_ += static_cast<int64_t>(job.input.size());
    const int64_t total = corpus_.bytes + corpus_.jsonl_bytes;
    if (options_.progress && (done_ - reported_ >= kProgressBytes || done_ == total)) {
      options_.progress(done_, total);
      reported_ = done_;
    }
    // Not needed any more, while other jobs still wait.
    job.texts.clear();
    return absl::OkStatus();
  }

  absl::Status TakeLines(const EncodeJob& job) {
    if (job.begins_file) lines_ = 0;
    if (!job.bad_lines.empty() && !options_.skip_bad_lines) {
      const BadLine& bad = job.bad_lines.front();
      return absl::InvalidArgumentError(absl::StrCat(job.path, ":", lines_ + bad.line, ": ",
                                                     bad.reason,
                                                     "; --bad_lines=skip leaves such lines out"));
    }
    result_.refused_lines += std::ssize(job.bad_lines);
    lines_ += job.lines;
    return absl::OkStatus();
  }

  // Counts up by one with every 1/fraction-th line.
  bool HoldOutNextLine() {
    const auto held_out_before = [&](int64_t lines) {
      return static_cast<int64_t>(static_cast<double>(lines) * options_.held_out_fraction);
    };
    ++jsonl_documents_;
    return held_out_before(jsonl_documents_) > held_out_before(jsonl_documents_ - 1);
  }

  // The tokenizer goes along, so that the folder can be used anywhere.
  absl::StatusOr<std::string> CopyTokenizer() {
    if (tokenizer_.hash().empty()) return tokenizer_.name();
    const std::string from = tokenizer_.name();
    const bool is_json = absl::EndsWith(from, ".json");
    const std::string name = is_json ? "tokenizer.json" : "tokenizer.model";
    RETURN_IF_ERROR(Copy(from, name));
    // It may name the end of text.
    const std::string config = JoinPath(ParentFolder(from), kTokenizerConfigName);
    if (is_json && file_system_.Exists(config)) RETURN_IF_ERROR(Copy(config, kTokenizerConfigName));
    return name;
  }

  absl::Status Copy(const std::string& from, const std::string& name) {
    ASSIGN_OR_RETURN(const std::string content, file_system_.ReadFile(from));
    return WriteFileAtomically(file_system_, JoinPath(StagedData::FolderOf(options_.output), name),
                               absl::string_view(content));
  }

  absl::StatusOr<TokenizeResult> Finish() {
    DataDescription description;
    ASSIGN_OR_RETURN(description.train_documents, train_.Finish(file_system_));
    ASSIGN_OR_RETURN(description.held_out_documents, held_out_.Finish(file_system_));
    result_.skipped_files = corpus_.skipped_files;
    result_.train_tokens = train_.writer().tokens();
    result_.held_out_tokens = held_out_.writer().tokens();
    if (result_.train_tokens == 0 || result_.held_out_tokens == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the corpus has ", result_.documents, " documents, too few to hold out a part of ",
          options_.held_out_fraction, " (", result_.train_tokens, " tokens to train on, ",
          result_.held_out_tokens, " held out)"));
    }
    ASSIGN_OR_RETURN(description.tokenizer, CopyTokenizer());
    description.tokenizer_hash = tokenizer_.hash();
    description.vocabulary_size = tokenizer_.vocabulary_size();
    description.held_out_fraction = options_.held_out_fraction;
    description.train_tokens = result_.train_tokens;
    description.held_out_tokens = result_.held_out_tokens;
    description.train_shards = train_.writer().names();
    description.held_out_shards = held_out_.writer().names();
    description.sources = options_.inputs;
    description.documents = result_.documents;
    description.bytes = result_.bytes;
    description.shard_format = options_.format;
    description.separator = separator_;
    description.refused_lines = result_.refused_lines;
    RETURN_IF_ERROR(staged_->Finish(description));
    return result_;
  }

  FileSystem& file_system_;
  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  const TextCorpus& corpus_;
  const int32_t separator_;
  ThreadPool pool_;
  std::unique_ptr<StagedData> staged_;  // Null: nothing was written yet.
  Part train_;
  Part held_out_;
  TokenizeResult result_;
  int64_t done_ = 0;
  int64_t reported_ = 0;
  int64_t lines_ = 0;  // Lines of the present file of JSONL.
  int64_t jsonl_documents_ = 0;
};

}  // namespace

absl::StatusOr<TokenizeResult> Tokenize(FileSystem& file_system, const Tokenizer& tokenizer,
                                        const TokenizeOptions& options) {
  RETURN_IF_ERROR(CheckOptions(tokenizer, options));
  ASSIGN_OR_RETURN(const TextCorpus corpus,
                   FindTextCorpus(file_system, options.inputs,
                                  {.extensions = options.extensions,
                                   .find_jsonl = !options.jsonl_field.empty()}));
  Run run(file_system, tokenizer, options, corpus);
  return run.Tokenize();
}

}  // namespace causeway::worker
