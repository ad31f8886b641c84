#include "worker/train/evaluate.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {

absl::StatusOr<double> EvaluateLoss(EvaluationModel& model, std::span<const float> parameters,
                                    const HeldOutWindows& windows) {
  RETURN_IF_ERROR(model.UseParameters(parameters));
  const int64_t length = model.sequence_length();
  double sum = 0;
  double weights = 0;  // Windows; with document masking those with fewer targets count less.
  for (int64_t first = 0; first < windows.size();) {
    const int64_t count = std::min<int64_t>(windows.size() - first, model.micro_batch_sequences());
    std::vector<int32_t> inputs(static_cast<size_t>(count * length));
    std::vector<int32_t> targets(inputs.size());
    std::vector<int32_t> document_starts(windows.document_masking() ? inputs.size() : 0);
    RETURN_IF_ERROR(windows.Read(first, inputs, targets, document_starts));
    const auto predicted = std::ranges::count_if(targets, [](int32_t t) { return t >= 0; });
    const double weight = static_cast<double>(predicted) / static_cast<double>(length);
    if (predicted > 0) {
      ASSIGN_OR_RETURN(const double loss, model.Loss(inputs, targets, document_starts));
      sum += loss * weight;
    }
    weights += weight;
    first += count;
  }
  return weights > 0 ? sum / weights : 0;
}

namespace {

struct Score {
  double sum = 0;   // Nats.
  double mean = 0;  // Per token.
};

// One window: the context's end and a completion, of which the last token is a target alone.
struct Window {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
};

Window MakeWindow(const ChoiceExample& example, const std::vector<int32_t>& completion,
                  size_t window, bool& cut) {
  std::vector<int32_t> tokens = example.context;
  tokens.insert(tokens.end(), completion.begin(), completion.end());
  if (tokens.size() > window + 1) {
    cut = true;
    tokens.erase(tokens.begin(), tokens.end() - static_cast<ptrdiff_t>(window + 1));
  }
  Window result;
  result.inputs.assign(tokens.begin(), tokens.end() - 1);
  result.targets.assign(tokens.begin() + 1, tokens.end());
  std::fill(result.targets.begin(),
            result.targets.end() - static_cast<ptrdiff_t>(completion.size()), -1);
  return result;
}

// Padding stands behind what counts, where nothing sees it.
absl::StatusOr<std::vector<Score>> ScoreWindows(EvaluationModel& model,
                                                std::span<const Window> windows) {
  std::vector<Score> scores;
  const auto most = static_cast<size_t>(model.micro_batch_sequences());
  for (size_t first = 0; first < windows.size(); first += most) {
    const auto batch = windows.subspan(first, std::min(most, windows.size() - first));
    size_t length = 0;
    for (const Window& window : batch) length = std::max(length, window.inputs.size());
    std::vector<int32_t> inputs(batch.size() * length, 0);
    std::vector<int32_t> targets(inputs.size(), -1);
    for (size_t i = 0; i < batch.size(); ++i) {
      std::ranges::copy(batch[i].inputs, inputs.begin() + static_cast<ptrdiff_t>(i * length));
      std::ranges::copy(batch[i].targets, targets.begin() + static_cast<ptrdiff_t>(i * length));
    }
    std::vector<float> losses(inputs.size());
    RETURN_IF_ERROR(model.TokenLosses(inputs, targets, static_cast<int64_t>(length), losses));
    for (size_t i = 0; i < batch.size(); ++i) {
      Score score;
      int64_t tokens = 0;
      for (size_t at = i * length; at < (i + 1) * length; ++at) {
        score.sum += losses[at];
        tokens += targets[at] >= 0;
      }
      score.mean = score.sum / static_cast<double>(tokens);
      scores.push_back(score);
    }
  }
  return scores;
}

}  // namespace

nlohmann::json ChoiceAccuracyToJson(const ChoiceAccuracy& accuracy) {
  return {{"examples", accuracy.examples},
          {"accuracy", accuracy.accuracy},
          {"normalized_accuracy", accuracy.normalized},
          {"loss", accuracy.loss},
          {"cut", accuracy.cut}};
}

absl::Status CheckChoices(std::span<const ChoiceExample> examples, int64_t window) {
  if (examples.empty()) return absl::InvalidArgumentError("the task has no examples");
  for (size_t i = 0; i < examples.size(); ++i) {
    for (const std::vector<int32_t>& completion : examples[i].completions) {
      if (std::ssize(completion) <= window) continue;
      return absl::InvalidArgumentError(absl::StrCat("example ", i, " has a completion of ",
                                                     completion.size(),
                                                     " tokens; the model's windows have ", window));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ChoiceAccuracy> EvaluateChoices(
    EvaluationModel& model, std::span<const float> parameters,
    std::span<const ChoiceExample> examples,
    const std::function<bool(int64_t, int64_t)>& progress) {
  RETURN_IF_ERROR(CheckChoices(examples, model.sequence_length()));
  RETURN_IF_ERROR(model.UseParameters(parameters));
  const auto window = static_cast<size_t>(model.sequence_length());
  ChoiceAccuracy result;
  for (const ChoiceExample& example : examples) {
    std::vector<Window> windows;
    bool cut = false;
    for (const std::vector<int32_t>& completion : example.completions) {
      windows.push_back(MakeWindow(example, completion, window, cut));
    }
    ASSIGN_OR_RETURN(const std::vector<Score> scores, ScoreWindows(model, windows));
    const auto by_sum = std::ranges::min_element(scores, {}, &Score::sum) - scores.begin();
    const auto by_mean = std::ranges::min_element(scores, {}, &Score::mean) - scores.begin();
    result.accuracy += by_sum == example.label;
    result.normalized += by_mean == example.label;
    result.loss += scores[static_cast<size_t>(example.label)].mean;
    result.cut += cut;
    ++result.examples;
    if (progress != nullptr && !progress(result.examples, std::ssize(examples))) {
      return absl::CancelledError("the evaluation was ended");
    }
  }
  const auto count = static_cast<double>(result.examples);
  result.accuracy /= count;
  result.normalized /= count;
  result.loss /= count;
  return result;
}

}  // namespace causeway::worker
