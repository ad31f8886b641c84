#include <unistd.h>

#include <cstdio>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "worker/commands/commands.h"
#include "worker/data/tokenize.h"

ABSL_DECLARE_FLAG(std::string, out);
ABSL_FLAG(std::string, input, "", "tokenize: text files and folders, separated by commas");
ABSL_FLAG(std::string, tokenizer, "bytes", "tokenize: bytes");
ABSL_FLAG(double, held_out_fraction, 0.05, "tokenize: share of the text kept for evaluation");
ABSL_FLAG(bool, replace, false, "tokenize: remove shards that are in --out already");

namespace causeway::worker {
namespace {

constexpr char kProgram[] = "causeway-worker tokenize";

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
  ProgressLine line;
  options.progress = [&](int64_t done, int64_t total) { line.Show(done, total); };
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   MakeTokenizer(absl::GetFlag(FLAGS_tokenizer)));
  ASSIGN_OR_RETURN(const TokenizeResult result, Tokenize(*FileSystem::Real(), *tokenizer, options));
  std::printf(
      "%ld documents (%ld binary files skipped), %ld bytes: %ld tokens to train on, %ld "
      "held out, in %s\n",
      static_cast<long>(result.documents), static_cast<long>(result.skipped_files),
      static_cast<long>(result.bytes), static_cast<long>(result.train_tokens),
      static_cast<long>(result.held_out_tokens), options.output.c_str());
  return absl::OkStatus();
}

}  // namespace

int RunTokenize() {
  const absl::Status status = RunWithFlags();
  return status.ok() ? 0 : Refuse(kProgram, status);
}

}  // namespace causeway::worker
