// tokenizer_probe --tokenizer=FILE: encodes the JSON strings on its standard input, one per line,
// and prints their tokens as JSON arrays. With --bench=TEXTFILE it instead prints how fast one
// thread encodes that text, as JSON. For tests/compat/tokenizers_compat.py.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "worker/data/tokenizer.h"

ABSL_FLAG(std::string, tokenizer, "", "as causeway-worker tokenize takes it");
ABSL_FLAG(std::string, bench, "", "a text file to measure with");
ABSL_FLAG(int, repeats, 5, "with --bench: the fastest of so many");

namespace causeway::worker {
namespace {

constexpr char kHelp[] = "tokenizer_probe --tokenizer=FILE [--bench=TEXTFILE] [--repeats=5]\n";

absl::Status Bench(const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::string text,
                   FileSystem::Real()->ReadFile(absl::GetFlag(FLAGS_bench)));
  std::vector<int32_t> tokens;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < absl::GetFlag(FLAGS_repeats); ++i) {
    tokens.clear();
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(tokenizer.Encode(text, tokens));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  const nlohmann::json result = {{"bytes", text.size()},
                                 {"tokens", tokens.size()},
                                 {"mb_per_s", 1e-6 * static_cast<double>(text.size()) / best}};
  std::printf("%s\n", result.dump().c_str());
  return absl::OkStatus();
}

absl::Status Encode(const Tokenizer& tokenizer) {
  std::string line;
  std::vector<int32_t> tokens;
  while (std::getline(std::cin, line)) {
    tokens.clear();
    const auto text = nlohmann::json::parse(line).get<std::string>();
    RETURN_IF_ERROR(tokenizer.Encode(text, tokens));
    std::printf("%s\n", nlohmann::json(tokens).dump().c_str());
  }
  return absl::OkStatus();
}

absl::Status Run() {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   LoadTokenizer(*FileSystem::Real(), absl::GetFlag(FLAGS_tokenizer)));
  return absl::GetFlag(FLAGS_bench).empty() ? Encode(*tokenizer) : Bench(*tokenizer);
}

}  // namespace
}  // namespace causeway::worker

int main(int argc, char** argv) {
  causeway::ParseCommandLine(argc, argv, causeway::worker::kHelp);
  const absl::Status status = causeway::worker::Run();
  return status.ok() ? 0 : causeway::Refuse("tokenizer_probe", status);
}
