#include "common/files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/files/json.h"
#include "nlohmann/json.hpp"

namespace causeway {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
// The largest published models have headers of a few megabytes.
constexpr JsonLimits kHeaderLimits = {.bytes = size_t{32} << 20, .depth = 3, .values = 4'000'000};
constexpr JsonLimits kIndexLimits = {.bytes = size_t{32} << 20, .depth = 8, .values = 4'000'000};
constexpr size_t kMaxDimensions = 8;

// Bits per value; 0 for an unknown name.
uint64_t DtypeBits(const std::string& dtype) {
  static const std::map<std::string, uint64_t> kBits = {
      {"BOOL", 8}, {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
      {"I16", 16}, {"U16", 16}, {"F16", 16}, {"BF16", 16},   {"I32", 32},    {"U32", 32},
      {"F32", 32}, {"I64", 64}, {"U64", 64}, {"F64", 64}};
  const auto found = kBits.find(dtype);
  return found == kBits.end() ? 0 : found->second;
}

// One tensor as the header describes it.
struct Entry {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = 0;
  SafeTensor tensor;
};

absl::StatusOr<Entry> ReadEntry(const std::string& name, const json& value,
                                const std::string& path) {
  const auto bad = [&](auto... what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tensor \"", name.substr(0, 200), "\": ", what...));
  };
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !value["shape"].is_array() || !value.contains("data_offsets") ||
      !value["data_offsets"].is_array() || value["data_offsets"].size() != 2) {
    return bad("expected {\"dtype\", \"shape\", \"data_offsets\": [begin, end]}");
  }
  Entry entry;
  entry.name = name;
  entry.tensor.dtype = value["dtype"].get<std::string>();
  const uint64_t bits = DtypeBits(entry.tensor.dtype);
  if (bits == 0) return bad("the dtype \"", entry.tensor.dtype.substr(0, 50), "\" is unknown");
  if (value["shape"].size() > kMaxDimensions) {
    return bad("it has ", value["shape"].size(), " dimensions; at most ", kMaxDimensions,
               " are read");
  }
  uint64_t values = 1;
  for (const json& dimension : value["shape"]) {
    int64_t size = 0;
    if (!ReadInteger(dimension, size) || size < 0) {
      return bad("a dimension of its shape is no integer from 0 on");
    }
    const auto factor = static_cast<uint64_t>(size);
    if (factor != 0 && values > std::numeric_limits<uint64_t>::max() / 64 / factor) {
      return bad("its shape has more values than any file");
    }
    values *= factor;
    entry.tensor.shape.push_back(size);
  }
  if (!ReadInteger(value["data_offsets"][0], entry.begin) ||
      !ReadInteger(value["data_offsets"][1], entry.end) || entry.begin > entry.end) {
    return bad("its data_offsets are no two integers in ascending order");
  }
  if (entry.end - entry.begin != values * bits / 8) {
    return bad("its data_offsets hold ", entry.end - entry.begin, " bytes; ", entry.tensor.dtype,
               " ", ShapeText(entry.tensor.shape), " takes ", values * bits / 8);
  }
  return entry;
}

absl::StatusOr<json> ReadHeader(std::span<const uint8_t> bytes, const std::string& path,
                                size_t& header_bytes) {
  uint64_t length = 0;
  if (bytes.size() < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no safetensors file has only ", bytes.size(), " bytes"));
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > bytes.size() - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": its first 8 bytes announce a header of ", length, " bytes; ",
        bytes.size() - kLengthBytes, " follow (it was cut short, or is no safetensors file)"));
  }
  header_bytes = static_cast<size_t>(length);
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                               header_bytes);
  return ParseJsonObject(text, path, kHeaderLimits);
}

