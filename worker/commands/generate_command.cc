// generate: text from a stored model, as it is drawn.
#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/params/fragment_plan.h"
#include "nlohmann/json.hpp"
#include "worker/commands/commands.h"
#include "worker/commands/given_model.h"
#include "worker/data/tokenizer.h"
#include "worker/train/generate.h"

ABSL_DECLARE_FLAG(std::string, tokenizer);
ABSL_DECLARE_FLAG(bool, json);
ABSL_FLAG(std::string, prompt, "\n", "generate: the text to continue");
ABSL_FLAG(std::string, prompts, "", "generate: a file of prompts, one per line, all at once");
ABSL_FLAG(int, tokens, 200, "generate: how many tokens to add at most");
ABSL_FLAG(double, temperature, 0.7, "generate: 0 takes the likeliest token every time");
ABSL_FLAG(int, top_k, 0, "generate: draw among so many likeliest tokens; 0: among all");
ABSL_FLAG(double, top_p, 1,
          "generate: draw among the likeliest tokens whose probabilities sum to this");
ABSL_FLAG(uint64_t, seed, 0, "generate: the same seed gives the same text");
ABSL_FLAG(bool, ignore_end, false, "generate: go on after the tokenizer's end of text");

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr size_t kMaxPrompts = 256;
constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

// The text that `tokens` add to what `prompt` says. Tokenizers may drop a space at the beginning of
// what they decode (SentencePiece does), so the tokens cannot be decoded without the prompt.
absl::StatusOr<std::string> DecodeAfter(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                        std::span<const int32_t> tokens) {
  ASSIGN_OR_RETURN(const std::string before, tokenizer.Decode(prompt));
  std::vector<int32_t> all(prompt.begin(), prompt.end());
  all.insert(all.end(), tokens.begin(), tokens.end());
  ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(all));
  // A character may have begun in the prompt and end in the text.
  if (!absl::StartsWith(text, before)) return tokenizer.Decode(tokens);
  return text.substr(before.size());
}

// Prints a text while its tokens come, never half a character.
class Stream {
 public:
  Stream(const Tokenizer& tokenizer, std::vector<int32_t> prompt)
      : tokenizer_(tokenizer), prompt_(std::move(prompt)) {}

  void Add(int32_t token) {
    tokens_.push_back(token);
    Print(/*whole=*/false);
  }
  void Finish() { Print(/*whole=*/true); }

 private:
  // Bytes at the end of `text` that begin a character without ending it.
  static size_t Unfinished(absl::string_view text) {
    for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
      const auto byte = static_cast<uint8_t>(text[text.size() - back]);
      if ((byte & 0xc0U) == 0x80U) continue;
      const size_t length = byte >= 0xf0U ? 4 : byte >= 0xe0U ? 3 : byte >= 0xc0U ? 2 : 1;
      return length > back ? back : 0;
    }
    return 0;
  }

  void Print(bool whole) {
    const absl::StatusOr<std::string> text = DecodeAfter(tokenizer_, prompt_, tokens_);
    if (!text.ok()) return;
    size_t end = text->size();
    if (!whole && absl::EndsWith(*text, kReplacement)) return;
    if (!whole) end -= Unfinished(*text);
    if (end > printed_) std::fwrite(text->data() + printed_, 1, end - printed_, stdout);
    std::fflush(stdout);
    printed_ = std::max(printed_, end);
    // What is decoded again for the next token stays short.
    if (!whole && printed_ == text->size() && absl::EndsWith(*text, "\n")) {
      prompt_ = {tokens_.back()};
      tokens_.clear();
      printed_ = 0;
    }
  }

  const Tokenizer& tokenizer_;
  std::vector<int32_t> prompt_;  // What was printed before `tokens_`, or the last token of it.
  std::vector<int32_t> tokens_;
  size_t printed_ = 0;
};

absl::StatusOr<GenerateOptions> OptionsFromFlags() {
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
  std::vector<std::string> prompts = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (prompts.empty() || prompts.size() > kMaxPrompts) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", prompts.size(), " prompts; 1 to ", kMaxPrompts, " are taken"));
  }
  return prompts;
}

absl::Status GenerateText() {
  ASSIGN_OR_RETURN(GenerateOptions options, OptionsFromFlags());
  ASSIGN_OR_RETURN(const std::vector<std::string> prompts, ReadPrompts());
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   LoadTokenizer(*FileSystem::Real(), absl::GetFlag(FLAGS_tokenizer)));
  ASSIGN_OR_RETURN(const StoredModel stored, ReadGivenModel());
  const v1::ModelConfig& model = stored.config.model();
  // Published models have rows beyond their tokenizer's vocabulary, to round it up, never fewer.
  const int64_t least = model.vocabulary_size() - model.vocabulary_size() / 10;
  if (tokenizer->vocabulary_size() < least ||
      tokenizer->vocabulary_size() > model.vocabulary_size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model has ", model.vocabulary_size(), " tokens, the tokenizer ",
                     tokenizer->name(), " ", tokenizer->vocabulary_size(),
                     ": give the one it was trained with, --tokenizer=FILE_OR_FOLDER"));
  }
  options.known_tokens = static_cast<int32_t>(tokenizer->vocabulary_size());
  if (!absl::GetFlag(FLAGS_ignore_end)) options.end_token = tokenizer->end_of_text();
  std::vector<std::vector<int32_t>> tokens(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::optional<int32_t> begin = tokenizer->begin_of_text();
    if (begin.has_value()) tokens[i].push_back(*begin);
    RETURN_IF_ERROR(tokenizer->Encode(prompts[i], tokens[i]));
    if (tokens[i].empty()) return absl::InvalidArgumentError("a prompt must not be empty");
  }
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(model, stored.config.sync()));
  const std::unique_ptr<ThreadPool> pool = MakeGivenPool();
  CpuDecoder<float> decoder(model, plan, static_cast<int>(prompts.size()), pool.get());

  const bool as_json = absl::GetFlag(FLAGS_json);
  const bool streams = prompts.size() == 1 && !as_json;
  Stream stream(*tokenizer, tokens[0]);
  if (streams) std::printf("%s", prompts[0].c_str());
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::vector<int32_t>> texts =
      Generate(decoder, stored.parameters, tokens, options, [&](size_t, int32_t token) {
        if (streams) stream.Add(token);
      });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (streams) {
    stream.Finish();
    std::printf("\n");
  }
  int64_t count = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    count += std::ssize(texts[i]);
    if (streams) continue;
    ASSIGN_OR_RETURN(const std::string text, DecodeAfter(*tokenizer, tokens[i], texts[i]));
    if (as_json) {
      const json line = {{"prompt", prompts[i]}, {"text", text}, {"tokens", texts[i].size()}};
      std::printf("%s\n", line.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
    } else {
      std::printf("%s%s%s\n", i > 0 ? "---\n" : "", prompts[i].c_str(), text.c_str());
    }
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
