#include "tests/fuzz/array_file_input.h"

#include <algorithm>

#include "common/base/checksum.h"
#include "tests/fuzz/input.h"

namespace causeway::fuzz {
namespace {

// Bytes of the arrays of the header; 0 if it is silent, or says more than kMaxArrayBytes.
size_t ArrayBytes(std::span<const uint8_t> text) {
  const nlohmann::json header = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!header.is_object() || !header.contains("arrays") || !header["arrays"].is_array()) return 0;
  size_t sum = 0;
  for (const nlohmann::json& array : header["arrays"]) {
    if (!array.is_object() || !array.contains("bytes")) return 0;
    if (!array["bytes"].is_number_unsigned()) return 0;
    const auto bytes = array["bytes"].get<uint64_t>();
    if (bytes > kMaxArrayBytes || sum + bytes > kMaxArrayBytes) return 0;
    sum += bytes;
  }
  return sum;
}

void Append(std::span<const uint8_t> bytes, std::vector<uint8_t>& file) {
  file.insert(file.end(), bytes.begin(), bytes.end());
}

template <typename T>
void AppendNumber(T value, std::vector<uint8_t>& file) {
  Append({reinterpret_cast<const uint8_t*>(&value), sizeof(value)}, file);
}

}  // namespace

std::vector<uint8_t> ArrayFileFromInput(std::span<const uint8_t> bytes, const ArrayFileKind& kind,
                                        uint32_t version) {
  Input input(bytes);
  const auto options = input.Take<uint8_t>();
  std::vector<uint8_t> file;
  if ((options & kWhole) != 0) {
    Append(input.rest(), file);
    if ((options & kSeal) != 0 && file.size() >= sizeof(uint64_t)) {
      file.resize(file.size() - sizeof(uint64_t));
      AppendNumber(TreeHash(file), file);
    }
    return file;
  }
  const auto end = std::find(input.rest().begin(), input.rest().end(), uint8_t{0});
  const std::vector<uint8_t> text =
      input.TakeBytes(static_cast<size_t>(end - input.rest().begin()));
  input.Take<uint8_t>();
  Append({reinterpret_cast<const uint8_t*>(kind.data()), kind.size()}, file);
  AppendNumber(version, file);
  AppendNumber(static_cast<uint32_t>(text.size()), file);
  Append(text, file);
  Append((options & kBodyAsItIs) != 0 ? input.TakeBytes(input.rest().size())
                                      : input.Repeat(ArrayBytes(text)),
         file);
  AppendNumber(TreeHash(file), file);
  return file;
}

}  // namespace causeway::fuzz
