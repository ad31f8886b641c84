// What is done with a stored model: export writes its published parameters as a folder of
// safetensors, eval says what they are worth on held-out text, generate continues prompts. That
// prints bytes or token numbers as they are drawn: text of other tokenizers is made of them by
// python3 -m causeway.generate.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/files/model_folder.h"
#include "common/params/config_checks.h"
#include "common/params/fragment_plan.h"
#include "nlohmann/json.hpp"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/commands/commands.h"
#include "worker/data/dataset.h"
#include "worker/preflight/checks.h"
#include "worker/train/generate.h"
#include "worker/train/trainer.h"

ABSL_DECLARE_FLAG(std::string, data);
ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(bool, replace);
ABSL_DECLARE_FLAG(std::string, shard_format);
ABSL_FLAG(std::string, dtype, "f32", "f32|bf16: of the weights");
ABSL_FLAG(double, max_file_gb, 5, "above that the weights go into several files");
ABSL_FLAG(int, sequences, 64, "held-out windows, spread evenly");
ABSL_FLAG(bool, json, false, "JSON for programs");
ABSL_FLAG(std::string, prompt, "\n", "TEXT: the text to continue");
ABSL_FLAG(
    bool, ids, false,
    "prompts and what follows are token numbers, as 15 9 7, of any vocabulary; else text of a "
    "model whose tokens are bytes");
ABSL_FLAG(std::string, prompts, "", "FILE: prompts, one per line, all at once");
ABSL_FLAG(int, tokens, 200, "adds so many at most");
ABSL_FLAG(double, temperature, 0.7, "0 takes the likeliest token every time");
ABSL_FLAG(int, top_k, 0, "draws among so many likeliest tokens; 0: among all");
ABSL_FLAG(double, top_p, 1, "draws among the likeliest tokens whose probabilities sum to this");
ABSL_FLAG(uint64_t, seed, 0, "the same seed gives the same text");
ABSL_FLAG(double, max_cache_gb, 0,
          "N: memory for keys and values; prompts that do not fit are made in turns; else half of "
          "what the machine can spare");
ABSL_FLAG(int, end_token, -1, "N: the token that ends a text");
ABSL_FLAG(int, known_tokens, 0, "N: draws only tokens below it; else all, or all bytes");

namespace causeway::worker {

absl::Status RunExport() {
  const std::string out = absl::GetFlag(FLAGS_out);
  const double max_file_gb = absl::GetFlag(FLAGS_max_file_gb);
  if (out.empty()) return absl::InvalidArgumentError("--out is required: the folder to write");
  if (!(max_file_gb >= 1e-6 && max_file_gb <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_file_gb must be in 1e-6 .. 1e6; it is ", max_file_gb));
  }
  RETURN_IF_ERROR(CheckModelFolder(out, absl::GetFlag(FLAGS_replace)));
  ASSIGN_OR_RETURN(const StoredModel stored, ReadGivenModel());
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(stored.config));
  ModelFolderOptions options;
  options.bf16 = absl::GetFlag(FLAGS_dtype) == "bf16";
  options.max_file_bytes = static_cast<uint64_t>(max_file_gb * 1e9);
  RETURN_IF_ERROR(ReplaceModelFolder(stored.config, plan, stored.parameters, out, options));
  std::printf("%lld parameters of %s are in %s\n", static_cast<long long>(plan.parameters()),
              GivenModelName().c_str(), out.c_str());
  return absl::OkStatus();
}

namespace {

using nlohmann::json;

// Windows at a time; a batch's memory is that of training.
constexpr int kBatch = 4;

absl::Status EvaluateHeldOut(const StoredModel& stored, EvaluationModel& model, json& result) {
  const v1::ModelConfig& shape = stored.config.model();
  ASSIGN_OR_RETURN(const ShardFormat shard_format,
                   ParseShardFormat(absl::GetFlag(FLAGS_shard_format)));
  ASSIGN_OR_RETURN(const std::optional<DocumentMark> mark, GivenDocumentMark());
  ASSIGN_OR_RETURN(Dataset dataset,
                   Dataset::Open(*FileSystem::Real(), absl::GetFlag(FLAGS_data), shard_format));
  const bool masks = stored.config.train().document_masking();
  for (const std::string& sentence : dataset.CountsForNothing(mark.has_value(), masks)) {
    std::fprintf(stderr, "warning: %s\n", sentence.c_str());
  }
  if (masks) RETURN_IF_ERROR(dataset.FindDocuments(mark));
  RETURN_IF_ERROR(dataset.CheckVocabulary(shape.vocabulary_size()));
  ASSIGN_OR_RETURN(const HeldOutWindows windows,
                   HeldOutWindows::Create(dataset, shape.sequence_length(), shape.vocabulary_size(),
                                          absl::GetFlag(FLAGS_sequences), masks));
  int64_t targets = 0;  // With document masking not every position has one.
  ASSIGN_OR_RETURN(const double loss, EvaluateLoss(model, stored.parameters, windows, &targets));
  if (targets == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no held-out token in ", dataset.folder(), " is predicted in ", windows.size(),
                     " windows of ", shape.sequence_length(),
                     " tokens: with train.document_masking the first of a document never is; give "
                     "more --sequences, or longer documents"));
  }
  result["tokens"] = targets;
  result["loss"] = loss;
  result["perplexity"] = std::exp(loss);
  const double bytes_per_token = dataset.held_out_bytes_per_token();
  if (bytes_per_token > 0) result["bits_per_byte"] = loss / std::numbers::ln2 / bytes_per_token;
  return absl::OkStatus();
}

