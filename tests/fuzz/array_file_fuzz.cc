// ArrayFile::Read: what is accepted lies within the file, and is the same after it is written and
// read again.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/files/array_file.h"
#include "tests/fuzz/array_file_input.h"
#include "tests/fuzz/memory_files.h"
#include "tests/fuzz/target.h"

namespace causeway::fuzz {
namespace {

constexpr ArrayFileKind kKind = {'C', 'W', 'A', 'Y', 'F', 'U', 'Z', 'Z'};
constexpr uint32_t kVersion = 3;

void CheckArrayFile(std::span<const uint8_t> input) {
  FaultDisk files;
  const std::vector<uint8_t> bytes = ArrayFileFromInput(input, kKind, kVersion);
  const size_t size = bytes.size();
  Put(files, "folder/file", bytes);
  const absl::StatusOr<ArrayFile> file = ArrayFile::Read(files, "folder/file", kKind, kVersion);
  if (!file.ok()) {
    FUZZ_REQUIRE(absl::IsDataLoss(file.status()) || absl::IsFailedPrecondition(file.status()),
                 "a bad file is DATA_LOSS, or FAILED_PRECONDITION for its version");
    return;
  }
  size_t sum = 0;
  for (const NamedBytes& array : file->arrays()) {
    sum += array.bytes.size();
    const NamedBytes* const found = file->Find(array.name);
    FUZZ_REQUIRE(found != nullptr && found->name == array.name, "an array is not found");
    std::vector<uint8_t> copy(found->bytes.size());
    FUZZ_REQUIRE(file->CopyTo(array.name, std::span(copy)).ok(), "an array is not copied");
    FUZZ_REQUIRE(std::ranges::equal(copy, found->bytes), "a copy differs");
    copy.push_back(0);
    FUZZ_REQUIRE(absl::IsDataLoss(file->CopyTo(array.name, std::span(copy))),
                 "an array of another size is copied");
  }
  FUZZ_REQUIRE(sum < size, "the arrays are larger than the file");

  FUZZ_REQUIRE(
      WriteArrayFile(files, "folder/again", kKind, kVersion, file->metadata(), file->arrays()).ok(),
      "what was read cannot be written");
  const auto again = ArrayFile::Read(files, "folder/again", kKind, kVersion);
  FUZZ_REQUIRE(again.ok(), std::string(again.status().message()));
  FUZZ_REQUIRE(again->metadata() == file->metadata(), "the metadata changed");
  FUZZ_REQUIRE(std::ranges::equal(again->arrays(), file->arrays(),
                                  [](const NamedBytes& a, const NamedBytes& b) {
                                    return a.name == b.name && std::ranges::equal(a.bytes, b.bytes);
                                  }),
               "the arrays changed");
}

}  // namespace
}  // namespace causeway::fuzz

FUZZ_TARGET("array_file", CheckArrayFile)
