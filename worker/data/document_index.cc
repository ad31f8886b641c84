#include "worker/data/document_index.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/array_file.h"
#include "common/files/json_integer.h"

namespace causeway::worker {
namespace {

constexpr ArrayFileKind kKind = {'C', 'W', 'A', 'Y', 'D', 'O', 'C', 'S'};
constexpr uint32_t kVersion = 1;
constexpr char kStarts[] = "starts";

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
  ASSIGN_OR_RETURN(const ArrayFile file, ArrayFile::Read(file_system, path, kKind, kVersion));
  const NamedBytes* const bytes = file.Find(kStarts);
  if (bytes == nullptr || bytes->bytes.size() % sizeof(int64_t) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no array of starts"));
  }
  const nlohmann::json& metadata = file.metadata();
  const auto found = metadata.is_object() ? metadata.find("tokens") : metadata.end();
  int64_t promised = -1;
  if (found == metadata.end() || !ReadInteger(*found, promised) || promised != tokens) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is of ", promised,
                                                   " tokens, the shards hold ", tokens,
                                                   "; copy or make the data again"));
  }
  std::vector<int64_t> starts(bytes->bytes.size() / sizeof(int64_t));
  RETURN_IF_ERROR(file.CopyTo(kStarts, std::span<int64_t>(starts)));
  absl::StatusOr<DocumentIndex> index = Create(std::move(starts), tokens);
  if (!index.ok()) return Annotate(index.status(), path);
  return index;
}

absl::Status DocumentIndex::Write(FileSystem& file_system, const std::string& path) const {
  const NamedBytes arrays[] = {NameBytes(kStarts, std::span<const int64_t>(starts_))};
  return WriteArrayFile(file_system, path, kKind, kVersion, {{"tokens", tokens_}}, arrays);
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