// Whether an index may name it: a file of the folder itself.
bool IsPlainName(const std::string& name) {
  return absl::EndsWith(name, ".safetensors") && name.size() <= 255 &&
         name.find_first_of("/\\") == std::string::npos && name[0] != '.' &&
         name.find('\0') == std::string::npos;
}

}  // namespace

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(FileSystem& file_system,
                                                      const std::string& path) {
  SafetensorsFile result;
  ASSIGN_OR_RETURN(result.file_, file_system.Map(path));
  const std::span<const uint8_t> bytes = result.file_->bytes();
  size_t header_bytes = 0;
  ASSIGN_OR_RETURN(const json header, ReadHeader(bytes, path, header_bytes));
  const std::span<const uint8_t> data = bytes.subspan(kLengthBytes + header_bytes);
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": its __metadata__ is no object"));
      }
      for (const auto& [key, text] : value.items()) {
        if (text.is_string()) result.metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    ASSIGN_OR_RETURN(Entry entry, ReadEntry(name, value, path));
    entries.push_back(std::move(entry));
  }
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end = 0;
  for (Entry& entry : entries) {
    if (entry.begin != end || entry.end > data.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor \"", entry.name.substr(0, 200), "\" lies at ", entry.begin,
                       " .. ", entry.end, "; the one before it ends at ", end, ", the file at ",
                       data.size(), ", and tensors must follow each other without gap or overlap"));
    }
    end = entry.end;
    entry.tensor.bytes = data.subspan(static_cast<size_t>(entry.begin),
                                      static_cast<size_t>(entry.end - entry.begin));
    result.tensors_.emplace(entry.name, std::move(entry.tensor));
  }
  if (end != data.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": its tensors end at ", end, ", the file at ", data.size()));
  }
  return result;
}

absl::StatusOr<SafetensorsFolder> SafetensorsFolder::OpenFile(FileSystem& file_system,
                                                              const std::string& path) {
  SafetensorsFolder result;
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(file_system, path));
  result.tensors_ = file.tensors();
  result.files_.push_back(std::move(file));
  return result;
}

absl::StatusOr<SafetensorsFolder> SafetensorsFolder::Open(FileSystem& file_system,
                                                          const std::string& folder) {
  SafetensorsFolder result;
  const std::string index_path = JoinPath(folder, kSafetensorsIndexFile);
  const std::string path = JoinPath(folder, kSafetensorsFile);
  const bool has_file = file_system.Exists(path);
  if (!file_system.Exists(index_path)) {
    if (!has_file) {
      return absl::NotFoundError(absl::StrCat(folder, " has neither ", kSafetensorsFile, " nor ",
                                              kSafetensorsIndexFile,
                                              ": other formats (pytorch_model.bin) are not read"));
    }
    return OpenFile(file_system, path);
  }
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(index_path));
  ASSIGN_OR_RETURN(const json index, ParseJsonObject(text, index_path, kIndexLimits));
  if (!index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": it has no weight_map"));
  }
  std::map<std::string, std::set<std::string>> names;  // By file.
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || !IsPlainName(file.get<std::string>())) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": tensor \"", name.substr(0, 200),
                       "\" is not in a file *.safetensors of this folder itself, but in ",
                       file.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 200)));
    }
    names[file.get<std::string>()].insert(name);
  }
  if (has_file && !names.contains(kSafetensorsFile)) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " has ", kSafetensorsFile, ", which transformers takes, and ",
                     kSafetensorsIndexFile, ", which names other files: remove the older one"));
  }
  for (const auto& [file_name, tensors] : names) {
    const std::string shard = JoinPath(folder, file_name);
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(file_system, shard));
    for (const auto& [name, tensor] : file.tensors()) {
      if (tensors.contains(name)) continue;
      const bool elsewhere = index["weight_map"].contains(name);
      return absl::InvalidArgumentError(absl::StrCat(
          shard, " has a tensor \"", name.substr(0, 200), "\", which ", kSafetensorsIndexFile,
          elsewhere ? " places in another file" : " does not name",
          ": the index is not of these files"));
    }
    for (const std::string& name : tensors) {
      const auto found = file.tensors().find(name);
      if (found == file.tensors().end()) {
        return absl::InvalidArgumentError(absl::StrCat(shard, " has no tensor \"",
                                                       name.substr(0, 200), "\", although ",
                                                       kSafetensorsIndexFile, " says so"));
      }
      result.tensors_.insert(*found);
    }
    result.files_.push_back(std::move(file));
  }
  return result;
}

namespace {

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
