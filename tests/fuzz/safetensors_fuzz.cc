// Weights as people hand them over: safetensors headers, and their index.
//
//   safetensors  a length of the header (2 bytes), the header, then data. What is opened lies
//                within the file, without an overlap.
//   safetensors_index   the text of an index beside a folder of three files
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/files/safetensors.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_files.h"
#include "tests/fuzz/target.h"

namespace causeway::fuzz {
namespace {

std::vector<uint8_t> MakeFile(const std::vector<uint8_t>& header, std::span<const uint8_t> data) {
  const uint64_t length = header.size();
  std::vector<uint8_t> file(sizeof(length) + header.size() + data.size());
  std::memcpy(file.data(), &length, sizeof(length));
  std::ranges::copy(header, file.begin() + sizeof(length));
  std::ranges::copy(data, file.end() - static_cast<ptrdiff_t>(data.size()));
  return file;
}

std::vector<uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

void RequireInvalidArgument(const absl::Status& status) {
  FUZZ_REQUIRE(absl::IsInvalidArgument(status), status.ToString());
}

void CheckSafetensors(Input input) {
  const auto length = input.Take<uint16_t>();
  const std::vector<uint8_t> header = input.TakeBytes(length);
  FaultDisk files;
  // The length in the file is the header's own; with none, all of it is the fuzzer's.
  Put(files, "x.safetensors",
      length == 0 ? input.TakeBytes(input.rest().size()) : MakeFile(header, input.rest()));
  const uint64_t size = *files.FileSize("x.safetensors");
  const auto file = SafetensorsFile::Open(files, "x.safetensors");
  if (!file.ok()) return RequireInvalidArgument(file.status());
  uint64_t bytes = 0;
  uint32_t sum = 0;
  for (const auto& [name, tensor] : file->tensors()) {
    bytes += tensor.bytes.size();
    for (const uint8_t byte : tensor.bytes) sum += byte;
    for (const int64_t dimension : tensor.shape) {
      FUZZ_REQUIRE(dimension >= 0, "a negative dimension");
    }
  }
  FUZZ_REQUIRE(bytes < size && sum <= 255 * size, "the tensors are larger than the file");
}

void CheckIndex(Input input) {
  FaultDisk files;
  for (const char* name : {"a", "b"}) {
    Put(files, JoinPath("folder", std::string(name) + ".safetensors"),
        MakeFile(Bytes(std::string("{\"") + name +
                       "\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]}}"),
                 std::vector<uint8_t>(4)));
  }
  Put(files, "secret.safetensors", MakeFile(Bytes("{}"), {}));
  Put(files, JoinPath("folder", kSafetensorsIndexFile), input.TakeBytes(input.rest().size()));
  const auto folder = SafetensorsFolder::Open(files, "folder");
  if (!folder.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(folder.status()) || absl::IsNotFound(folder.status()),
                 folder.status().ToString());
    return;
  }
  for (const auto& [name, tensor] : folder->tensors()) {
    FUZZ_REQUIRE(name == "a" || name == "b", "a tensor of no file in the folder");
    FUZZ_REQUIRE(tensor.bytes.size() == 4, "another tensor");
  }
}

}  // namespace

std::vector<Target> Targets() {
  return {{"safetensors", [](std::span<const uint8_t> bytes) { CheckSafetensors(Input(bytes)); }},
          {"safetensors_index", [](std::span<const uint8_t> bytes) { CheckIndex(Input(bytes)); }}};
}

}  // namespace causeway::fuzz
