// eval: what a stored model is worth, on held-out text and on multiple-choice tasks.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/params/fragment_plan.h"
#include "nlohmann/json.hpp"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/commands/commands.h"
#include "worker/commands/device_flag.h"
#include "worker/commands/given_model.h"
#include "worker/data/choice_task.h"
#include "worker/data/dataset.h"
#include "worker/data/text_bytes.h"
#include "worker/data/tokenizer.h"
#include "worker/train/evaluate.h"

ABSL_DECLARE_FLAG(std::string, data);
ABSL_DECLARE_FLAG(std::string, shard_format);
ABSL_DECLARE_FLAG(std::string, tokenizer);
ABSL_FLAG(int, sequences, 64, "held-out windows, spread evenly");
ABSL_FLAG(bool, json, false, "JSON for programs");
ABSL_FLAG(std::string, tasks, "",
          "FILE,...: multiple-choice tasks, as make-task writes them (llm.c's format)");

namespace causeway::worker {
namespace {

using nlohmann::json;

// Windows at a time; a batch's memory is that of training.
constexpr int kBatch = 4;

struct Targets {
  int64_t tokens = 0;  // That are predicted: with document masking not every position has one.
  int64_t bytes = 0;   // Size of their text (text_bytes.h); 0 if there is no tokenizer.
  bool bytes_are_exact = true;
};

// The data's own, or of shards of others that of --tokenizer. Null, with a word about it, if there
// is none that can be read.
absl::StatusOr<std::unique_ptr<Tokenizer>> FindTokenizer(const Dataset& dataset) {
  const std::string given = absl::GetFlag(FLAGS_tokenizer);
  if (dataset.tokenizer().empty()) {
    // The flag's default says nothing about shards of unknown origin.
    if (given == "bytes") return nullptr;
    return LoadTokenizer(*FileSystem::Real(), given);
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> own =
      LoadTokenizer(*FileSystem::Real(), dataset.tokenizer());
  if (own.ok()) return own;
  std::fprintf(stderr, "causeway-worker eval: no bits per byte without the data's tokenizer: %s\n",
               std::string(own.status().message()).c_str());
  return nullptr;
}

absl::StatusOr<Targets> CountTargets(const Dataset& dataset, const HeldOutWindows& windows,
                                     int64_t length, std::span<const int64_t> separators) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, FindTokenizer(dataset));
  Targets counted;
  std::vector<int32_t> inputs(static_cast<size_t>(length));
  std::vector<int32_t> targets(inputs.size());
  std::vector<int32_t> document_starts(windows.document_masking() ? inputs.size() : 0);
  for (int64_t i = 0; i < windows.size(); ++i) {
    RETURN_IF_ERROR(windows.Read(i, inputs, targets, document_starts));
    counted.tokens += std::ranges::count_if(targets, [](int32_t t) { return t >= 0; });
    if (tokenizer == nullptr) continue;
    ASSIGN_OR_RETURN(const int64_t bytes, TextBytes(*tokenizer, inputs, targets, separators));
    counted.bytes += bytes;
  }
  counted.bytes_are_exact = tokenizer != nullptr && tokenizer->keeps_text();
  if (counted.tokens == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no held-out token in ", dataset.folder(), " is predicted in ", windows.size(),
                     " windows of ", length,
                     " tokens: with train.document_masking the first of a document never is; give "
                     "more --sequences, or longer documents"));
  }
  return counted;
}

absl::Status EvaluateHeldOut(const StoredModel& stored, EvaluationModel& model, json& result) {
  const v1::ModelConfig& shape = stored.config.model();
  ASSIGN_OR_RETURN(const ShardFormat shard_format,
                   ParseShardFormat(absl::GetFlag(FLAGS_shard_format)));
  ASSIGN_OR_RETURN(const std::optional<DocumentMark> mark, GivenDocumentMark());
  ASSIGN_OR_RETURN(Dataset dataset,
                   Dataset::Open(*FileSystem::Real(), absl::GetFlag(FLAGS_data), shard_format));
  if (stored.config.train().document_masking()) RETURN_IF_ERROR(dataset.FindDocuments(mark));
  RETURN_IF_ERROR(dataset.CheckVocabulary(shape.vocabulary_size()));
  ASSIGN_OR_RETURN(const HeldOutWindows windows,
                   HeldOutWindows::Create(dataset, shape.sequence_length(), shape.vocabulary_size(),
                                          absl::GetFlag(FLAGS_sequences),
                                          stored.config.train().document_masking()));
  std::vector<int64_t> separators = {dataset.separator()};
  if (mark.has_value()) separators.push_back(mark->token);
  // First: what can be refused is quick.
  ASSIGN_OR_RETURN(const Targets targets,
                   CountTargets(dataset, windows, shape.sequence_length(), separators));
  ASSIGN_OR_RETURN(const double loss, EvaluateLoss(model, stored.parameters, windows));
  result["tokens"] = targets.tokens;
  result["loss"] = loss;
  result["perplexity"] = std::exp(loss);
  if (targets.bytes > 0) {
    result["bytes"] = targets.bytes;
    result["bytes_are_exact"] = targets.bytes_are_exact;
    result["bits_per_byte"] = loss * static_cast<double>(targets.tokens) / std::numbers::ln2 /
                              static_cast<double>(targets.bytes);
  }
  return absl::OkStatus();
}

