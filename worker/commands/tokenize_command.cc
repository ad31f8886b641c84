// tokenize: text into token files, each byte a token.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "worker/commands/commands.h"
#include "worker/data/data_json.h"
#include "worker/data/text_corpus.h"

ABSL_DECLARE_FLAG(std::string, out);
ABSL_FLAG(std::string, input, "", "FILE,...: text files and folders of them");
ABSL_FLAG(std::string, extensions, "",
          ".EXT,...: takes only such files of folders, as .txt,.md; else all text files");
ABSL_FLAG(double, held_out_fraction, 0.05, "share of the text kept for evaluation");
ABSL_FLAG(bool, replace, false, "puts the new data, or model, in the place of what is in --out");

namespace causeway::worker {
namespace {

bool HoldsTokenFiles(FileSystem& file_system, const std::string& data) {
  const absl::StatusOr<std::vector<std::string>> names = file_system.List(data);
  return names.ok() && absl::c_any_of(*names, [](const std::string& name) {
           return name == kDataJsonName || absl::EndsWith(name, ".bin");
         });
}

}  // namespace

absl::Status RunTokenize() {
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

absl::StatusOr<std::string> TokenFilesOf(const std::string& data, const std::string& out) {
  FileSystem& file_system = *FileSystem::Real();
  if (HoldsTokenFiles(file_system, data) || !file_system.Exists(data)) return data;
  TokenizeOptions options;
  options.inputs = {data};
  options.output = JoinPath(out, "tokens");
  // Neither: whoever opens it says what is missing.
  if (!FindTextCorpus(file_system, options.inputs, options.extensions).ok()) return data;
  if (file_system.Exists(JoinPath(options.output, kDataJsonName))) {
    Log().info("trains on {}, which was made of text before: remove it to have it made anew",
               options.output);
    return options.output;
  }
  ASSIGN_OR_RETURN(const TokenizeResult result, Tokenize(file_system, options));
  Log().info("{} is text: its bytes are tokens, {} to train on and {} held out, in {}", data,
             result.train_tokens, result.held_out_tokens, options.output);
  return options.output;
}

}  // namespace causeway::worker
