#include "worker/data/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/json_integer.h"
#include "common/files/limited_json.h"
#include "worker/data/characters.h"
#include "worker/data/token_shard.h"

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr size_t kMaxAddedTokenBytes = 1024;
// Numbers without a token cost memory: no real vocabulary has many.
constexpr int64_t kMaxMissingTokens = 65536;
constexpr size_t kShownBytes = 60;

using TokenNumbers = absl::flat_hash_map<std::string, int32_t>;

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// For messages: short, and valid UTF-8.
std::string Show(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kShownBytes) text = absl::StrCat(text.substr(0, kShownBytes), "...");
  return text;
}

// Null if there is no such key, or its value is null.
const json* Find(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string TypeOf(const json& component) {
  if (!component.is_object()) return "";
  const json* const type = Find(component, "type");
  return type != nullptr && type->is_string() ? type->get<std::string>() : "";
}

absl::StatusOr<bool> ReadFlag(const json& object, const char* key, bool otherwise) {
  const json* const value = Find(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return Refuse(key, " is ", Show(*value), ", not true or false");
  return value->get<bool>();
}

// Returns the parts of a component's Sequence, or the component alone.
std::vector<const json*> Components(const json* component, const char* list) {
  if (component == nullptr) return {};
  if (TypeOf(*component) != "Sequence") return {component};
  std::vector<const json*> components;
  const json* const members = Find(*component, list);
  if (members == nullptr || !members->is_array()) return {component};
  for (const json& member : *members) components.push_back(&member);
  return components;
}

// From characters back to bytes.
class ByteCharacters {
 public:
  ByteCharacters() {
    for (int byte = 0; byte < 256; ++byte) {
      const std::string character = ByteCharacter(static_cast<uint8_t>(byte));
      const CodePoint code_point =
          DecodeUtf8(character.data(), character.data() + character.size());
      byte_of_[code_point.value] = static_cast<uint8_t>(byte);
      known_[code_point.value] = true;
    }
  }
  // The bytes that a token of a vocabulary stands for; nullopt if it has a character that stands
  // for none.
  std::optional<std::string> Bytes(absl::string_view token) const {
    std::string bytes;
    const char* const end = token.data() + token.size();
    for (const char* at = token.data(); at < end;) {
      const CodePoint code_point = DecodeUtf8(at, end);
      if (code_point.bytes == 0 || code_point.value >= byte_of_.size() ||
          !known_[code_point.value]) {
        return std::nullopt;
      }
      bytes.push_back(static_cast<char>(byte_of_[code_point.value]));
      at += code_point.bytes;
    }
    return bytes;
  }

 private:
  std::array<uint8_t, 512> byte_of_ = {};
  std::array<bool, 512> known_ = {};
};

absl::Status ReadVocabulary(const json& model, ByteLevelBpe& bpe, TokenNumbers& numbers) {
  const json* const vocabulary = Find(model, "vocab");
  if (vocabulary == nullptr || !vocabulary->is_object()) {
    return Refuse("model.vocab is no object of tokens and their numbers");
  }
  int64_t largest = -1;
  for (const auto& [token, number] : vocabulary->items()) {
    int64_t value = -1;
    if (!ReadInteger(number, value) || value < 0 || value >= kMaxVocabulary) {
      return Refuse("model.vocab gives the token ", Show(token), " the number ", Show(number),
                    "; numbers are 0 to ", kMaxVocabulary - 1);
    }
    largest = std::max(largest, value);
    numbers.emplace(token, static_cast<int32_t>(value));
  }
  if (largest + 1 - static_cast<int64_t>(numbers.size()) > kMaxMissingTokens) {
    return Refuse("model.vocab has ", numbers.size(), " tokens and the number ", largest,
                  "; more than ", kMaxMissingTokens, " numbers are missing");
  }
  bpe.texts.assign(static_cast<size_t>(largest + 1), "");
  std::vector<bool> taken(bpe.texts.size());
  const ByteCharacters characters;
  for (const auto& [token, number] : numbers) {
    const auto at = static_cast<size_t>(number);
    if (taken[at]) return Refuse("model.vocab gives two tokens the number ", number);
    taken[at] = true;
    std::optional<std::string> bytes = characters.Bytes(token);
    if (bytes.has_value() && !bytes->empty()) bpe.word_tokens.push_back(number);
    bpe.texts[at] = bytes.has_value() ? *std::move(bytes) : token;
  }
  std::sort(bpe.word_tokens.begin(), bpe.word_tokens.end());
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = numbers.find(ByteCharacter(static_cast<uint8_t>(byte)));
    if (found == numbers.end()) {
      return Refuse("model.vocab has no token for byte ", byte,
                    "; only byte-level vocabularies, which have one for each byte, are supported");
    }
    bpe.byte_tokens[static_cast<size_t>(byte)] = found->second;
  }
  return absl::OkStatus();
}

// The two tokens of a merge, written as "a b" or ["a", "b"].
absl::StatusOr<std::pair<std::string, std::string>> ReadPair(const json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return Refuse("is ", Show(merge), R"(, neither "a b" nor ["a", "b"])");
}

absl::Status ReadMerges(const json& model, const TokenNumbers& numbers, ByteLevelBpe& bpe) {
  const json* const merges = Find(model, "merges");
  if (merges == nullptr || !merges->is_array()) return Refuse("model.merges is no list");
  bpe.merges.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); ++i) {
    const json& merge = (*merges)[i];
    if (merge.is_string() && merge.get_ref<const std::string&>().rfind("#version", 0) == 0) {
      continue;
    }
    const auto pair = ReadPair(merge);
    if (!pair.ok()) return Refuse("merge ", i, " of model.merges ", pair.status().message());
    std::array<int32_t, 3> tokens;
    size_t at = 0;
    for (const std::string& token : {pair->first, pair->second, pair->first + pair->second}) {
      const auto found = numbers.find(token);
      if (found == numbers.end()) {
        return Refuse("merge ", i, " of model.merges, ", Show(merge), ", needs the token ",
                      Show(token), ", which is not in model.vocab");
      }
      tokens[at++] = found->second;
    }
    bpe.merges.push_back({tokens[0], tokens[1], tokens[2]});
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const json& file, ByteLevelBpe& bpe, TokenNumbers& numbers) {
  const json* const model = Find(file, "model");
  if (model == nullptr || !model->is_object()) return Refuse("there is no model");
  const json* const type = Find(*model, "type");
  // Files of old versions do not name the type of BPE.
  if (type != nullptr ? *type != "BPE" : Find(*model, "merges") == nullptr) {
    return Refuse("the model is ", type != nullptr ? Show(*type) : "of no named type",
                  "; supported: BPE with a byte-level vocabulary");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json* const value = Find(*model, key);
    if (value != nullptr && *value != "") {
      return Refuse("model.", key, " is ", Show(*value), "; supported: none");
    }
  }
  const json* const dropout = Find(*model, "dropout");
  if (dropout != nullptr && *dropout != 0) {
    return Refuse("model.dropout is ", Show(*dropout), "; supported: none");
  }
  ASSIGN_OR_RETURN(bpe.ignore_merges, ReadFlag(*model, "ignore_merges", false));
  RETURN_IF_ERROR(ReadVocabulary(*model, bpe, numbers));
  return ReadMerges(*model, numbers, bpe);
}

