#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/files/json_integer.h"
#include "common/files/limited_json.h"
#include "worker/data/bpe_tokenizer.h"
#include "worker/data/sentencepiece_tokenizer.h"
#include "worker/data/tokenizer.h"
#include "worker/data/tokenizer_json.h"

namespace causeway::worker {
namespace {

constexpr char kTokenizerJson[] = "tokenizer.json";
constexpr char kSentencePieceModel[] = "tokenizer.model";
constexpr const char* kFilesBeside[] = {"added_tokens.json", "special_tokens_map.json",
                                        kTokenizerConfigName};
constexpr size_t kMaxModelBytes = size_t{256} << 20;

absl::StatusOr<nlohmann::json> ReadJsonFile(FileSystem& file_system, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  absl::StatusOr<nlohmann::json> content = ParseLimitedJson(text);
  if (!content.ok()) return Annotate(content.status(), path);
  if (!content->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no object"));
  }
  return content;
}

// A token that is given as its text, or as an object with "content". Empty: none is.
std::string TokenText(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return "";
  const auto content = value.find("content");
  return content != value.end() && content->is_string() ? content->get<std::string>() : "";
}

// That the files beside a tokenizer are what their names say, whether or not it can be used itself.
absl::Status CheckReadable(FileSystem& file_system, const std::string& folder) {
  for (const char* const name : kFilesBeside) {
    const std::string path = JoinPath(folder, name);
    if (file_system.Exists(path)) RETURN_IF_ERROR(file_system.ReadFile(path).status());
  }
  return absl::OkStatus();
}

// transformers adds the tokens of the files beside a tokenizer to those that it has. Here they must
// be among these already, with their numbers.
class FilesBeside {
 public:
  using Find = std::function<std::optional<int32_t>(const std::string& text)>;
  // `find` looks for such a token in the tokenizer, the file `path`.
  FilesBeside(FileSystem& file_system, std::string path, Find find)
      : file_system_(file_system),
        path_(std::move(path)),
        folder_(ParentFolder(path_)),
        find_(std::move(find)) {}

  // Reads all of them. Sets end_of_text() where tokenizer_config.json names one.
  absl::Status Check() {
    RETURN_IF_ERROR(CheckAddedTokens());
    for (const char* const name : {"special_tokens_map.json", kTokenizerConfigName}) {
      const std::string path = JoinPath(folder_, name);
      if (!file_system_.Exists(path)) continue;
      ASSIGN_OR_RETURN(const nlohmann::json content, ReadJsonFile(file_system_, path));
      RETURN_IF_ERROR(CheckSpecialTokens(content, path));
    }
    return absl::OkStatus();
  }

  std::optional<int32_t> end_of_text() const { return end_of_text_; }

  // Of tokenizer_config.json, if it says so. After Check.
  std::optional<bool> Flag(const char* name) const {
    const auto found = config_.find(name);
    return found != config_.end() && found->is_boolean() ? std::optional(found->get<bool>())
                                                         : std::nullopt;
  }
  const nlohmann::json& config() const { return config_; }
  absl::Status Refuse(absl::string_view field, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(JoinPath(folder_, kTokenizerConfigName), ": ", field, " ", what));
  }

 private:
  absl::Status CheckToken(const std::string& text, std::optional<int64_t> number,
                          absl::string_view where) const {
    const std::optional<int32_t> known = find_(text);
    if (known.has_value() && (!number.has_value() || *number == *known)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        where, " has the token \"", Printable(text.substr(0, 100)), "\"",
        number.has_value() ? absl::StrCat(" with the number ", *number) : "", ", which ",
        known.has_value() ? absl::StrCat("has the number ", *known) : "is not one", " in ", path_,
        ": tokens are not added to a tokenizer here. Save it whole as a tokenizer.json"));
  }

  absl::Status CheckAddedTokens() const {
    const std::string path = JoinPath(folder_, "added_tokens.json");
    if (!file_system_.Exists(path)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const nlohmann::json content, ReadJsonFile(file_system_, path));
    for (const auto& [text, number] : content.items()) {
      int64_t value = -1;
      if (!ReadInteger(number, value)) {
        return absl::InvalidArgumentError(absl::StrCat(path, " is no list of tokens and numbers"));
      }
      RETURN_IF_ERROR(CheckToken(text, value, path));
    }
    return absl::OkStatus();
  }

  absl::Status CheckSpecialTokens(const nlohmann::json& content, const std::string& path) {
    for (const auto& [field, value] : content.items()) {
      const std::string where = absl::StrCat(path, ": ", field.substr(0, 50));
      if (field == "added_tokens_decoder" && value.is_object()) {
        for (const auto& [number, token] : value.items()) {
          int64_t wanted = -1;
          if (!absl::SimpleAtoi(number, &wanted)) wanted = -1;
          RETURN_IF_ERROR(CheckToken(TokenText(token), wanted, where));
        }
      } else if (field == "additional_special_tokens" || field == "extra_special_tokens") {
        for (const nlohmann::json& token : value) {
          const std::string text = TokenText(token);
          if (!text.empty()) RETURN_IF_ERROR(CheckToken(text, std::nullopt, where));
        }
      } else if (absl::EndsWith(field, "_token") && !TokenText(value).empty()) {
        RETURN_IF_ERROR(CheckToken(TokenText(value), std::nullopt, where));
        if (field != "eos_token") continue;
        const std::optional<int32_t> end = find_(TokenText(value));
        if (end_of_text_.has_value() && end != end_of_text_) {
          return absl::InvalidArgumentError(
              absl::StrCat(where, " is not the eos_token of special_tokens_map.json beside it"));
        }
        end_of_text_ = end;
      }
    }
    if (absl::EndsWith(path, kTokenizerConfigName)) config_ = content;
    return absl::OkStatus();
  }

