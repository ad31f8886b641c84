// AppendChunk, and so the lossless stage's decoder: a chunk either adds just the bytes that it
// promises, or nothing.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/codec/entropy_stage.h"
#include "common/rpc/chunk.h"
#include "tests/fuzz/target.h"

namespace causeway::fuzz {
namespace {

// The first two bytes are what a packed chunk promises to unpack to (0: it is plain), the third how
// much of the object is there and how much is expected, all others the data.
void CheckChunk(std::span<const uint8_t> input) {
  if (input.size() < 3) return;
  const int promised = input[0] | input[1] << 8;
  std::vector<uint8_t> object(input[2] % 16, 0x55);
  const auto expected = static_cast<int64_t>(object.size()) + (input[2] / 16) * 4096;
  const std::vector<uint8_t> before = object;
  v1::Chunk chunk;
  chunk.set_offset(static_cast<int64_t>(object.size()));
  chunk.set_unpacked_bytes(promised);
  chunk.set_data(input.data() + 3, input.size() - 3);
  chunk.set_checksum(Checksum64(input.subspan(3)));
  const absl::Status status = AppendChunk(chunk, expected, object);
  FUZZ_REQUIRE(
      object.size() >= before.size() && std::equal(before.begin(), before.end(), object.begin()),
      "what was there has changed");
  if (!status.ok()) {
    FUZZ_REQUIRE(object.size() == before.size(), "a refused chunk has left bytes");
    FUZZ_REQUIRE(absl::IsInvalidArgument(status), std::string(status.message()));
    return;
  }
  const size_t added = promised != 0 ? static_cast<size_t>(promised) : input.size() - 3;
  FUZZ_REQUIRE(object.size() == before.size() + added, "a chunk has added other bytes");
  FUZZ_REQUIRE(static_cast<int64_t>(object.size()) <= expected, "beyond the object's end");
  const std::span<const uint8_t> plain = std::span(object).subspan(before.size());
  std::string packed;
  if (!EntropyPack(plain, packed)) return;
  std::vector<uint8_t> again(plain.size());
  FUZZ_REQUIRE(EntropyUnpack(packed, again).ok(), "what was packed does not unpack");
  FUZZ_REQUIRE(std::ranges::equal(again, plain), "packing has changed bytes");
}

}  // namespace

std::vector<std::string> TargetNames() { return {"chunk"}; }

}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::CheckChunk({data, size});
  return 0;
}