absl::Status ReadNormalizer(const json& file, ByteLevelBpe& bpe) {
  for (const json* const normalizer : Components(Find(file, "normalizer"), "normalizers")) {
    if (TypeOf(*normalizer) != "NFC") {
      return Refuse("the normalizer is ", Show(*normalizer), "; supported: none, or NFC");
    }
    bpe.compose = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<SplitPattern> ReadSplit(const json& split) {
  const json* const pattern = Find(split, "pattern");
  const json* const expression =
      pattern != nullptr && pattern->is_object() ? Find(*pattern, "Regex") : nullptr;
  const json* const behavior = Find(split, "behavior");
  ASSIGN_OR_RETURN(const bool invert, ReadFlag(split, "invert", false));
  if (behavior == nullptr || *behavior != "Isolated" || invert) {
    return Refuse("its Split has the behavior ", behavior != nullptr ? Show(*behavior) : "null",
                  invert ? ", inverted" : "", "; supported: \"Isolated\", not inverted");
  }
  const std::optional<SplitPattern> known =
      expression != nullptr && expression->is_string()
          ? FindSplitPattern(expression->get_ref<const std::string&>())
          : std::nullopt;
  if (!known.has_value()) {
    return Refuse("it splits by\n", pattern != nullptr ? pattern->dump(-1, ' ', true) : "nothing",
                  "\nSupported are the expressions of GPT-2, Llama 3 and Qwen:\n",
                  KnownSplitPatterns());
  }
  return *known;
}

absl::Status ReadPreTokenizer(const json& file, ByteLevelBpe& bpe) {
  constexpr char kSupported[] =
      "supported: ByteLevel, or a Sequence of Split and ByteLevel without use_regex";
  const json* const pre_tokenizer = Find(file, "pre_tokenizer");
  const std::vector<const json*> components = Components(pre_tokenizer, "pretokenizers");
  if (components.empty() || components.size() > 2 || TypeOf(*components.back()) != "ByteLevel") {
    return Refuse("the pre_tokenizer is ",
                  pre_tokenizer != nullptr ? Show(*pre_tokenizer) : "missing", "; ", kSupported);
  }
  const json& byte_level = *components.back();
  ASSIGN_OR_RETURN(bpe.add_prefix_space, ReadFlag(byte_level, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool use_regex, ReadFlag(byte_level, "use_regex", true));
  bpe.pattern = use_regex ? SplitPattern::kGpt2 : SplitPattern::kNone;
  if (components.size() == 1) return absl::OkStatus();
  if (TypeOf(*components.front()) != "Split" || use_regex || bpe.add_prefix_space) {
    return Refuse("the pre_tokenizer's Sequence is ", Show(*components.front()), " and ",
                  Show(byte_level), "; ", kSupported, " and add_prefix_space");
  }
  const absl::StatusOr<SplitPattern> pattern = ReadSplit(*components.front());
  if (!pattern.ok()) return Refuse("the pre_tokenizer: ", pattern.status().message());
  bpe.pattern = *pattern;
  return absl::OkStatus();
}

absl::StatusOr<AddedToken> ReadAddedToken(const json& entry) {
  AddedToken token;
  const json* const id = entry.is_object() ? Find(entry, "id") : nullptr;
  const json* const content = entry.is_object() ? Find(entry, "content") : nullptr;
  if (id == nullptr || !ReadInteger(*id, token.token) || token.token < 0 || content == nullptr ||
      !content->is_string()) {
    return Refuse("is ", Show(entry), R"(; expected {"id": number, "content": text, ...})");
  }
  token.text = content->get<std::string>();
  if (token.text.empty() || token.text.size() > kMaxAddedTokenBytes) {
    return Refuse("has a text of ", token.text.size(), " bytes; expected 1 to ",
                  kMaxAddedTokenBytes);
  }
  ASSIGN_OR_RETURN(token.special, ReadFlag(entry, "special", false));
  ASSIGN_OR_RETURN(token.normalized, ReadFlag(entry, "normalized", !token.special));
  ASSIGN_OR_RETURN(token.single_word, ReadFlag(entry, "single_word", false));
  ASSIGN_OR_RETURN(token.strip_left, ReadFlag(entry, "lstrip", false));
  ASSIGN_OR_RETURN(token.strip_right, ReadFlag(entry, "rstrip", false));
  return token;
}

absl::Status ReadAddedTokens(const json& file, ByteLevelBpe& bpe, TokenNumbers& numbers) {
  const json* const list = Find(file, "added_tokens");
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array()) return Refuse("added_tokens is no list");
  // Hugging Face's library would give a new token this number, whatever the file says.
  auto free_number = static_cast<int64_t>(numbers.size());
  absl::flat_hash_set<std::string> added;
  for (size_t i = 0; i < list->size(); ++i) {
    absl::StatusOr<AddedToken> token = ReadAddedToken((*list)[i]);
    if (!token.ok()) return Refuse("entry ", i, " of added_tokens ", token.status().message());
    const std::string shown = Show(json(token->text));
    if (!added.insert(token->text).second) {
      return Refuse("added_tokens names ", shown, " twice");
    }
    const auto known = numbers.find(token->text);
    const int64_t expected = known != numbers.end() ? known->second : free_number;
    if (token->token != expected) {
      return Refuse("added_tokens gives ", shown, " the number ", token->token, "; expected ",
                    expected, ", ",
                    known != numbers.end() ? "as in model.vocab" : "the next without a gap");
    }
    if (known == numbers.end() && expected < static_cast<int64_t>(bpe.texts.size())) {
      return Refuse("added_tokens gives ", shown, " the number ", expected,
                    ", which may be another token's: model.vocab leaves numbers out");
    }
    if (known == numbers.end()) {
      numbers.emplace(token->text, token->token);
      bpe.texts.push_back(token->text);
      ++free_number;
    } else {
      bpe.texts[static_cast<size_t>(token->token)] = token->text;
    }
    bpe.added_tokens.push_back(*std::move(token));
  }
  return absl::OkStatus();
}

// Reads what a template puts before and after a single text.
void ReadTemplate(const json& file, const TokenNumbers& numbers, ByteLevelBpe& bpe) {
  for (const json* const processor : Components(Find(file, "post_processor"), "processors")) {
    if (TypeOf(*processor) != "TemplateProcessing") continue;
    const json* const single = Find(*processor, "single");
    if (single == nullptr || !single->is_array()) continue;
    bool before = true;
    for (const json& part : *single) {
      if (!part.is_object()) continue;
      if (Find(part, "Sequence") != nullptr) before = false;
      const json* const special = Find(part, "SpecialToken");
      if (special == nullptr || !special->is_object()) continue;
      const json* const id = Find(*special, "id");
      if (id == nullptr || !id->is_string()) continue;
      const auto found = numbers.find(id->get_ref<const std::string&>());
      if (found == numbers.end()) continue;
      (before ? bpe.begin_of_text : bpe.end_of_text) = found->second;
    }
  }
}

absl::Status CheckDecoder(const json& file) {
  for (const json* const decoder : Components(Find(file, "decoder"), "decoders")) {
    if (TypeOf(*decoder) != "ByteLevel") {
      return Refuse("the decoder is ", Show(*decoder), "; supported: ByteLevel");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ByteCharacter(uint8_t byte) {
  const auto stands_for_itself = [](uint32_t b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  uint32_t code_point = byte;
  if (!stands_for_itself(byte)) {
    code_point = 0x100;
    for (uint32_t b = 0; b < byte; ++b) code_point += stands_for_itself(b) ? 0 : 1;
  }
  std::string character;
  AppendUtf8(code_point, character);
  return character;
}

absl::StatusOr<ByteLevelBpe> ParseTokenizerJson(absl::string_view text) {
  ASSIGN_OR_RETURN(const json file, ParseLimitedJson(text));
  if (!file.is_object()) return Refuse("a tokenizer.json is an object, this is ", Show(file));
  ByteLevelBpe bpe;
  TokenNumbers numbers;
  // Quick refusals come first.
  RETURN_IF_ERROR(ReadNormalizer(file, bpe));
  RETURN_IF_ERROR(ReadPreTokenizer(file, bpe));
  RETURN_IF_ERROR(CheckDecoder(file));
  RETURN_IF_ERROR(ReadModel(file, bpe, numbers));
  RETURN_IF_ERROR(ReadAddedTokens(file, bpe, numbers));
  ReadTemplate(file, numbers, bpe);
  return bpe;
}

}  // namespace causeway::worker
