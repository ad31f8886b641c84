#include "server/store/memory_owner.h"

#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/store/blob_folder.h"

namespace causeway::server {
namespace {

// The one line of a small file; empty if it cannot be read.
std::string LineOf(FileSystem& file_system, const std::string& path) {
  const absl::StatusOr<std::string> content = file_system.ReadFile(path);
  return content.ok() ? std::string(absl::StripAsciiWhitespace(*content)) : "";
}

}  // namespace

std::string TrueName(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error);
  if (!error) path = std::filesystem::weakly_canonical(path, error);
  if (error) return folder;
  return path.has_filename() ? path.string() : path.parent_path().string();
}

std::string OwnerOfMemory(FileSystem& file_system, const std::string& memory) {
  return LineOf(file_system, JoinPath(memory, kOwnerFile));
}

absl::Status CheckMemoryIsOwn(FileSystem& file_system, const std::string& run_folder,
                              const std::string& memory) {
  if (memory.empty()) return absl::OkStatus();
  const std::string owner = OwnerOfMemory(file_system, memory);
  if (owner.empty() || owner == TrueName(run_folder) ||
      LineOf(file_system, JoinPath(owner, kDeltasInFile)) != memory) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      run_folder, " is a copy of ", owner, ": its ", kDeltasInFile, " names ", memory,
      ", in which the deltas of that one are. Copy them into ", JoinPath(run_folder, "deltas"),
      ", and remove ", JoinPath(run_folder, kDeltasInFile), " (docs/formats.md, Repair)"));
}

absl::Status ClaimMemory(FileSystem& file_system, const std::string& run_folder,
                         const std::string& memory) {
  const std::string path = JoinPath(memory, kOwnerFile);
  const std::string name = TrueName(run_folder);
  if (LineOf(file_system, path) == name) return absl::OkStatus();
  return WriteFileAtomically(file_system, path, absl::string_view(name + "\n"));
}

}  // namespace causeway::server
