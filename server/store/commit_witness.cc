#include "server/store/commit_witness.h"

#include <array>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"

namespace causeway::server {
namespace {

constexpr char kMagic[] = "CWAYCOMM";
constexpr size_t kMagicBytes = 8;
constexpr size_t kCountedBytes = 16;
constexpr size_t kBytes = 24;

std::array<uint8_t, kBytes> Encode(int64_t commits) {
  std::array<uint8_t, kBytes> bytes;
  std::memcpy(bytes.data(), kMagic, kMagicBytes);
  std::memcpy(bytes.data() + kMagicBytes, &commits, sizeof(commits));
  const uint64_t checksum = Checksum64(std::span<const uint8_t>(bytes).first(kCountedBytes));
  std::memcpy(bytes.data() + kCountedBytes, &checksum, sizeof(checksum));
  return bytes;
}

}  // namespace

absl::StatusOr<int64_t> CommitWitness::Read(FileSystem& file_system, const std::string& path) {
  const absl::StatusOr<std::string> content = file_system.ReadFile(path);
  if (absl::IsNotFound(content.status())) return 0;
  RETURN_IF_ERROR(content.status());
  if (content->empty()) return 0;
  int64_t commits = 0;
  if (content->size() == kBytes) {
    std::memcpy(&commits, content->data() + kMagicBytes, sizeof(commits));
    const std::array<uint8_t, kBytes> whole = Encode(commits);
    if (std::memcmp(whole.data(), content->data(), kBytes) == 0) return commits;
  }
  return absl::DataLossError(absl::StrCat(
      path, " is damaged within its ", content->size(), " bytes from offset 0; it only guards ",
      "against lost commits: if everything else is whole, remove it"));
}

absl::StatusOr<std::unique_ptr<CommitWitness>> CommitWitness::Create(FileSystem& file_system,
                                                                     const std::string& path,
                                                                     int64_t commits) {
  RETURN_IF_ERROR(WriteFileAtomically(file_system, path, Encode(commits)));
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, file_system.OpenForAppend(path));
  return std::unique_ptr<CommitWitness>(new CommitWitness(std::move(file)));
}

absl::Status CommitWitness::Update(int64_t commits) { return file_->Overwrite(0, Encode(commits)); }

}  // namespace causeway::server