void PrintLine(const json& result) {
  std::printf("%.4f nats per token over %lld held-out tokens", result["loss"].get<double>(),
              static_cast<long long>(result["tokens"].get<int64_t>()));
  if (result.contains("bits_per_byte")) {
    std::printf(", %.4f bits per byte", result["bits_per_byte"].get<double>());
  }
  std::printf("\n");
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

}  // namespace

absl::Status RunEval() {
  ASSIGN_OR_RETURN(DeviceChoice device, DevicesFromFlags());
  ASSIGN_OR_RETURN(device, ResolveDevices(device, *FileSystem::Real()));
  if (absl::GetFlag(FLAGS_data).empty()) {
    return absl::InvalidArgumentError("--data=SHARDS is required: what the model is evaluated on");
  }
  ASSIGN_OR_RETURN(const StoredModel stored, ReadGivenModel());
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(stored.config));
  ASSIGN_OR_RETURN(const Evaluated on, MakeModel(device, stored.config.model(), plan));
  json result = {{"model", GivenModelName()}};
  if (stored.step >= 0) result["step"] = stored.step;
  RETURN_IF_ERROR(EvaluateHeldOut(stored, *on.model, result));
  if (absl::GetFlag(FLAGS_json)) {
    std::printf("%s\n", result.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    PrintLine(result);
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<GenerateOptions> GenerateOptionsFromFlags() {
  GenerateOptions options;
  options.tokens = absl::GetFlag(FLAGS_tokens);
  options.temperature = absl::GetFlag(FLAGS_temperature);
  options.top_k = absl::GetFlag(FLAGS_top_k);
  options.top_p = absl::GetFlag(FLAGS_top_p);
  options.seed = absl::GetFlag(FLAGS_seed);
  RETURN_IF_ERROR(CheckRange("--tokens", options.tokens, 0, 1'000'000));
  RETURN_IF_ERROR(CheckRange("--temperature", options.temperature, 0.0, 100.0));
  if (options.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--top_k must be 0 or more; it is ", options.top_k));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--top_p must be above 0 and at most 1; it is ", options.top_p));
  }
  return options;
}

absl::StatusOr<std::vector<std::string>> ReadPrompts() {
  const std::string path = absl::GetFlag(FLAGS_prompts);
  const std::string prompt = absl::GetFlag(FLAGS_prompt);
  if (path.empty()) return std::vector<std::string>{prompt};
  if (prompt != "\n") return absl::InvalidArgumentError("give --prompt or --prompts, not both");
  ASSIGN_OR_RETURN(const std::string text, FileSystem::Real()->ReadFile(path));
  std::vector<std::string> prompts;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    if (!line.empty()) prompts.emplace_back(line);
  }
  if (prompts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no prompts; expected one per line that is not empty"));
  }
  return prompts;
}

constexpr int32_t kBytes = 256;

absl::StatusOr<std::vector<int32_t>> Encode(const std::string& prompt, int64_t vocabulary) {
  std::vector<int32_t> tokens;
  if (!absl::GetFlag(FLAGS_ids)) {
    for (const char byte : prompt) tokens.push_back(static_cast<uint8_t>(byte));
  } else {
    for (const absl::string_view part : absl::StrSplit(prompt, ' ', absl::SkipWhitespace())) {
      int32_t token = -1;
      if (!absl::SimpleAtoi(part, &token) || token < 0 || token >= vocabulary) {
        return absl::InvalidArgumentError(
            absl::StrCat("with --ids a prompt must be numbers below ", vocabulary,
                         ", the model's tokens; \"", Printable(part.substr(0, 100)), "\" is none"));
      }
      tokens.push_back(token);
    }
  }
  if (tokens.empty()) return absl::InvalidArgumentError("a prompt must not be empty");
  return tokens;
}

std::string Decode(std::span<const int32_t> tokens) {
  if (absl::GetFlag(FLAGS_ids)) return absl::StrJoin(tokens, " ");
  return {tokens.begin(), tokens.end()};
}

