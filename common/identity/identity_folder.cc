#include "common/identity/identity_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace causeway {
namespace {

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::string> DefaultIdentityFolder(absl::string_view run, absl::string_view name) {
  const char* const config = std::getenv("XDG_CONFIG_HOME");
  const char* const home = std::getenv("HOME");
  std::string root;
  if (config != nullptr && config[0] == '/') {
    root = config;
  } else if (home != nullptr && home[0] == '/') {
    root = JoinPath(home, ".config");
  } else {
    return absl::FailedPreconditionError(
        "neither HOME nor XDG_CONFIG_HOME says where keys may be kept: give --identity=FOLDER");
  }
  return JoinPath(JoinPath(JoinPath(root, "causeway"), run), name);
}

absl::Status CreatePrivateFolder(FileSystem& file_system, const std::string& folder) {
  struct stat info {};
  if (stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " is open to others, and a key is to be kept there: chmod 700 ",
                     folder, ", or give a folder of its own"));
  }
  if (!file_system.IsFolder(ParentFolder(folder))) {
    RETURN_IF_ERROR(CreateFoldersDurably(file_system, ParentFolder(ParentFolder(folder))));
    if (mkdir(ParentFolder(folder).c_str(), 0700) != 0 && errno != EEXIST) {
      return SystemError("create", ParentFolder(folder));
    }
  }
  if (mkdir(folder.c_str(), 0700) != 0) {
    // Another process may have been faster.
    const bool is_there = errno == EEXIST && file_system.IsFolder(folder);
    return is_there ? CreatePrivateFolder(file_system, folder) : SystemError("create", folder);
  }
  return file_system.SyncFolder(ParentFolder(folder));
}

absl::Status WritePrivateFile(FileSystem& file_system, const std::string& path,
                              absl::string_view text) {
  // The file that WriteFileAtomically fills and renames: nobody else can open it meanwhile.
  const std::string temporary = absl::StrCat(path, ".tmp");
  unlink(temporary.c_str());
  const int made = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (made < 0) return SystemError("create", temporary);
  close(made);
  return WriteFileAtomically(file_system, path, text);
}

}  // namespace causeway
