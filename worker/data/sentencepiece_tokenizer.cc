#include "worker/data/sentencepiece_tokenizer.h"

#include <dlfcn.h>

#include <filesystem>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "worker/data/sentencepiece_library.h"
#include "worker/data/token_shard.h"

namespace causeway::worker {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<const SentencePieceLibrary> library, std::string name,
                         std::string hash)
      : library_(std::move(library)), name_(std::move(name)), hash_(std::move(hash)) {}

  std::string name() const override { return name_; }
  std::string hash() const override { return hash_; }
  int64_t vocabulary_size() const override { return library_->size(); }
  std::optional<int32_t> begin_of_text() const override { return IfAny(library_->bos_id()); }
  std::optional<int32_t> end_of_text() const override { return IfAny(library_->eos_id()); }

  std::optional<int32_t> FindToken(absl::string_view name) const override {
    const int id = library_->IdOf({name.data(), name.size()});
    if (library_->PieceOf(id) != std::string(name)) return std::nullopt;
    return id;
  }

  absl::Status Encode(absl::string_view text, std::vector<int32_t>& tokens) const override {
    const std::string error = library_->Encode({text.data(), text.size()}, tokens);
    return error.empty() ? absl::OkStatus() : Refuse(error);
  }

  absl::StatusOr<std::string> Decode(std::span<const int32_t> tokens) const override {
    for (const int32_t token : tokens) {
      if (token >= 0 && token < vocabulary_size()) continue;
      return Refuse(absl::StrCat("token ", token, " is not in the vocabulary of ",
                                 vocabulary_size(), " tokens"));
    }
    std::string text;
    const std::string error = library_->Decode(tokens, text);
    if (!error.empty()) return Refuse(error);
    return text;
  }

 private:
  static std::optional<int32_t> IfAny(int id) {
    return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
  }

  absl::Status Refuse(absl::string_view reason) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": ", reason));
  }

  const std::unique_ptr<const SentencePieceLibrary> library_;
  const std::string name_;
  const std::string hash_;
};

#ifndef CAUSEWAY_WITHOUT_DEEPBIND
// Where it was built, or where it was installed. Empty if it is in neither place.
std::string FindPlugin() {
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {".", "../lib/causeway"}) {
    const std::filesystem::path path = (folder / place / kSentencePiecePlugin).lexically_normal();
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return "";
}
#endif

// Stays open for the life of the process.
absl::StatusOr<SentencePieceLoader> OpenPlugin() {
#ifdef CAUSEWAY_WITHOUT_DEEPBIND
  return absl::UnimplementedError(
      "SentencePiece models cannot be read by a program that was built with sanitizers");
#else
  const std::string path = FindPlugin();
  if (path.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("SentencePiece models need ", kSentencePiecePlugin,
                     " beside the program or in ../lib/causeway from there, and it is in neither; "
                     "install it, or build it anew"));
  }
  void* const plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (plugin == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "SentencePiece models need ", path, ", and Debian's libsentencepiece: ", dlerror()));
  }
  const auto loader = reinterpret_cast<SentencePieceLoader>(dlsym(plugin, kSentencePieceLoader));
  if (loader != nullptr) return loader;
  return absl::FailedPreconditionError(
      absl::StrCat(path, " has no function ", kSentencePieceLoader, "; build it anew"));
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(absl::string_view model,
                                                                      std::string name) {
  static const absl::StatusOr<SentencePieceLoader> loader = OpenPlugin();
  if (!loader.ok()) return Annotate(loader.status(), name);
  std::string error;
  std::unique_ptr<const SentencePieceLibrary> library(
      (*loader)(model.data(), model.size(), &error));
  if (library == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is no SentencePiece model: ", error));
  }
  const int64_t size = library->size();
  if (size < 1 || size > kMaxVocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", size, " pieces; expected 1 to ", kMaxVocabulary));
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(library), std::move(name),
                                                  HashToHex(Checksum64(model)));
}

}  // namespace causeway::worker