// For keys and values: what was asked for, or half of what the machine can spare.
absl::StatusOr<int64_t> CacheMemory() {
  const double gb = absl::GetFlag(FLAGS_max_cache_gb);
  if (!(gb >= 0 && gb <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_cache_gb must be in 0 .. 1e6; it is ", gb));
  }
  if (gb > 0) return static_cast<int64_t>(gb * 1e9);
  const absl::StatusOr<int64_t> available = AvailableMemory(*FileSystem::Real());
  constexpr int64_t kUnknown = int64_t{1} << 30;
  return available.ok() ? *available / 2 : kUnknown;
}

// Published models have rows beyond their vocabulary, to round it up, never fewer.
absl::Status CheckBytes(const v1::ModelConfig& model) {
  if (absl::GetFlag(FLAGS_ids)) return absl::OkStatus();
  const int64_t least = model.vocabulary_size() - model.vocabulary_size() / 10;
  if (kBytes >= least && kBytes <= model.vocabulary_size()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the model has ", model.vocabulary_size(),
                   " tokens, which are no bytes: give --ids, or its "
                   "tokenizer to python3 -m causeway.generate --tokenizer=FILE_OR_FOLDER"));
}

void PrintTexts(size_t first, std::span<const std::string> prompts,
                std::span<const std::vector<int32_t>> texts) {
  const char* const between = absl::GetFlag(FLAGS_ids) ? " " : "";
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = Decode(texts[i]);
    if (absl::GetFlag(FLAGS_json)) {
      const json line = {{"prompt", prompts[i]}, {"text", text}, {"tokens", texts[i].size()}};
      std::printf("%s\n", line.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
    } else {
      std::printf("%s%s%s%s\n", first + i > 0 ? "---\n" : "", prompts[i].c_str(), between,
                  text.c_str());
    }
  }
  std::fflush(stdout);
}

}  // namespace

absl::Status RunGenerate() {
  ASSIGN_OR_RETURN(GenerateOptions options, GenerateOptionsFromFlags());
  ASSIGN_OR_RETURN(const std::vector<std::string> prompts, ReadPrompts());
  ASSIGN_OR_RETURN(const StoredModel stored, ReadGivenModel());
  const v1::ModelConfig& model = stored.config.model();
  RETURN_IF_ERROR(CheckBytes(model));
  const bool ids = absl::GetFlag(FLAGS_ids);
  const int known = absl::GetFlag(FLAGS_known_tokens);
  const int end = absl::GetFlag(FLAGS_end_token);
  if (known < 0 || known > model.vocabulary_size() || end < -1 || end >= model.vocabulary_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--known_tokens and --end_token must be within the model's ",
                     model.vocabulary_size(), " tokens; they are ", known, " and ", end));
  }
  options.known_tokens = known == 0 && !ids ? kBytes : known;
  if (end >= 0) options.end_token = end;
  std::vector<std::vector<int32_t>> tokens;
  for (const std::string& prompt : prompts) {
    ASSIGN_OR_RETURN(tokens.emplace_back(), Encode(prompt, model.vocabulary_size()));
  }
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(stored.config));
  int64_t longest = 0;
  for (const std::vector<int32_t>& prompt : tokens) {
    longest = std::max(longest, std::ssize(prompt) + options.tokens);
  }
  const int64_t capacity = std::min<int64_t>(model.sequence_length(), longest);
  ASSIGN_OR_RETURN(const int64_t memory, CacheMemory());
  ASSIGN_OR_RETURN(const size_t at_once, TextsAtOnce(model, capacity, memory, prompts.size()));
  ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, MakeGivenPool());
  CpuDecoder<float> decoder(model, plan, static_cast<int>(at_once), pool.get(), capacity);

  const bool streams = prompts.size() == 1 && !absl::GetFlag(FLAGS_json);
  if (streams) std::printf("%s", prompts[0].c_str());
  int64_t count = 0;
  const auto start = std::chrono::steady_clock::now();
  for (size_t first = 0; first < prompts.size(); first += at_once) {
    options.first_prompt = first;
    const auto batch = std::span(tokens).subspan(first, std::min(at_once, prompts.size() - first));
    const std::vector<std::vector<int32_t>> texts =
        Generate(decoder, stored.parameters, batch, options, [&](size_t, int32_t token) {
          if (!streams) return;
          const std::string text = Decode({&token, 1});
          if (ids) std::putchar(' ');
          std::fwrite(text.data(), 1, text.size(), stdout);
          std::fflush(stdout);
        });
    for (const std::vector<int32_t>& text : texts) count += std::ssize(text);
    if (streams) continue;
    PrintTexts(first, std::span(prompts).subspan(first, batch.size()), texts);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (streams) std::printf("\n");
  std::fprintf(stderr, "%lld tokens in %.1f s, %.1f tokens/s, prompts included\n",
               static_cast<long long>(count), seconds, static_cast<double>(count) / seconds);
  return absl::OkStatus();
}

}  // namespace causeway::worker
