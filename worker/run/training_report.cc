// TrainingRun's additions to its membership's report: a sample, summary.json.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/run/training_run.h"
#include "worker/train/generate.h"

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr double kSampleTemperature = 0.7;
constexpr int64_t kPromptTokens = 64;

}  // namespace

std::string TrainingRun::Sample() {
  // Ids are no text: for the tokens of others there is python3 -m causeway.generate.
  if (!dataset_.is_bytes()) return "";
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
                // A model may have more tokens than there are bytes.
                .known_tokens = static_cast<int32_t>(dataset_.vocabulary_size())})
          .front();
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  return {tokens.begin(), tokens.end()};
}

absl::Status TrainingRun::WriteSummary() {
  json summary = member_->report().Summary(member_->standing());
  if (EvaluatesHere() && options_.sample_tokens > 0) summary["sample"] = Sample();
  return WriteFileAtomically(
      file_system_, JoinPath(options_.member.output, "summary.json"),
      absl::string_view(summary.dump(2, ' ', false, json::error_handler_t::replace) + "\n"));
}

}  // namespace causeway::worker