  FileSystem& file_system_;
  const std::string path_;
  const std::string folder_;
  const Find find_;
  nlohmann::json config_ = nlohmann::json::object();
  std::optional<int32_t> end_of_text_;
};

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(FileSystem& file_system,
                                                             const std::string& path) {
  RETURN_IF_ERROR(CheckReadable(file_system, ParentFolder(path)));
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  absl::StatusOr<ByteLevelBpe> bpe = ParseTokenizerJson(text);
  if (!bpe.ok()) return Annotate(bpe.status(), absl::StrCat(path, " cannot be used"));
  const bool prefix_space = bpe->add_prefix_space;
  absl::flat_hash_map<std::string, int32_t> added;
  for (const AddedToken& token : bpe->added_tokens) added.emplace(token.text, token.token);
  auto tokenizer =
      std::make_unique<BpeTokenizer>(*std::move(bpe), path, HashToHex(Checksum64(text)));
  FilesBeside beside(file_system, path, [&](const std::string& token) {
    const auto found = added.find(token);
    return found == added.end() ? std::nullopt : std::optional(found->second);
  });
  RETURN_IF_ERROR(beside.Check());
  if (beside.Flag("add_prefix_space").value_or(prefix_space) != prefix_space) {
    return beside.Refuse("add_prefix_space",
                         absl::StrCat("is not what ", path, " says, and transformers takes it"));
  }
  if (beside.end_of_text().has_value()) tokenizer->set_end_of_text(*beside.end_of_text());
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(FileSystem& file_system,
                                                             const std::string& path) {
  RETURN_IF_ERROR(CheckReadable(file_system, ParentFolder(path)));
  ASSIGN_OR_RETURN(const std::string model, file_system.ReadFile(path));
  if (model.size() > kMaxModelBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has ", model.size(), " bytes; a SentencePiece model has at most ", kMaxModelBytes));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, MakeSentencePieceTokenizer(model, path));
  FilesBeside beside(file_system, path,
                     [&](const std::string& token) { return tokenizer->FindToken(token); });
  RETURN_IF_ERROR(beside.Check());
  if (beside.end_of_text().has_value() && beside.end_of_text() != tokenizer->end_of_text()) {
    return beside.Refuse("eos_token", absl::StrCat("is not the one that ", path, " has"));
  }
  // Others number the pieces anew, or change the text before.
  const auto found = beside.config().find("tokenizer_class");
  const std::string name = found == beside.config().end() ? "" : TokenText(*found);
  constexpr const char* kClasses[] = {"",
                                      "LlamaTokenizer",
                                      "LlamaTokenizerFast",
                                      "GemmaTokenizer",
                                      "GemmaTokenizerFast",
                                      "PreTrainedTokenizerFast"};
  if (std::ranges::find(kClasses, name) == std::end(kClasses)) {
    return beside.Refuse("tokenizer_class",
                         absl::StrCat("is \"", Printable(name.substr(0, 100)),
                                      "\", which is not supported with a SentencePiece model"));
  }
  if (!beside.Flag("add_prefix_space").value_or(true)) {
    return beside.Refuse("add_prefix_space", "is false, which is not supported");
  }
  for (const char* const field : {"do_lower_case", "split_by_punct", "sp_model_kwargs"}) {
    const auto set = beside.config().find(field);
    if (set == beside.config().end() || set->is_null() || *set == false || set->empty()) continue;
    return beside.Refuse(field, "is set, which is not supported");
  }
  return tokenizer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(FileSystem& file_system,
                                                         const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  if (file_system.IsFolder(name)) {
    const std::string model = JoinPath(name, kSentencePieceModel);
    const bool has_model = file_system.Exists(model);
    const std::string json = JoinPath(name, kTokenizerJson);
    if (file_system.Exists(json)) {
      auto tokenizer = LoadTokenizerJson(file_system, json);
      if (tokenizer.ok() || !has_model) return tokenizer;
      return absl::Status(tokenizer.status().code(),
                          absl::StrCat(tokenizer.status().message(),
                                       ". There is a SentencePiece model, too: if both make the "
                                       "same tokens, as Llama 2's do, give --tokenizer=",
                                       model));
    }
    if (has_model) return LoadSentencePiece(file_system, model);
    return absl::NotFoundError(absl::StrCat("there is neither a ", kTokenizerJson, " nor a ",
                                            kSentencePieceModel, " in ", name));
  }
  if (absl::EndsWith(name, ".json")) return LoadTokenizerJson(file_system, name);
  if (absl::EndsWith(name, ".model")) return LoadSentencePiece(file_system, name);
  return absl::InvalidArgumentError(
      absl::StrCat("there is no tokenizer \"", name,
                   "\"; known: bytes, the path of a tokenizer.json (byte-level BPE) or of a "
                   "SentencePiece *.model, or a folder that holds one"));
}

}  // namespace causeway::worker
