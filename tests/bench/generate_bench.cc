// How fast the CPU generates, with the cache of keys and values and without, against the limit that
// reading the weights sets.
//
// Every token reads all matrices once (the embedding's look-up excepted), so a single text cannot
// go faster than the memory's rate divided by their bytes. That rate is measured in the same run,
// by reading alone. Several texts at once share the reading.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "nlohmann/json.hpp"
#include "tests/bench/measure.h"
#include "worker/backend/cpu/cpu_transformer.h"
#include "worker/train/generate.h"

ABSL_FLAG(std::string, model, "gpt2-124m-shape", "a preset of the model's shape");
ABSL_FLAG(int, prompt, 32, "tokens of the prompt");
ABSL_FLAG(int, tokens, 32, "tokens to generate with the cache");
ABSL_FLAG(int, uncached_tokens, 4, "tokens to generate without it");
ABSL_FLAG(std::string, batches, "1,4,8", "texts at once");
ABSL_FLAG(int, threads, 0, "0: one per core");

namespace causeway::worker {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t WeightBytes(const v1::ModelConfig& model, const FragmentPlan& plan) {
  int64_t values = 0;
  for (const PlacedTensor& tensor : plan.tensors()) {
    const bool looked_up = tensor.info.role == TensorRole::kPositions ||
                           (tensor.info.role == TensorRole::kEmbedding && model.untied_head());
    if (tensor.info.is_matrix() && !looked_up) values += tensor.info.size();
  }
  return values * static_cast<int64_t>(sizeof(float));
}

// Bytes per second of adding up the values, the best of a few passes.
double ReadRate(ThreadPool& pool, std::span<const float> values) {
  constexpr size_t kTask = size_t{1} << 18;
  const Kernels<float>& kernels = GetKernels<float>();
  const std::vector<float> ones(1024, 1.0F);
  const size_t tasks = values.size() / kTask;
  std::vector<float> sums(tasks * kTask / ones.size());
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const double start = Now();
    pool.ParallelFor(static_cast<int64_t>(tasks), [&](int64_t task) {
      const size_t first = static_cast<size_t>(task) * kTask;
      kernels.dot_products(values.data() + first, kTask / ones.size(), 1024, ones.data(), 1,
                           sums.data() + first / ones.size(), 1);
    });
    best = std::max(best, static_cast<double>(tasks * kTask * sizeof(float)) / (Now() - start));
  }
  return best;
}

absl::StatusOr<nlohmann::json> Measure() {
  const int prompt = absl::GetFlag(FLAGS_prompt);
  const int tokens = absl::GetFlag(FLAGS_tokens);
  const int uncached = absl::GetFlag(FLAGS_uncached_tokens);
  const int threads = bench::Threads(std::max(0, absl::GetFlag(FLAGS_threads)));
  v1::RunConfig config;
  config.mutable_model()->set_preset(absl::GetFlag(FLAGS_model));
  RETURN_IF_ERROR(CompleteRunConfig(config).status());
  const v1::ModelConfig& model = config.model();
  if (prompt < 1 || tokens < 2 || uncached < 1 ||
      prompt + std::max(tokens, uncached) > model.sequence_length()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt, --tokens and --uncached_tokens must be 1, 2 and 1 or more and fit ",
                     model.sequence_length(), " tokens"));
  }
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config));
  ThreadPool pool(threads);
  AlignedVector<float> parameters(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(plan, 1, parameters);
  const std::vector<int32_t> prompt_tokens(static_cast<size_t>(prompt), 7);
  std::vector<float> logits(static_cast<size_t>(model.vocabulary_size()));

  double rate = ReadRate(pool, parameters);
  nlohmann::json rows = nlohmann::json::array();
  for (const auto part : absl::StrSplit(absl::GetFlag(FLAGS_batches), ',')) {
    int batch = 0;
    if (!absl::SimpleAtoi(part, &batch) || batch < 1 || batch > 1024) {
      return absl::InvalidArgumentError(absl::StrCat("--batches: \"", part, "\" is no number"));
    }
    CpuDecoder<float> decoder(model, plan, batch, &pool);
    const double before = Now();
    for (int i = 0; i < batch; ++i) decoder.Append(parameters, i, prompt_tokens, logits);
    const double prompt_seconds = Now() - before;
    std::vector<CpuDecoder<float>::NextToken> next;
    for (int i = 0; i < batch; ++i) next.push_back({i, i});
    std::vector<float> all(logits.size() * next.size());
    std::vector<double> seconds;
    for (int i = 0; i < tokens; ++i) {
      const double start = Now();
      decoder.Step(parameters, next, all);
      seconds.push_back(Now() - start);
    }
    std::nth_element(seconds.begin(), seconds.begin() + tokens / 2, seconds.end());
    rows.push_back({{"texts", batch},
                    {"prompt_tokens_per_second", prompt * batch / prompt_seconds},
                    {"tokens_per_second", batch / seconds[static_cast<size_t>(tokens / 2)]}});
  }
  rate = std::max(rate, ReadRate(pool, parameters));

  CpuTransformer<float> transformer(model, plan, 1, &pool);
  std::vector<int32_t> text = prompt_tokens;
  transformer.Logits(parameters, text, logits);
  const double start = Now();
  for (int i = 0; i < uncached; ++i) {
    text.push_back(i);
    transformer.Logits(parameters, text, logits);
  }
  const double without = uncached / (Now() - start);

  const auto bytes = static_cast<double>(WeightBytes(model, plan));
  for (nlohmann::json& row : rows) {
    const double per_text = row["tokens_per_second"].get<double>() / row["texts"].get<double>();
    row["read_limit_fraction"] = per_text / (rate / bytes);
    row["times_without_cache"] = row["tokens_per_second"].get<double>() / without;
  }
  return nlohmann::json{{"model", absl::GetFlag(FLAGS_model)},
                        {"threads", threads},
                        {"prompt", prompt},
                        {"tokens", tokens},
                        {"weight_bytes", bytes},
                        {"read_gb_per_s", rate * 1e-9},
                        {"read_limit_tokens_per_second", rate / bytes},
                        {"tokens_per_second_without_cache", without},
                        {"rows", rows}};
}

}  // namespace
}  // namespace causeway::worker

int main(int argc, char** argv) {
  return causeway::bench::RunBenchmark(
      argc, argv,
      "generate_bench [--model=PRESET] [--prompt=N] [--tokens=N] "
      "[--uncached_tokens=N] [--batches=1,4,8] [--threads=N] [--json]\n",
      causeway::worker::Measure);
}
