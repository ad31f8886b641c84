#include "common/files/safetensors_writer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "common/base/atomic_write.h"
#include "common/base/status_macros.h"
#include "common/files/safetensors.h"
#include "nlohmann/json.hpp"

namespace causeway {
namespace {

using nlohmann::json;

constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr size_t kHeaderAlignment = 8;

std::string Header(std::span<const TensorSource> tensors) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t begin = 0;
  for (const TensorSource& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, begin + tensor.bytes}}};
    begin += tensor.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

absl::Status WriteFile(FileSystem& file_system, const std::string& path,
                       std::span<const TensorSource> tensors) {
  return WriteFileAtomically(file_system, path, [&](WritableFile& file) -> absl::Status {
    const std::string header = Header(tensors);
    const uint64_t length = header.size();
    uint64_t bytes = sizeof(length) + length;
    for (const TensorSource& tensor : tensors) bytes += tensor.bytes;
    RETURN_IF_ERROR(file.Reserve(bytes));
    RETURN_IF_ERROR(file.Append({reinterpret_cast<const uint8_t*>(&length), sizeof(length)}));
    RETURN_IF_ERROR(file.Append({reinterpret_cast<const uint8_t*>(header.data()), header.size()}));
    std::vector<uint8_t> piece;
    for (const TensorSource& tensor : tensors) {
      for (uint64_t begin = 0; begin < tensor.bytes; begin += piece.size()) {
        piece.resize(static_cast<size_t>(std::min<uint64_t>(kPieceBytes, tensor.bytes - begin)));
        tensor.read(begin, piece);
        RETURN_IF_ERROR(file.Append(piece));
      }
    }
    return absl::OkStatus();
  });
}

// The runs of tensors that share a file.
std::vector<std::span<const TensorSource>> Cut(const std::vector<TensorSource>& tensors,
                                               uint64_t max_file_bytes) {
  std::vector<std::span<const TensorSource>> files;
  size_t begin = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i > begin && bytes + tensors[i].bytes > max_file_bytes) {
      files.push_back(std::span(tensors).subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += tensors[i].bytes;
  }
  files.push_back(std::span(tensors).subspan(begin));
  return files;
}

bool IsOurName(const std::string& name) {
  return name == kSafetensorsFile || name == kSafetensorsIndexFile ||
         (absl::StartsWith(name, "model-") && absl::EndsWith(name, ".safetensors"));
}

}  // namespace

absl::Status WriteSafetensors(FileSystem& file_system, const std::string& folder,
                              const std::vector<TensorSource>& tensors, uint64_t max_file_bytes) {
  const auto files = Cut(tensors, max_file_bytes);
  std::set<std::string> written;
  json weight_map = json::object();
  uint64_t total = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name =
        files.size() == 1 ? std::string(kSafetensorsFile)
                          : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
    RETURN_IF_ERROR(WriteFile(file_system, JoinPath(folder, name), files[i]));
    written.insert(name);
    for (const TensorSource& tensor : files[i]) {
      weight_map[tensor.name] = name;
      total += tensor.bytes;
    }
  }
  if (files.size() > 1) {
    const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    RETURN_IF_ERROR(WriteFileAtomically(file_system, JoinPath(folder, kSafetensorsIndexFile),
                                        absl::string_view(index.dump(2))));
    written.insert(kSafetensorsIndexFile);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> present, file_system.List(folder));
  for (const std::string& name : present) {
    if (IsOurName(name) && !written.contains(name)) {
      RETURN_IF_ERROR(file_system.Remove(JoinPath(folder, name)));
    }
  }
  return file_system.SyncFolder(folder);
}

}  // namespace causeway
