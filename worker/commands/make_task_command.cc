// make-task: multiple-choice examples from JSONL.
#include <cstdio>
#include <memory>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/files/json_integer.h"
#include "common/files/json_object.h"
#include "worker/commands/commands.h"
#include "worker/data/choice_task.h"
#include "worker/data/tokenizer.h"

ABSL_DECLARE_FLAG(std::string, input);
ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(std::string, tokenizer);

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr JsonLimits kLineLimits = {.bytes = size_t{16} << 20, .depth = 8, .values = 100'000};

absl::StatusOr<ChoiceExample> ReadLine(absl::string_view line, const std::string& where,
                                       const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(line, where, kLineLimits));
  const auto is_text = [](const json& value) { return value.is_string(); };
  ChoiceExample example;
  if (!object.contains("context") || !object["context"].is_string() ||
      !object.contains("completions") || !object["completions"].is_array() ||
      !std::ranges::all_of(object["completions"], is_text) || !object.contains("label") ||
      !ReadInteger(object["label"], example.label)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where,
                     ": expected {\"context\": TEXT, \"completions\": [TEXT, ...], "
                     "\"label\": NUMBER}"));
  }
  RETURN_IF_ERROR(
      tokenizer.Encode(object["context"].get_ref<const std::string&>(), example.context));
  for (const json& completion : object["completions"]) {
    RETURN_IF_ERROR(tokenizer.Encode(completion.get_ref<const std::string&>(),
                                     example.completions.emplace_back()));
  }
  return example;
}

absl::Status MakeTask() {
  const std::string input = absl::GetFlag(FLAGS_input);
  const std::string out = absl::GetFlag(FLAGS_out);
  if (input.empty() || out.empty()) {
    return absl::InvalidArgumentError("give --input=FILE.jsonl and --out=FILE");
  }
  FileSystem& file_system = *FileSystem::Real();
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   LoadTokenizer(file_system, absl::GetFlag(FLAGS_tokenizer)));
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(input));
  std::vector<ChoiceExample> examples;
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.find_first_not_of(" \t\r") == absl::string_view::npos) continue;
    ASSIGN_OR_RETURN(ChoiceExample example,
                     ReadLine(line, absl::StrCat(input, ":", number), *tokenizer));
    examples.push_back(std::move(example));
  }
  RETURN_IF_ERROR(WriteChoiceTask(file_system, out, examples));
  std::printf("%zu examples are in %s\n", examples.size(), out.c_str());
  return absl::OkStatus();
}

}  // namespace

int RunMakeTask() {
  const absl::Status status = MakeTask();
  return status.ok() ? 0 : Refuse("causeway-worker make-task", status);
}

}  // namespace causeway::worker
