// eval and generate: what a stored checkpoint is worth.
#include <cmath>
#include <cstdio>
#include <numbers>
#include <thread>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "nlohmann/json.hpp"
#include "worker/commands/commands.h"
#include "worker/data/dataset.h"
#include "worker/data/tokenizer.h"
#include "worker/io/worker_checkpoint.h"
#include "worker/train/evaluate.h"
#include "worker/train/generate.h"

ABSL_DECLARE_FLAG(std::string, data);
ABSL_DECLARE_FLAG(std::string, tokenizer);
ABSL_DECLARE_FLAG(int, threads);
ABSL_FLAG(std::string, checkpoint, "", "eval, generate: a worker's checkpoint file");
ABSL_FLAG(std::string, prompt, "\n", "generate: the text to continue");
ABSL_FLAG(int, tokens, 200, "generate: how many tokens to add");
ABSL_FLAG(double, temperature, 0.7, "generate: 0 takes the likeliest token every time");
ABSL_FLAG(uint64_t, seed, 0, "generate: the same seed gives the same text");
ABSL_FLAG(int, sequences, 64, "eval: held-out windows, spread evenly");
ABSL_FLAG(bool, json, false, "eval, bench: print JSON");

namespace causeway::worker {
namespace {

// The published parameters of a checkpoint and a model to run them.
struct StoredModel {
  WorkerCheckpoint checkpoint;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<CpuTransformer<float>> model;
};

absl::StatusOr<StoredModel> LoadModel() {
  const std::string path = absl::GetFlag(FLAGS_checkpoint);
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "--checkpoint is required: the file `checkpoint` in a worker's --out folder");
  }
  int threads = absl::GetFlag(FLAGS_threads);
  if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  StoredModel stored;
  ASSIGN_OR_RETURN(stored.checkpoint, ReadWorkerCheckpoint(*FileSystem::Real(), path));
  const v1::RunConfig& config = stored.checkpoint.config;
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config.model(), config.sync()));
  stored.pool = std::make_unique<ThreadPool>(threads);
  stored.model = std::make_unique<CpuTransformer<float>>(
      config.model(), plan, config.train().micro_batch_sequences(), stored.pool.get());
  return stored;
}

absl::Status Eval() {
  ASSIGN_OR_RETURN(StoredModel stored, LoadModel());
  const v1::RunConfig& config = stored.checkpoint.config;
  ASSIGN_OR_RETURN(const Dataset dataset,
                   Dataset::Open(*FileSystem::Real(), absl::GetFlag(FLAGS_data)));
  RETURN_IF_ERROR(dataset.CheckVocabulary(config.model().vocabulary_size()));
  ASSIGN_OR_RETURN(
      const HeldOutWindows windows,
      HeldOutWindows::Create(dataset, config.model().sequence_length(),
                             config.model().vocabulary_size(), absl::GetFlag(FLAGS_sequences)));
  ASSIGN_OR_RETURN(const double loss,
                   EvaluateLoss(*stored.model, stored.checkpoint.sync.published, windows));
  const int64_t tokens = windows.size() * config.model().sequence_length();
  if (absl::GetFlag(FLAGS_json)) {
    std::printf("%s\n", nlohmann::json{{"step", stored.checkpoint.step},
                                       {"tokens", tokens},
                                       {"loss", loss},
                                       {"perplexity", std::exp(loss)}}
                            .dump()
                            .c_str());
  } else {
    std::printf("step %ld: %.4f nats per token over %ld held-out tokens\n",
                static_cast<long>(stored.checkpoint.step), loss, static_cast<long>(tokens));
  }
  return absl::OkStatus();
}

absl::Status GenerateText() {
  const int tokens = absl::GetFlag(FLAGS_tokens);
  const double temperature = absl::GetFlag(FLAGS_temperature);
  if (tokens < 0 || tokens > 1'000'000) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tokens must be in 0 .. 1000000; it is ", tokens));
  }
  if (!(temperature >= 0 && temperature <= 100)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--temperature must be in 0 .. 100; it is ", temperature));
  }
  ASSIGN_OR_RETURN(StoredModel stored, LoadModel());
  const int vocabulary = stored.checkpoint.config.model().vocabulary_size();
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   MakeTokenizer(absl::GetFlag(FLAGS_tokenizer)));
  if (tokenizer->vocabulary_size() != vocabulary) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model has ", vocabulary, " tokens, the tokenizer ", tokenizer->name(),
                     " ", tokenizer->vocabulary_size(), ": choose the one it was trained with"));
  }
  const std::string prompt = absl::GetFlag(FLAGS_prompt);
  std::vector<int32_t> prompt_tokens;
  RETURN_IF_ERROR(tokenizer->Encode(prompt, prompt_tokens));
  if (prompt_tokens.empty()) return absl::InvalidArgumentError("--prompt must not be empty");
  const std::vector<int32_t> text =
      Generate(*stored.model, stored.checkpoint.sync.published, vocabulary, prompt_tokens,
               {.tokens = tokens, .temperature = temperature, .seed = absl::GetFlag(FLAGS_seed)});
  ASSIGN_OR_RETURN(const std::string continuation, tokenizer->Decode(text));
  std::printf("%s%s\n", prompt.c_str(), continuation.c_str());
  return absl::OkStatus();
}

}  // namespace

int RunEval() {
  const absl::Status status = Eval();
  return status.ok() ? 0 : Refuse("causeway-worker eval", status);
}

int RunGenerate() {
  const absl::Status status = GenerateText();
  return status.ok() ? 0 : Refuse("causeway-worker generate", status);
}

}  // namespace causeway::worker
