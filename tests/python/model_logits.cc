// Prints what a stored model says after every prefix of a sequence of tokens, for comparison with
// other programs.
//
//   model_logits --checkpoint=PATH --token_list=3,1,4 --logits=FILE
//
// FILE receives fp32 [tokens, vocabulary].
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cpu/cpu_transformer.h"
#include "worker/commands/commands.h"

ABSL_FLAG(std::string, token_list, "", "token numbers, separated by commas");
ABSL_FLAG(std::string, logits, "", "the file that receives the logits");

namespace causeway::worker {
namespace {

absl::Status WriteLogits() {
  ASSIGN_OR_RETURN(const StoredModel stored, ReadGivenModel());
  const v1::ModelConfig& model = stored.config.model();
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(stored.config));
  std::vector<int32_t> tokens;
  for (const auto part : absl::StrSplit(absl::GetFlag(FLAGS_token_list), ',')) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(part, &token) || token < 0 || token >= model.vocabulary_size()) {
      return absl::InvalidArgumentError(absl::StrCat("--token_list: \"", part, "\" is no token"));
    }
    tokens.push_back(token);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, MakeGivenPool());
  CpuTransformer<float> transformer(model, plan, 1, pool.get());
  const auto vocabulary = static_cast<size_t>(model.vocabulary_size());
  std::vector<float> logits(tokens.size() * vocabulary);
  for (size_t i = 0; i < tokens.size(); ++i) {
    transformer.Logits(stored.parameters, std::span(tokens).first(i + 1),
                       std::span(logits).subspan(i * vocabulary, vocabulary));
  }
  return WriteFileAtomically(
      *FileSystem::Real(), absl::GetFlag(FLAGS_logits),
      std::span(reinterpret_cast<const uint8_t*>(logits.data()), logits.size() * sizeof(float)));
}

}  // namespace
}  // namespace causeway::worker

int main(int argc, char** argv) {
  causeway::ParseCommandLine(argc, argv,
                             "model_logits --checkpoint=PATH --token_list=3,1,4 --logits=FILE\n");
  const absl::Status status = causeway::worker::WriteLogits();
  return status.ok() ? 0 : causeway::Refuse("model_logits", status);
}
