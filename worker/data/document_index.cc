#include "worker/data/document_index.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/files/safetensors.h"
#include "nlohmann/json.hpp"

namespace causeway::worker {
namespace {

constexpr char kStarts[] = "starts";
constexpr char kTokens[] = "tokens";

}  // namespace

absl::StatusOr<DocumentIndex> DocumentIndex::Create(std::vector<int64_t> starts, int64_t tokens) {
  const bool ascends = std::adjacent_find(starts.begin(), starts.end(),
                                          std::greater_equal<int64_t>()) == starts.end();
  if (starts.empty() || starts.front() != 0 || !ascends || starts.back() >= tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "documents must begin at 0, then at ascending positions below ", tokens, " tokens"));
  }
  DocumentIndex index;
  index.starts_ = std::move(starts);
  index.tokens_ = tokens;
  return index;
}

absl::StatusOr<DocumentIndex> DocumentIndex::Read(FileSystem& file_system, const std::string& path,
                                                  int64_t tokens) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(file_system, path);
  if (!file.ok()) return Annotate(file.status(), "make the data again");
  const auto found = file->tensors().find(kStarts);
  if (found == file->tensors().end() || found->second.dtype != "I64") {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no tensor \"", kStarts, "\" (I64)"));
  }
  const auto promised = file->metadata().find(kTokens);
  const std::string text = promised == file->metadata().end() ? "unknown" : promised->second;
  if (text != absl::StrCat(tokens)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is of ", Printable(text.substr(0, 20)),
                                                   " tokens, the shards hold ", tokens,
                                                   "; copy or make the data again"));
  }
  const std::span<const uint8_t> bytes = found->second.bytes;
  std::vector<int64_t> starts(bytes.size() / sizeof(int64_t));
  std::memcpy(starts.data(), bytes.data(), bytes.size());
  absl::StatusOr<DocumentIndex> index = Create(std::move(starts), tokens);
  if (!index.ok()) return Annotate(index.status(), path);
  return index;
}

absl::Status DocumentIndex::Write(FileSystem& file_system, const std::string& path) const {
  const size_t bytes = starts_.size() * sizeof(int64_t);
  const nlohmann::ordered_json header = {
      {"__metadata__", {{kTokens, absl::StrCat(tokens_)}}},
      {kStarts, {{"dtype", "I64"}, {"shape", {starts_.size()}}, {"data_offsets", {0, bytes}}}}};
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const auto size = static_cast<uint64_t>(text.size());
  std::vector<uint8_t> content(sizeof(size) + text.size() + bytes);
  std::memcpy(content.data(), &size, sizeof(size));
  std::memcpy(content.data() + sizeof(size), text.data(), text.size());
  std::memcpy(content.data() + sizeof(size) + text.size(), starts_.data(), bytes);
  return WriteFileAtomically(file_system, path, std::span<const uint8_t>(content));
}

void DocumentIndex::Fill(int64_t begin, std::span<int32_t> out) const {
  // The first document that begins after `begin`.
  auto next = std::upper_bound(starts_.begin(), starts_.end(), begin);
  int32_t start = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (next != starts_.end() && *next == begin + static_cast<int64_t>(i)) {
      start = static_cast<int32_t>(i);
      ++next;
    }
    out[i] = start;
  }
}

}  // namespace causeway::worker
