// tokenize: text into token files, each byte a token.
#include <cstdio>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "worker/commands/commands.h"
#include "worker/data/tokenize.h"

ABSL_DECLARE_FLAG(std::string, out);
ABSL_FLAG(std::string, input, "", "FILE,...: text files and folders of them");
ABSL_FLAG(std::string, extensions, "",
          ".EXT,...: takes only such files of folders, as .txt,.md; else all text files");
ABSL_FLAG(double, held_out_fraction, 0.05, "share of the text kept for evaluation");
ABSL_FLAG(bool, replace, false, "puts the new data, or model, in the place of what is in --out");

namespace causeway::worker {
namespace {

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
  ASSIGN_OR_RETURN(const TokenizeResult result, Tokenize(*FileSystem::Real(), options));
  std::printf(
      "%ld documents (%ld binary files skipped): %ld tokens to train on, %ld held out, in %s\n",
      static_cast<long>(result.documents), static_cast<long>(result.skipped_files),
      static_cast<long>(result.train_tokens), static_cast<long>(result.held_out_tokens),
      options.output.c_str());
  return absl::OkStatus();
}

}  // namespace

int RunTokenize() {
  const absl::Status status = RunWithFlags();
  return status.ok() ? 0 : Refuse("causeway-worker tokenize", status);
}

}  // namespace causeway::worker
