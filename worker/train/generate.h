// Text from a model, one token after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "worker/backend/cpu/decoder.h"

namespace causeway::worker {

// A token is drawn from the softmax of logits / temperature, first cut to the top_k likeliest, then
// to the fewest likeliest whose probabilities sum to top_p or more.
struct GenerateOptions {
  int tokens = 0;          // To add, at most.
  double temperature = 1;  // 0: always the likeliest token, the lower number of two.
  int top_k = 0;           // 0: all.
  double top_p = 1;        // 1: all.
  uint64_t seed = 0;
  int32_t known_tokens = 0;                         // Only tokens below it are drawn; 0: all.
  std::optional<int32_t> end_token = std::nullopt;  // Ends a text; not part of it.
  size_t first_prompt = 0;  // The place of the first prompt among all, of which these are a part.
};

// Called for every token as soon as it is drawn.
using TokenSink = std::function<void(size_t prompt, int32_t token)>;

// `draw` is uniform in [0, 1).
int32_t SampleToken(std::span<const float> logits, const GenerateOptions& options, double draw);

// How many of `prompts` texts of at most `capacity` tokens can be made at once where their keys and
// values have `memory_bytes`: at least 1, at most a number beyond which nothing is gained.
// RESOURCE_EXHAUSTED, with both sizes, if there is no room for one.
absl::StatusOr<size_t> TextsAtOnce(const v1::ModelConfig& model, int64_t capacity,
                                   int64_t memory_bytes, size_t prompts);

// Continues each of the prompts: at most decoder.sequences(), each of at least one token below the
// vocabulary. Where a text is longer than decoder.capacity(), the model goes on from its newer
// half. A text depends on its prompt, its place among the prompts and the options alone, not on the
// other prompts.
std::vector<std::vector<int32_t>> Generate(CpuDecoder<float>& decoder,
                                           std::span<const float> parameters,
                                           std::span<const std::vector<int32_t>> prompts,
                                           const GenerateOptions& options,
                                           const TokenSink& sink = nullptr);

}  // namespace causeway::worker
