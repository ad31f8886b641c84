#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/files/limited_json.h"
#include "worker/data/bpe_tokenizer.h"
#include "worker/data/sentencepiece_tokenizer.h"
#include "worker/data/tokenizer.h"
#include "worker/data/tokenizer_json.h"

namespace causeway::worker {
namespace {

constexpr char kTokenizerJson[] = "tokenizer.json";
constexpr char kSentencePieceModel[] = "tokenizer.model";
constexpr size_t kMaxModelBytes = size_t{256} << 20;

// eos_token of a tokenizer_config.json: a text, or an object with "content". Empty: none.
absl::StatusOr<std::string> ReadEndOfText(FileSystem& file_system, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  const absl::StatusOr<nlohmann::json> config = ParseLimitedJson(text);
  if (!config.ok()) return Annotate(config.status(), path);
  if (!config->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, " is no object"));
  auto found = config->find("eos_token");
  if (found == config->end()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_object()) return "";
  const auto content = found->find("content");
  return content != found->end() && content->is_string() ? content->get<std::string>() : "";
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(FileSystem& file_system,
                                                             const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  absl::StatusOr<ByteLevelBpe> bpe = ParseTokenizerJson(text);
  if (!bpe.ok()) return Annotate(bpe.status(), absl::StrCat(path, " cannot be used"));
  auto tokenizer =
      std::make_unique<BpeTokenizer>(*std::move(bpe), path, HashToHex(Checksum64(text)));
  const std::string config = JoinPath(ParentFolder(path), kTokenizerConfigName);
  if (file_system.Exists(config)) {
    ASSIGN_OR_RETURN(const std::string end_of_text, ReadEndOfText(file_system, config));
    const std::optional<int32_t> token = tokenizer->FindToken(end_of_text);
    if (token.has_value()) tokenizer->set_end_of_text(*token);
  }
  return tokenizer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(FileSystem& file_system,
                                                         const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  if (file_system.IsFolder(name)) {
    for (const char* const file : {kTokenizerJson, kSentencePieceModel}) {
      const std::string path = JoinPath(name, file);
      if (file_system.Exists(path)) return LoadTokenizer(file_system, path);
    }
    return absl::NotFoundError(absl::StrCat("there is neither a ", kTokenizerJson, " nor a ",
                                            kSentencePieceModel, " in ", name));
  }
  if (absl::EndsWith(name, ".json")) return LoadTokenizerJson(file_system, name);
  if (absl::EndsWith(name, ".model")) {
    ASSIGN_OR_RETURN(const std::string model, file_system.ReadFile(name));
    if (model.size() > kMaxModelBytes) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has ", model.size(),
                                                     " bytes; a SentencePiece model has at most ",
                                                     kMaxModelBytes));
    }
    return MakeSentencePieceTokenizer(model, name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no tokenizer \"", name,
                   "\"; known: bytes, the path of a tokenizer.json (byte-level BPE) or of a "
                   "SentencePiece *.model, or a folder that holds one"));
}

}  // namespace causeway::worker
