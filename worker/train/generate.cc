#include "worker/train/generate.h"

#include <numeric>

#include "absl/strings/str_format.h"
#include "common/base/random.h"

namespace causeway::worker {
namespace {

constexpr uint64_t kGenerationStream = 0x67656e;

// Draws among all tokens, in their order.
int32_t SampleAny(std::span<const float> logits, double highest, double temperature, double draw) {
  double total = 0;
  for (const float logit : logits) total += std::exp((logit - highest) / temperature);
  double left = draw * total;
  for (size_t token = 0; token + 1 < logits.size(); ++token) {
    left -= std::exp((logits[token] - highest) / temperature);
    if (left < 0) return static_cast<int32_t>(token);
  }
  return static_cast<int32_t>(logits.size() - 1);
}

// The tokens in order of likelihood, of two equal ones the lower first, sorted only as far as
// somebody looks: those that are drawn among are few, vocabularies are not.
class ByLikelihood {
 public:
  explicit ByLikelihood(std::span<const float> logits) : logits_(logits), order_(logits.size()) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  int32_t operator[](size_t place) {
    if (place >= sorted_) SortBeyond(place);
    return order_[place];
  }

 private:
  void SortBeyond(size_t place) {
    constexpr size_t kFirst = 64;
    const size_t end = std::min(order_.size(), std::max({kFirst, 4 * sorted_, place + 1}));
    const auto begin = order_.begin() + static_cast<ptrdiff_t>(sorted_);
    const auto middle = order_.begin() + static_cast<ptrdiff_t>(end);
    const auto likelier = [&](int32_t a, int32_t b) {
      const float left = logits_[static_cast<size_t>(a)];
      const float right = logits_[static_cast<size_t>(b)];
      return left != right ? left > right : a < b;
    };
    if (middle != order_.end()) std::nth_element(begin, middle, order_.end(), likelier);
    std::sort(begin, middle, likelier);
    sorted_ = end;
  }

  const std::span<const float> logits_;
  std::vector<int32_t> order_;
  size_t sorted_ = 0;
};

// Draws among the likeliest, in order of likelihood.
int32_t SampleBest(std::span<const float> logits, double highest, const GenerateOptions& options,
                   double draw) {
  const auto weight = [&](int32_t token) {
    return std::exp((logits[static_cast<size_t>(token)] - highest) / options.temperature);
  };
  ByLikelihood order(logits);
  const bool all = options.top_k <= 0 || static_cast<size_t>(options.top_k) >= logits.size();
  const size_t kept = all ? logits.size() : static_cast<size_t>(options.top_k);
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += weight(all ? static_cast<int32_t>(i) : order[i]);
  double sum = 0;
  size_t count = 0;
  while (count < kept && (count == 0 || sum < options.top_p * total)) sum += weight(order[count++]);
  double left = draw * sum;
  for (size_t i = 0; i + 1 < count; ++i) {
    left -= weight(order[i]);
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

// One text that is being made.
struct Text {
  std::vector<int32_t> tokens;  // The prompt and what follows.
  int added = 0;
  bool done = false;
  std::vector<float> logits;  // Scores of what comes next.
};

}  // namespace

int32_t SampleToken(std::span<const float> logits, const GenerateOptions& options, double draw) {
  if (options.known_tokens > 0) {
    logits = logits.first(std::min(logits.size(), static_cast<size_t>(options.known_tokens)));
  }
  const auto best = std::ranges::max_element(logits);
  if (options.temperature <= 0) return static_cast<int32_t>(best - logits.begin());
  if (options.top_k > 0 || options.top_p < 1) return SampleBest(logits, *best, options, draw);
  return SampleAny(logits, *best, options.temperature, draw);
}

absl::StatusOr<size_t> TextsAtOnce(const v1::ModelConfig& model, int64_t capacity,
                                   int64_t memory_bytes, size_t prompts) {
  // As many rows as a matrix product of prompts has.
  constexpr size_t kMost = 256;
  constexpr double kBytesPerMb = 1e6;
  const int64_t bytes = CpuDecoder<float>::CacheBytes(model, capacity);
  if (bytes > memory_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the keys and values of one text of %d tokens take %.0f MB, and there are "
                        "%.0f MB for them: "
                        "ask for a shorter text, or give more with --max_cache_gb",
                        capacity, static_cast<double>(bytes) / kBytesPerMb,
                        static_cast<double>(memory_bytes) / kBytesPerMb));
  }
  return std::min({prompts, kMost, static_cast<size_t>(memory_bytes / bytes)});
}

std::vector<std::vector<int32_t>> Generate(CpuDecoder<float>& decoder,
                                           std::span<const float> parameters,
                                           std::span<const std::vector<int32_t>> prompts,
                                           const GenerateOptions& options, const TokenSink& sink) {
  const auto vocabulary = static_cast<size_t>(decoder.vocabulary_size());
  const auto capacity = static_cast<size_t>(decoder.capacity());
  std::vector<Text> texts(prompts.size());
  // Reads the last tokens of a text from the beginning.
  const auto read = [&](size_t i, size_t count) {
    const std::span<const int32_t> tokens(texts[i].tokens);
    decoder.Clear(static_cast<int>(i));
    decoder.Append(parameters, static_cast<int>(i), tokens.last(std::min(tokens.size(), count)),
                   texts[i].logits);
  };
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i].tokens = prompts[i];
    texts[i].logits.resize(vocabulary);
    if (options.tokens > 0) read(i, capacity);
  }
  std::vector<CpuDecoder<float>::NextToken> next;
  std::vector<float> logits;
  for (int step = 0; step < options.tokens; ++step) {
    next.clear();
    for (size_t i = 0; i < texts.size(); ++i) {
      Text& text = texts[i];
      if (text.done) continue;
      const double draw = RandomUniform(
          options.seed, kGenerationStream + (uint64_t{options.first_prompt + i} << 32),
          static_cast<uint64_t>(step));
      const int32_t token = SampleToken(text.logits, options, draw);
      if (token == options.end_token) {
        text.done = true;
        continue;
      }
      text.tokens.push_back(token);
      ++text.added;
      if (sink != nullptr) sink(i, token);
      if (step + 1 == options.tokens) continue;
      if (decoder.length(static_cast<int>(i)) == decoder.capacity()) {
        read(i, std::max<size_t>(1, capacity / 2));
      } else {
        next.push_back({static_cast<int>(i), token});
      }
    }
    if (next.empty()) {
      if (std::ranges::all_of(texts, &Text::done)) break;
      continue;
    }
    logits.resize(next.size() * vocabulary);
    decoder.Step(parameters, next, logits);
    for (size_t row = 0; row < next.size(); ++row) {
      std::copy_n(logits.begin() + static_cast<ptrdiff_t>(row * vocabulary), vocabulary,
                  texts[static_cast<size_t>(next[row].sequence)].logits.begin());
    }
  }
  std::vector<std::vector<int32_t>> results;
  for (const Text& text : texts)
    results.emplace_back(text.tokens.end() - text.added, text.tokens.end());
  return results;
}

}  // namespace causeway::worker
