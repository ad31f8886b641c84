// data.json: what a folder of shards holds, for people and for Dataset::Open. The Python package
// writes more about what went in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "worker/data/token_shard.h"

namespace causeway::worker {

inline constexpr char kDataJsonName[] = "data.json";

struct DataDescription {
  // "bytes", or the name of the tokenizer's file, which lies in the folder too.
  std::string tokenizer;
  int64_t vocabulary_size = 0;
  double held_out_fraction = 0;
  int64_t train_tokens = 0;
  int64_t held_out_tokens = 0;
  std::vector<std::string> train_shards;  // Names within the folder, in order.
  std::vector<std::string> held_out_shards;
  std::vector<std::string> sources;  // The corpus, as it was named.
  int64_t documents = 0;
  int64_t bytes = 0;           // Size of the text.
  int64_t held_out_bytes = 0;  // Of that, held out; 0 in older files.
  ShardFormat shard_format = ShardFormat::kLlmC;
  std::string train_documents;  // Names of DocumentIndex files; empty: there is none.
  std::string held_out_documents;
};

absl::Status WriteDataJson(FileSystem& file_system, const std::string& folder,
                           const DataDescription& description);

// INVALID_ARGUMENT, naming the file, for what is missing or of another type.
absl::StatusOr<DataDescription> ReadDataJson(FileSystem& file_system, const std::string& folder);

}  // namespace causeway::worker
