#include "worker/train/generate.h"

#include <algorithm>
#include <cmath>

#include "common/base/random.h"

namespace causeway::worker {
namespace {

constexpr uint64_t kGenerationStream = 0x67656e;

// `draw` is uniform in [0, 1).
size_t SampleToken(std::span<const float> logits, double temperature, double draw) {
  const auto best = std::ranges::max_element(logits);
  if (temperature <= 0) return static_cast<size_t>(best - logits.begin());
  const double highest = *best;
  double total = 0;
  for (const float logit : logits) total += std::exp((logit - highest) / temperature);
  double left = draw * total;
  for (size_t token = 0; token + 1 < logits.size(); ++token) {
    left -= std::exp((logits[token] - highest) / temperature);
    if (left < 0) return token;
  }
  return logits.size() - 1;
}

}  // namespace

std::vector<int32_t> Generate(CpuTransformer<float>& model, std::span<const float> parameters,
                              int vocabulary_size, std::span<const int32_t> prompt,
                              const GenerateOptions& options) {
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  std::vector<float> logits(static_cast<size_t>(vocabulary_size));
  const auto context = static_cast<size_t>(model.sequence_length());
  for (int i = 0; i < options.tokens; ++i) {
    model.Logits(parameters, std::span(tokens).last(std::min(tokens.size(), context)), logits);
    const double draw = RandomUniform(options.seed, kGenerationStream, static_cast<uint64_t>(i));
    tokens.push_back(static_cast<int32_t>(SampleToken(logits, options.temperature, draw)));
  }
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(prompt.size()));
  return tokens;
}

}  // namespace causeway::worker
