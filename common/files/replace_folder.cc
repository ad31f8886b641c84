#include "common/files/replace_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

namespace fs = std::filesystem;

absl::Status Failed(absl::string_view what, const fs::path& path, const std::error_code& error) {
  const std::string message =
      absl::StrCat("cannot ", what, " ", path.string(), ": ", error.message());
  return error == std::errc::no_space_on_device ? absl::ResourceExhaustedError(message)
                                                : absl::InternalError(message);
}

absl::Status CopyKept(const fs::path& from, const fs::path& to,
                      const std::function<bool(absl::string_view)>& is_kept) {
  std::error_code error;
  fs::permissions(to, fs::status(from).permissions(), error);
  if (error) return Failed("set the permissions of", to, error);
  for (const fs::directory_entry& entry : fs::directory_iterator(from, error)) {
    const fs::path name = entry.path().filename();
    if (!entry.is_regular_file(error) || !is_kept(name.string())) continue;
    fs::copy_file(entry.path(), to / name, error);
    if (error) return Failed("copy", entry.path(), error);
  }
  return error ? Failed("list", from, error) : absl::OkStatus();
}

// `fresh` becomes `folder`, and the other way round.
absl::Status Exchange(const fs::path& fresh, const fs::path& folder) {
  if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    return absl::OkStatus();
  }
  std::error_code error(errno, std::generic_category());
  if (error != std::errc::invalid_argument && error != std::errc::function_not_supported &&
      error != std::errc::operation_not_supported) {
    return Failed("replace", folder, error);
  }
  const fs::path aside = fresh.string() + ".old";
  fs::rename(folder, aside, error);
  if (error) return Failed("put aside", folder, error);
  fs::rename(fresh, folder, error);
  if (error) {
    std::error_code back;
    fs::rename(aside, folder, back);
    return back
               ? absl::DataLossError(absl::StrCat(folder.string(), " is at ", aside.string(),
                                                  " now, and cannot be put back: ", back.message()))
               : Failed("replace", folder, error);
  }
  fs::rename(aside, fresh, error);
  return error ? Failed("rename", aside, error) : absl::OkStatus();
}

// Moves what nobody wrote anew and is no plain file, such as somebody's folder of notes.
absl::Status MoveTheRest(const fs::path& old, const fs::path& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(old, error)) {
    const fs::path target = folder / entry.path().filename();
    std::error_code ignored;
    if (entry.symlink_status(ignored).type() == fs::file_type::regular ||
        fs::exists(fs::symlink_status(target, ignored))) {
      continue;
    }
    fs::rename(entry.path(), target, error);
    if (error) return Failed("move", entry.path(), error);
  }
  return error ? Failed("list", old, error) : absl::OkStatus();
}

}  // namespace

absl::Status CheckReplaceable(const std::string& folder) {
  std::error_code error;
  const fs::path path = fs::canonical(folder, error);
  if (error) return Failed("find", folder, error);
  struct stat own = {};
  struct stat parent = {};
  if (stat(path.c_str(), &own) != 0 || stat(path.parent_path().c_str(), &parent) != 0) {
    return Failed("look at", path, std::error_code(errno, std::generic_category()));
  }
  if (own.st_dev != parent.st_dev) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " is a mount point: give a folder inside it"));
  }
  if (access(path.parent_path().c_str(), W_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write into ", path.parent_path().string(),
                     ", where the new content of ", folder, " has to stand beside the old one"));
  }
  return absl::OkStatus();
}

absl::Status ReplaceFolder(const std::string& folder,
                           const std::function<bool(absl::string_view name)>& is_kept,
                           const std::function<absl::Status(const std::string& path)>& write) {
  std::error_code error;
  // The folder itself, not a link to it.
  const fs::path old = fs::canonical(folder, error);
  if (error) return Failed("find", folder, error);
  const fs::path fresh =
      old.parent_path() / absl::StrCat(".", old.filename().string(), ".replacing");
  if (!fs::create_directory(fresh, error)) {
    if (error) return Failed("create", fresh, error);
    return absl::FailedPreconditionError(
        absl::StrCat(fresh.string(), " is there: somebody writes ", folder,
                     " just now, or was killed at it; in that case remove it"));
  }
  absl::Cleanup remove = [&] {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
  };
  RETURN_IF_ERROR(CopyKept(old, fresh, is_kept));
  RETURN_IF_ERROR(write(fresh.string()));
  RETURN_IF_ERROR(FileSystem::Real()->SyncFolder(fresh.string()));
  RETURN_IF_ERROR(Exchange(fresh, old));
  const absl::Status moved = MoveTheRest(fresh, old);
  if (!moved.ok()) {
    std::move(remove).Cancel();
    return absl::InternalError(absl::StrCat(folder, " has been replaced, but ", moved.message(),
                                            "; what it had is in ", fresh.string()));
  }
  return FileSystem::Real()->SyncFolder(old.parent_path().string());
}

}  // namespace causeway
