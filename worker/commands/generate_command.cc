// generate: text from a stored model, as it is drawn.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/params/fragment_plan.h"
#include "nlohmann/json.hpp"
#include "worker/commands/commands.h"
#include "worker/commands/given_model.h"
#include "worker/data/text_stream.h"
#include "worker/data/tokenizer.h"
#include "worker/preflight/checks.h"
#include "worker/train/generate.h"

ABSL_DECLARE_FLAG(std::string, tokenizer);
ABSL_DECLARE_FLAG(bool, json);
ABSL_FLAG(std::string, prompt, "\n", "TEXT: the text to continue");
ABSL_FLAG(std::string, prompts, "", "FILE: prompts, one per line, all at once");
ABSL_FLAG(int, tokens, 200, "adds so many at most");
ABSL_FLAG(double, temperature, 0.7, "0 takes the likeliest token every time");
ABSL_FLAG(int, top_k, 0, "draws among so many likeliest tokens; 0: among all");
ABSL_FLAG(double, top_p, 1, "draws among the likeliest tokens whose probabilities sum to this");
ABSL_FLAG(uint64_t, seed, 0, "the same seed gives the same text");
ABSL_FLAG(double, max_cache_gb, 0,
          "N: memory for keys and values; prompts that do not fit are made in turns; else half of "
          "what the machine can spare");
ABSL_FLAG(bool, ignore_end, false, "goes on after the tokenizer's end of text");

namespace causeway::worker {
namespace {

using nlohmann::json;

absl::StatusOr<GenerateOptions> GenerateOptionsFromFlags() {
  GenerateOptions options;
  options.tokens = absl::GetFlag(FLAGS_tokens);
  options.temperature = absl::GetFlag(FLAGS_temperature);
  options.top_k = absl::GetFlag(FLAGS_top_k);
  options.top_p = absl::GetFlag(FLAGS_top_p);
  options.seed = absl::GetFlag(FLAGS_seed);
  if (options.tokens < 0 || options.tokens > 1'000'000) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tokens must be in 0 .. 1000000; it is ", options.tokens));
  }
  if (!(options.temperature >= 0 && options.temperature <= 100)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--temperature must be in 0 .. 100; it is ", options.temperature));
  }
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
  if (path.empty()) return std::vector<std::string>{absl::GetFlag(FLAGS_prompt)};
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

absl::StatusOr<std::vector<std::vector<int32_t>>> EncodePrompts(
    const Tokenizer& tokenizer, std::span<const std::string> prompts) {
  std::vector<std::vector<int32_t>> tokens(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::optional<int32_t> begin = tokenizer.begin_of_text();
    if (begin.has_value()) tokens[i].push_back(*begin);
    RETURN_IF_ERROR(tokenizer.Encode(prompts[i], tokens[i]));
    if (tokens[i].empty()) return absl::InvalidArgumentError("a prompt must not be empty");
  }
  return tokens;
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

absl::Status CheckTokenizer(const Tokenizer& tokenizer, const v1::ModelConfig& model) {
  // Published models have rows beyond their tokenizer's vocabulary, to round it up, never fewer.
  const int64_t least = model.vocabulary_size() - model.vocabulary_size() / 10;
  if (tokenizer.vocabulary_size() >= least &&
      tokenizer.vocabulary_size() <= model.vocabulary_size()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the model has ", model.vocabulary_size(), " tokens, the tokenizer ",
                   tokenizer.name(), " ", tokenizer.vocabulary_size(),
                   ": give the one it was trained with, --tokenizer=FILE_OR_FOLDER"));
}

absl::Status PrintTexts(const Tokenizer& tokenizer, size_t first,
                        std::span<const std::string> prompts,
                        std::span<const std::vector<int32_t>> tokens,
                        std::span<const std::vector<int32_t>> texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string text, DecodeAfter(tokenizer, tokens[i], texts[i]));
    if (absl::GetFlag(FLAGS_json)) {
      const json line = {{"prompt", prompts[i]}, {"text", text}, {"tokens", texts[i].size()}};
      std::printf("%s\n", line.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
    } else {
      std::printf("%s%s%s\n", first + i > 0 ? "---\n" : "", prompts[i].c_str(), text.c_str());
    }
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status GenerateText() {
  ASSIGN_OR_RETURN(GenerateOptions options, GenerateOptionsFromFlags());
  ASSIGN_OR_RETURN(const std::vector<std::string> prompts, ReadPrompts());
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   LoadTokenizer(*FileSystem::Real(), absl::GetFlag(FLAGS_tokenizer)));
  ASSIGN_OR_RETURN(const StoredModel stored, ReadGivenModel());
  const v1::ModelConfig& model = stored.config.model();
  RETURN_IF_ERROR(CheckTokenizer(*tokenizer, model));
  options.known_tokens = static_cast<int32_t>(tokenizer->vocabulary_size());
  if (!absl::GetFlag(FLAGS_ignore_end)) options.end_token = tokenizer->end_of_text();
  ASSIGN_OR_RETURN(const std::vector<std::vector<int32_t>> tokens,
                   EncodePrompts(*tokenizer, prompts));
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
  TextStream stream(*tokenizer, tokens[0], [](absl::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
  if (streams) std::printf("%s", prompts[0].c_str());
  int64_t count = 0;
  const auto start = std::chrono::steady_clock::now();
  for (size_t first = 0; first < prompts.size(); first += at_once) {
    options.first_prompt = first;
    const auto batch = std::span(tokens).subspan(first, std::min(at_once, prompts.size() - first));
    const std::vector<std::vector<int32_t>> texts =
        Generate(decoder, stored.parameters, batch, options, [&](size_t, int32_t token) {
          if (streams) stream.Add(token);
        });
    for (const std::vector<int32_t>& text : texts) count += std::ssize(text);
    if (streams) continue;
    RETURN_IF_ERROR(PrintTexts(*tokenizer, first, std::span(prompts).subspan(first, batch.size()),
                               batch, texts));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (streams) {
    stream.Finish();
    std::printf("\n");
  }
  std::fprintf(stderr, "%lld tokens in %.1f s, %.1f tokens/s, prompts included\n",
               static_cast<long long>(count), seconds, static_cast<double>(count) / seconds);
  return absl::OkStatus();
}

}  // namespace

int RunGenerate() {
  const absl::Status status = GenerateText();
  return status.ok() ? 0 : Refuse("causeway-worker generate", status);
}

}  // namespace causeway::worker
