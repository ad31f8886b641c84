#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/cli/command_line.h"
#include "worker/commands/commands.h"
#include "worker/data/tokenize.h"

ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(int, threads);
ABSL_FLAG(std::string, input, "",
          "FILE,...: text files, folders and *.jsonl; make-task: one *.jsonl");
ABSL_FLAG(std::string, tokenizer, "bytes",
          "bytes|FILE|FOLDER: a Hugging Face tokenizer.json (byte-level BPE), a SentencePiece "
          "*.model, or a folder with one; eval: of shards that no tokenizer lies beside; "
          "export: copied beside the model");
ABSL_FLAG(std::string, extensions, "",
          ".EXT,...: takes only such files of folders, as .txt,.md; else all text files");
ABSL_FLAG(std::string, jsonl_field, "text",
          "the field with the text, in *.jsonl and *.ndjson; empty: they are text files");
ABSL_FLAG(std::string, bad_lines, "refuse",
          "refuse|skip: JSONL lines that cannot be read; skip counts them");
ABSL_FLAG(std::string, document_separator, "after",
          "after|before|none: where the end-of-text token stands at each document");
ABSL_FLAG(std::string, end_of_text, "",
          "TOKEN: the name of that token; else the tokenizer's own, if it has one");
ABSL_FLAG(std::string, format, "llmc",
          "llmc|uint16|uint32: llm.c's, with a header, or without one");
ABSL_FLAG(int64_t, shard_tokens, 100'000'000, "tokens per file");
ABSL_FLAG(double, held_out_fraction, 0.05, "share of the text kept for evaluation");
ABSL_FLAG(bool, replace, false, "puts the new data, or model, in the place of what is in --out");

namespace causeway::worker {
namespace {

constexpr char kTokenizeProgram[] = "causeway-worker tokenize";

// One line that is written over on a terminal; a line every few seconds elsewhere.
class ProgressLine {
 public:
  void Show(int64_t done, int64_t total) {
    const absl::Time now = absl::Now();
    const absl::Duration pause = terminal_ ? absl::Milliseconds(200) : absl::Seconds(5);
    if (done < total && now - shown_ < pause) return;
    shown_ = now;
    const double seconds = std::max(1e-3, absl::ToDoubleSeconds(now - start_));
    const double rate = static_cast<double>(done) / seconds;
    const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
    std::fprintf(stderr, "%stokenized %.1f of %.1f MB (%.0f%%), %.1f MB/s, ETA %.0f s%s",
                 terminal_ ? "\r" : "", 1e-6 * static_cast<double>(done),
                 1e-6 * static_cast<double>(total),
                 total > 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total) : 100.0,
                 1e-6 * rate, left, terminal_ && done < total ? "" : "\n");
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const absl::Time start_ = absl::Now();
  absl::Time shown_ = absl::InfinitePast();
};

Separator SeparatorFromFlag() {
  const std::string name = absl::GetFlag(FLAGS_document_separator);
  return name == "after"    ? Separator::kAfter
         : name == "before" ? Separator::kBefore
                            : Separator::kNone;
}

absl::Status RunWithFlags() {
  TokenizeOptions options;
  options.output = absl::GetFlag(FLAGS_out);
  if (options.output.empty()) return absl::InvalidArgumentError("--out is required");
  if (absl::GetFlag(FLAGS_input).empty()) {
    return absl::InvalidArgumentError("--input is required");
  }
  options.inputs = absl::StrSplit(absl::GetFlag(FLAGS_input), ',', absl::SkipEmpty());
  options.held_out_fraction = absl::GetFlag(FLAGS_held_out_fraction);
  options.replace = absl::GetFlag(FLAGS_replace);
  options.extensions = absl::StrSplit(absl::GetFlag(FLAGS_extensions), ',', absl::SkipEmpty());
  options.jsonl_field = absl::GetFlag(FLAGS_jsonl_field);
  options.skip_bad_lines = absl::GetFlag(FLAGS_bad_lines) == "skip";
  options.separator = SeparatorFromFlag();
  ASSIGN_OR_RETURN(options.format, ParseShardFormat(absl::GetFlag(FLAGS_format)));
  options.shard_tokens = absl::GetFlag(FLAGS_shard_tokens);
  ASSIGN_OR_RETURN(options.threads, ThreadsFor(absl::GetFlag(FLAGS_threads)));
  ProgressLine line;
  options.progress = [&](int64_t done, int64_t total) { line.Show(done, total); };
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   LoadTokenizer(*FileSystem::Real(), absl::GetFlag(FLAGS_tokenizer)));
  const std::string end_of_text = absl::GetFlag(FLAGS_end_of_text);
  if (!end_of_text.empty()) {
    options.separator_token = tokenizer->FindToken(end_of_text);
    if (!options.separator_token.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--end_of_text: ", tokenizer->name(), " has no token ", end_of_text));
    }
  }
  ASSIGN_OR_RETURN(const TokenizeResult result, Tokenize(*FileSystem::Real(), *tokenizer, options));
  std::printf(
      "%ld documents (%ld binary files and %ld bad lines skipped), %ld bytes: %ld tokens to "
      "train on, %ld held out, %.2f bytes per token, in %s\n",
      static_cast<long>(result.documents), static_cast<long>(result.skipped_files),
      static_cast<long>(result.refused_lines), static_cast<long>(result.bytes),
      static_cast<long>(result.train_tokens), static_cast<long>(result.held_out_tokens),
      static_cast<double>(result.bytes) /
          static_cast<double>(result.train_tokens + result.held_out_tokens),
      options.output.c_str());
  return absl::OkStatus();
}

}  // namespace

int RunTokenize() {
  const absl::Status status = RunWithFlags();
  return status.ok() ? 0 : Refuse(kTokenizeProgram, status);
}

}  // namespace causeway::worker
