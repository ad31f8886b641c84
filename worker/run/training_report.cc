// TrainingRun's additions to its membership's report: tasks, a sample, summary.json.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "worker/data/tokenizer.h"
#include "worker/run/training_run.h"
#include "worker/train/generate.h"

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr double kSampleTemperature = 0.7;
constexpr int64_t kPromptTokens = 64;

}  // namespace

absl::Status TrainingRun::ReadTasks() {
  const v1::ModelConfig& model = config().model();
  for (const std::string& path : options_.eval_tasks) {
    Task task = {.path = path, .examples = {}, .result = {}};
    ASSIGN_OR_RETURN(task.examples, ReadChoiceTask(file_system_, path, model.vocabulary_size()));
    RETURN_IF_ERROR(Annotate(CheckChoices(task.examples, model.sequence_length()), path));
    tasks_.push_back(std::move(task));
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::EvaluateTasks() {
  const absl::Duration before = clock_.Monotonic();
  // An order to stop does not wait for thousands of examples.
  const auto goes_on = [&](int64_t, int64_t) {
    const absl::StatusOr<Session::Orders> orders = member_->session().orders();
    return orders.ok() && !orders->drain;
  };
  ASSIGN_OR_RETURN(const std::span<const float> published, member_->sync().published());
  for (Task& task : tasks_) {
    const absl::StatusOr<ChoiceAccuracy> accuracy =
        trainer_->EvaluateTask(published, task.examples, goes_on);
    if (absl::IsCancelled(accuracy.status())) break;
    RETURN_IF_ERROR(Annotate(accuracy.status(), task.path));
    task.result = ChoiceAccuracyToJson(*accuracy);
    task.result["task"] = task.path;
    task.result["step"] = member_->step();
    Log().info("step {}: {}: accuracy {:.4f}, normalized {:.4f} over {} examples", member_->step(),
               task.path, accuracy->accuracy, accuracy->normalized, accuracy->examples);
    json line = task.result;
    line["kind"] = "task";
    RETURN_IF_ERROR(member_->report().Append(std::move(line)));
  }
  member_->report().CountEvaluation(clock_.Monotonic() - before);
  return absl::OkStatus();
}

std::string TrainingRun::Sample() {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer(file_system_, dataset_.tokenizer());
  if (!tokenizer.ok()) return "";
  // The beginning of the held-out text: what the model knows to continue, and has not seen.
  const ShardSequence& text =
      dataset_.held_out()->tokens() >= kPromptTokens ? *dataset_.held_out() : *dataset_.train();
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(text.tokens(), kPromptTokens)));
  if (!text.Read(0, config().model().vocabulary_size(), tokens).ok()) return "";
  const absl::StatusOr<std::span<const float>> published = member_->sync().published();
  if (!published.ok()) return "";
  CpuDecoder<float> decoder(config().model(), member_->plan(), /*sequences=*/1, pool_.get());
  const std::vector<int32_t> continuation =
      Generate(decoder, *published, std::array{tokens},
               {.tokens = options_.sample_tokens,
                .temperature = kSampleTemperature,
                .seed = config().train().seed(),
                // A model may have more tokens than its tokenizer can decode.
                .known_tokens = static_cast<int32_t>((*tokenizer)->vocabulary_size())})
          .front();
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  const absl::StatusOr<std::string> sample = (*tokenizer)->Decode(tokens);
  return sample.ok() ? *sample : "";
}

absl::Status TrainingRun::WriteSummary() {
  json summary = member_->report().Summary(member_->standing());
  for (const Task& task : tasks_) {
    if (!task.result.is_null()) summary["tasks"].push_back(task.result);
  }
  if (EvaluatesHere() && options_.sample_tokens > 0) summary["sample"] = Sample();
  return WriteFileAtomically(
      file_system_, JoinPath(options_.member.output, "summary.json"),
      absl::string_view(summary.dump(2, ' ', false, json::error_handler_t::replace) + "\n"));
}

}  // namespace causeway::worker
