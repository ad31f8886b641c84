#include "server/store/commit_witness.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"

namespace causeway::server {
namespace {

constexpr char kWitnessMagic[] = "CWAYCOMM";
constexpr size_t kWitnessMagicBytes = 8;
constexpr size_t kCountedBytes = 16;
constexpr size_t kSlotBytes = 24;
using Slot = std::array<uint8_t, kSlotBytes>;

Slot Encode(int64_t commits) {
  Slot bytes;
  std::memcpy(bytes.data(), kWitnessMagic, kWitnessMagicBytes);
  std::memcpy(bytes.data() + kWitnessMagicBytes, &commits, sizeof(commits));
  const uint64_t checksum = Checksum64(std::span<const uint8_t>(bytes).first(kCountedBytes));
  std::memcpy(bytes.data() + kCountedBytes, &checksum, sizeof(checksum));
  return bytes;
}

size_t SlotOffset(int64_t commits) { return commits % 2 == 0 ? 0 : kSlotBytes; }

}  // namespace

absl::StatusOr<int64_t> CommitWitness::Read(FileSystem& file_system, const std::string& path) {
  const absl::StatusOr<std::string> content = file_system.ReadFile(path);
  if (absl::IsNotFound(content.status())) return 0;
  RETURN_IF_ERROR(content.status());
  if (content->empty()) return 0;
  int64_t largest = -1;
  for (const size_t offset : {size_t{0}, kSlotBytes}) {
    if (content->size() < offset + kSlotBytes) continue;
    int64_t commits = 0;
    std::memcpy(&commits, content->data() + offset + kWitnessMagicBytes, sizeof(commits));
    const Slot whole = Encode(commits);
    if (std::memcmp(whole.data(), content->data() + offset, kSlotBytes) != 0) continue;
    largest = std::max(largest, commits);
  }
  if (largest >= 0) return largest;
  return absl::DataLossError(absl::StrCat(
      path, " is damaged at offsets 0 and ", kSlotBytes,
      "; it only guards against lost commits: if everything else is whole, remove it"));
}

absl::StatusOr<std::unique_ptr<CommitWitness>> CommitWitness::Create(FileSystem& file_system,
                                                                     const std::string& path,
                                                                     int64_t commits) {
  std::array<uint8_t, 2 * kSlotBytes> content;
  for (const int64_t number : {commits - 1, commits}) {
    const Slot slot = Encode(number);
    std::copy(slot.begin(), slot.end(),
              content.begin() + static_cast<ptrdiff_t>(SlotOffset(number)));
  }
  RETURN_IF_ERROR(WriteFileAtomically(file_system, path, content));
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, file_system.OpenForAppend(path));
  return std::unique_ptr<CommitWitness>(new CommitWitness(std::move(file)));
}

absl::Status CommitWitness::Update(int64_t commits) {
  return file_->Overwrite(SlotOffset(commits), Encode(commits));
}

}  // namespace causeway::server
