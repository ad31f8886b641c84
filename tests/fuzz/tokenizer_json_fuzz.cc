// A tokenizer.json, and text for it. What is read encodes any bytes, into tokens of its vocabulary
// that are the text again, and no cut changes them.
//
// Input: a byte of options; then, each up to the first zero byte: tokens for the vocabulary (after
// all bytes, which the fuzzer could hardly find), merges, and the other members of the file, all as
// JSON; or the whole file. Then the text.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/input.h"
#include "tests/fuzz/target.h"
#include "worker/data/bpe_tokenizer.h"
#include "worker/data/tokenizer_json.h"

namespace causeway::fuzz {
namespace {

enum Options : uint8_t { kWholeFile = 1 };

std::string TakePart(Input& input) {
  const auto end = std::find(input.rest().begin(), input.rest().end(), uint8_t{0});
  const std::vector<uint8_t> part =
      input.TakeBytes(static_cast<size_t>(end - input.rest().begin()));
  input.Take<uint8_t>();
  return {part.begin(), part.end()};
}

std::string AllBytes() {
  std::string vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    absl::StrAppend(&vocabulary, byte > 0 ? "," : "",
                    nlohmann::json(worker::ByteCharacter(static_cast<uint8_t>(byte))).dump(), ":",
                    byte);
  }
  return vocabulary;
}

std::string TakeFile(Input& input) {
  static const std::string all_bytes = AllBytes();
  if ((input.Take<uint8_t>() & kWholeFile) != 0) return TakePart(input);
  const std::string vocabulary = TakePart(input);
  const std::string merges = TakePart(input);
  const std::string members = TakePart(input);
  return absl::StrCat(R"({"model":{"type":"BPE","vocab":{)", all_bytes,
                      vocabulary.empty() ? "" : ",", vocabulary, R"(},"merges":[)", merges, "]}",
                      members.empty() ? "" : ",", members, "}");
}

void CheckTokenizer(Input input) {
  const std::string file = TakeFile(input);
  absl::StatusOr<worker::ByteLevelBpe> bpe = worker::ParseTokenizerJson(file);
  if (!bpe.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(bpe.status()), "a bad file is INVALID_ARGUMENT");
    return;
  }
  bool is_kept = !bpe->compose && !bpe->add_prefix_space;
  for (const worker::AddedToken& token : bpe->added_tokens) {
    // Tokens that take white space along lose it.
    is_kept = is_kept && !token.strip_left && !token.strip_right;
  }
  const worker::BpeTokenizer tokenizer(*std::move(bpe), "input", "0");
  const std::string text(input.rest().begin(), input.rest().end());
  std::vector<int32_t> tokens;
  FUZZ_REQUIRE(tokenizer.Encode(text, tokens).ok(), "a text is refused");
  for (const int32_t token : tokens) {
    FUZZ_REQUIRE(token >= 0 && token < tokenizer.vocabulary_size(),
                 "a token outside the vocabulary");
  }
  const absl::StatusOr<std::string> decoded = tokenizer.Decode(tokens);
  FUZZ_REQUIRE(decoded.ok(), std::string(decoded.status().message()));
  FUZZ_REQUIRE(!is_kept || *decoded == text, "the tokens are another text");
  std::vector<int32_t> again;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = tokenizer.NextCut(text, begin + 1);
    FUZZ_REQUIRE(end > begin && end <= text.size(), "a cut outside the text");
    FUZZ_REQUIRE(tokenizer.Encode(absl::string_view(text).substr(begin, end - begin), again).ok(),
                 "a part of a text is refused");
    begin = end;
  }
  FUZZ_REQUIRE(again == tokens, "a cut changes the tokens");
}

}  // namespace

std::vector<std::string> TargetNames() { return {"tokenizer_json"}; }

}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::CheckTokenizer(causeway::fuzz::Input({data, size}));
  return 0;
}
