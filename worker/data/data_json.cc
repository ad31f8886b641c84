#include "worker/data/data_json.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/json_integer.h"
#include "worker/data/token_shard.h"

namespace causeway::worker {
namespace {

constexpr int kFormat = 1;

absl::Status CheckNames(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.empty() || name.find('/') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is not the name of a file in the same folder"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<DataDescription> Parse(const std::string& text) {
  // The library throws; nothing thrown leaves this function.
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    int format = 0;
    if (!ReadInteger(json.at("format"), format) || format != kFormat) {
      return absl::InvalidArgumentError(absl::StrCat("its format is ", json.at("format").dump(),
                                                     "; this program reads ", kFormat));
    }
    DataDescription description;
    json.at("tokenizer").get_to(description.tokenizer);
    json.at("held_out_fraction").get_to(description.held_out_fraction);
    for (const auto& [field, out] :
         {std::pair("vocabulary_size", &description.vocabulary_size),
          std::pair("train_tokens", &description.train_tokens),
          std::pair("held_out_tokens", &description.held_out_tokens),
          std::pair("documents", &description.documents), std::pair("bytes", &description.bytes)}) {
      if (!ReadInteger(json.at(field), *out)) {
        return absl::InvalidArgumentError(
            absl::StrCat("its ", field, " is no integer: ", json.at(field).dump()));
      }
    }
    json.at("train_shards").get_to(description.train_shards);
    json.at("held_out_shards").get_to(description.held_out_shards);
    json.at("sources").get_to(description.sources);
    // What older files do not have.
    description.tokenizer_hash = json.value("tokenizer_hash", "");
    description.train_documents = json.value("train_documents", "");
    description.held_out_documents = json.value("held_out_documents", "");
    ASSIGN_OR_RETURN(description.shard_format,
                     ParseShardFormat(json.value("shard_format", "llmc")));
    for (const auto& [field, out] : {std::pair("separator", &description.separator),
                                     std::pair("refused_lines", &description.refused_lines)}) {
      if (json.contains(field) && !ReadInteger(json.at(field), *out)) {
        return absl::InvalidArgumentError(
            absl::StrCat("its ", field, " is no integer: ", json.at(field).dump()));
      }
    }
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
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace

absl::Status WriteDataJson(FileSystem& file_system, const std::string& folder,
                           const DataDescription& description) {
  const nlohmann::ordered_json json = {
      {"format", kFormat},
      {"tokenizer", description.tokenizer},
      {"tokenizer_hash", description.tokenizer_hash},
      {"vocabulary_size", description.vocabulary_size},
      {"held_out_fraction", description.held_out_fraction},
      {"train_tokens", description.train_tokens},
      {"held_out_tokens", description.held_out_tokens},
      {"train_shards", description.train_shards},
      {"held_out_shards", description.held_out_shards},
      {"sources", description.sources},
      {"documents", description.documents},
      {"bytes", description.bytes},
      {"shard_format", ShardFormatName(description.shard_format)},
      {"separator", description.separator},
      {"train_documents", description.train_documents},
      {"held_out_documents", description.held_out_documents},
      {"refused_lines", description.refused_lines},
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
