#include "worker/data/data_json.h"

#include <algorithm>

#include "common/files/json.h"
#include "nlohmann/json.hpp"

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
// A million shards are a hundred trillion tokens.
constexpr JsonLimits kLimits = {.bytes = size_t{64} << 20, .depth = 4, .values = 2'000'000};

absl::Status CheckNames(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.empty() || name.find('/') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is not the name of a file in the same folder"));
    }
  }
  return absl::OkStatus();
}

// The members of the outermost object, each by its name and type. Remembers the first that is
// missing or of another type.
class Members {
 public:
  explicit Members(const json& object) : object_(object) {}

  const absl::Status& status() const { return status_; }

  void Read(const char* name, std::string& out, bool required = true) {
    const json* const value = Find(name, required);
    if (value == nullptr) return;
    if (!value->is_string()) return Refuse(name, "a text");
    out = value->get<std::string>();
  }
  void Read(const char* name, int64_t& out, bool required = true) {
    const json* const value = Find(name, required);
    if (value != nullptr && !ReadInteger(*value, out)) Refuse(name, "an integer");
  }
  void Read(const char* name, double& out) {
    const json* const value = Find(name, /*required=*/true);
    if (value == nullptr) return;
    if (!value->is_number()) return Refuse(name, "a number");
    out = value->get<double>();
  }
  void Read(const char* name, std::vector<std::string>& out) {
    const json* const value = Find(name, /*required=*/true);
    if (value == nullptr) return;
    const auto is_text = [](const json& entry) { return entry.is_string(); };
    if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_text)) {
      return Refuse(name, "a list of texts");
    }
    for (const json& entry : *value) out.push_back(entry.get<std::string>());
  }

 private:
  const json* Find(const char* name, bool required) {
    const auto found = object_.find(name);
    if (found != object_.end()) return &*found;
    if (required) Refuse(name, "there");
    return nullptr;
  }
  void Refuse(const char* name, absl::string_view expected) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat("its ", name, " is not ", expected));
  }

  const json& object_;
  absl::Status status_;
};

absl::StatusOr<DataDescription> Parse(const std::string& text) {
  ASSIGN_OR_RETURN(const json object, ParseLimitedJson(text, kLimits));
  if (!object.is_object()) return absl::InvalidArgumentError("it is no JSON object");
  Members members(object);
  int64_t format = 0;
  members.Read("format", format);
  RETURN_IF_ERROR(members.status());
  if (format != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("its format is ", format, "; this program reads ", kFormat));
  }
  DataDescription description;
  members.Read("tokenizer", description.tokenizer);
  members.Read("held_out_fraction", description.held_out_fraction);
  members.Read("vocabulary_size", description.vocabulary_size);
  members.Read("train_tokens", description.train_tokens);
  members.Read("held_out_tokens", description.held_out_tokens);
  members.Read("documents", description.documents);
  members.Read("bytes", description.bytes);
  members.Read("train_shards", description.train_shards);
  members.Read("held_out_shards", description.held_out_shards);
  members.Read("sources", description.sources);
  // Older files lack these.
  std::string shard_format = ShardFormatName(ShardFormat::kLlmC);
  members.Read("held_out_bytes", description.held_out_bytes, /*required=*/false);
  members.Read("train_documents", description.train_documents, /*required=*/false);
  members.Read("held_out_documents", description.held_out_documents, /*required=*/false);
  members.Read("shard_format", shard_format, /*required=*/false);
  RETURN_IF_ERROR(members.status());
  ASSIGN_OR_RETURN(description.shard_format, ParseShardFormat(shard_format));
  for (const std::string& name : {description.train_documents, description.held_out_documents}) {
    if (!name.empty()) RETURN_IF_ERROR(CheckNames({name}));
  }
  if (description.tokenizer != "bytes") RETURN_IF_ERROR(CheckNames({description.tokenizer}));
  RETURN_IF_ERROR(CheckNames(description.train_shards));
  RETURN_IF_ERROR(CheckNames(description.held_out_shards));
  if (description.vocabulary_size < 1 || description.vocabulary_size > kMaxVocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat("a vocabulary of ", description.vocabulary_size, " tokens is impossible"));
  }
  return description;
}

}  // namespace

absl::Status WriteDataJson(FileSystem& file_system, const std::string& folder,
                           const DataDescription& description) {
  const nlohmann::ordered_json json = {
      {"format", kFormat},
      {"tokenizer", description.tokenizer},
      {"vocabulary_size", description.vocabulary_size},
      {"held_out_fraction", description.held_out_fraction},
      {"train_tokens", description.train_tokens},
      {"held_out_tokens", description.held_out_tokens},
      {"train_shards", description.train_shards},
      {"held_out_shards", description.held_out_shards},
      {"sources", description.sources},
      {"documents", description.documents},
      {"bytes", description.bytes},
      {"held_out_bytes", description.held_out_bytes},
      {"shard_format", ShardFormatName(description.shard_format)},
      {"train_documents", description.train_documents},
      {"held_out_documents", description.held_out_documents},
  };
  // A path need not be UTF-8; what is not is replaced, not thrown.
  const std::string text =
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return WriteFileAtomically(file_system, JoinPath(folder, kDataJsonName),
                             absl::string_view(absl::StrCat(text, "\n")));
}

absl::StatusOr<DataDescription> ReadDataJson(FileSystem& file_system, const std::string& folder) {
  const std::string path = JoinPath(folder, kDataJsonName);
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  absl::StatusOr<DataDescription> description = Parse(text);
  if (!description.ok()) {
    return Annotate(description.status(), absl::StrCat(path,
                                                       " is damaged; make the data again with "
                                                       "`causeway-worker tokenize`"));
  }
  return description;
}

}  // namespace causeway::worker