absl::Status EvaluateTask(const StoredModel& stored, const std::string& path,
                          EvaluationModel& model, json& result) {
  ASSIGN_OR_RETURN(
      const std::vector<ChoiceExample> examples,
      ReadChoiceTask(*FileSystem::Real(), path, stored.config.model().vocabulary_size()));
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto progress = [&](int64_t done, int64_t all) {
    if (terminal) {
      std::fprintf(stderr, "\r%s: %lld of %lld%s", path.c_str(), static_cast<long long>(done),
                   static_cast<long long>(all), done == all ? "\n" : "");
    } else if (done * 10 / all != (done - 1) * 10 / all) {
      std::fprintf(stderr, "%s: %lld of %lld\n", path.c_str(), static_cast<long long>(done),
                   static_cast<long long>(all));
    }
    return true;
  };
  const absl::StatusOr<ChoiceAccuracy> accuracy =
      EvaluateChoices(model, stored.parameters, examples, progress);
  if (!accuracy.ok()) return Annotate(accuracy.status(), path);
  json task = ChoiceAccuracyToJson(*accuracy);
  task["task"] = path;
  result["tasks"].push_back(std::move(task));
  return absl::OkStatus();
}

void PrintLines(const json& result) {
  if (result.contains("loss")) {
    std::printf("%.4f nats per token over %lld held-out tokens", result["loss"].get<double>(),
                static_cast<long long>(result["tokens"].get<int64_t>()));
    if (result.contains("bits_per_byte")) {
      std::printf(", %.4f bits per byte%s", result["bits_per_byte"].get<double>(),
                  result["bytes_are_exact"].get<bool>() ? "" : " of the text as it decodes");
    }
    std::printf("\n");
  }
  for (const json& task : result.value("tasks", json::array())) {
    std::printf("%s: accuracy %.4f, normalized %.4f over %lld examples\n",
                task["task"].get<std::string>().c_str(), task["accuracy"].get<double>(),
                task["normalized_accuracy"].get<double>(),
                static_cast<long long>(task["examples"].get<int64_t>()));
  }
}

// A model, and what it computes with.
struct Evaluated {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<CpuTransformer<float>> transformer;
  std::unique_ptr<EvaluationModel> model;
};

absl::StatusOr<Evaluated> MakeModel(const DeviceChoice& device, const v1::ModelConfig& shape,
                                    const FragmentPlan& plan) {
  Evaluated made;
  if (device.kind == DeviceChoice::Kind::kCuda) {
    auto model = MakeGpuEvaluation(device, shape, plan, kBatch, *FileSystem::Real());
    if (absl::IsResourceExhausted(model.status())) {
      return Annotate(model.status(), "this model does not fit the GPU: give --device=cpu");
    }
    RETURN_IF_ERROR(model.status());
    made.model = *std::move(model);
    return made;
  }
  ASSIGN_OR_RETURN(made.pool, MakeGivenPool());
  made.transformer = std::make_unique<CpuTransformer<float>>(shape, plan, kBatch, made.pool.get());
  made.model = std::make_unique<CpuEvaluationModel>(made.transformer.get());
  return made;
}

absl::Status Eval() {
  ASSIGN_OR_RETURN(DeviceChoice device, DevicesFromFlags());
  ASSIGN_OR_RETURN(device, ResolveDevices(device, *FileSystem::Real()));
  const std::vector<std::string> tasks =
      absl::StrSplit(absl::GetFlag(FLAGS_tasks), ',', absl::SkipEmpty());
  const bool held_out = !absl::GetFlag(FLAGS_data).empty();
  if (!held_out && tasks.empty()) {
    return absl::InvalidArgumentError("give --data=SHARDS, --tasks=FILE[,MORE], or both");
  }
  ASSIGN_OR_RETURN(const StoredModel stored, ReadGivenModel());
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(stored.config));
  ASSIGN_OR_RETURN(const Evaluated on, MakeModel(device, stored.config.model(), plan));
  json result = {{"model", GivenModelName()}};
  if (stored.step >= 0) result["step"] = stored.step;
  if (held_out) RETURN_IF_ERROR(EvaluateHeldOut(stored, *on.model, result));
  for (const std::string& path : tasks) {
    RETURN_IF_ERROR(EvaluateTask(stored, path, *on.model, result));
  }
  if (absl::GetFlag(FLAGS_json)) {
    std::printf("%s\n", result.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    PrintLines(result);
  }
  return absl::OkStatus();
}

}  // namespace

int RunEval() {
  const absl::Status status = Eval();
  return status.ok() ? 0 : Refuse("causeway-worker eval", status);
}

}  // namespace causeway::worker
