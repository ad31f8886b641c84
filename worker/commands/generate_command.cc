// generate: bytes or token numbers from a stored model, as they are drawn. Text of other tokenizers
// is made of them by python3 -m causeway.generate.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
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
#include "common/params/fragment_plan.h"
#include "nlohmann/json.hpp"
#include "worker/commands/commands.h"
#include "worker/preflight/checks.h"
#include "worker/train/generate.h"

ABSL_DECLARE_FLAG(bool, json);
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
