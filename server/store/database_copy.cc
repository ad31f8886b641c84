#include "server/store/database_copy.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

absl::Status CopyFile(FileSystem& from, const std::string& source, const std::string& target) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, from.Map(source));
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> copy, FileSystem::Real()->Create(target));
  return copy->Append(file->bytes());
}

}  // namespace

absl::StatusOr<std::unique_ptr<DatabaseCopy>> DatabaseCopy::Make(FileSystem& file_system,
                                                                 const std::string& folder) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  std::string path = JoinPath(error ? "/tmp" : parent.string(), "causeway-inspect-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("cannot create the folder ", path, ": ",
                                            std::generic_category().message(errno),
                                            "; set TMPDIR to one that can be written"));
  }
  auto copy = std::unique_ptr<DatabaseCopy>(new DatabaseCopy(std::move(path), folder));
  for (const char* const name : {kDatabaseFile, kDatabaseLogFile}) {
    const std::string source = JoinPath(folder, name);
    if (name == std::string(kDatabaseLogFile) && !file_system.Exists(source)) continue;
    RETURN_IF_ERROR(CopyFile(file_system, source, JoinPath(copy->path_, name)));
  }
  return copy;
}

DatabaseCopy::~DatabaseCopy() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<std::unique_ptr<RunDatabase>> DatabaseCopy::Open() const {
  auto database = RunDatabase::Open(JoinPath(path_, kDatabaseFile), {.durable = false});
  if (!database.ok()) return Named(database.status());
  return database;
}

absl::Status DatabaseCopy::Named(const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrReplaceAll(status.message(), {{path_, original_}}));
}

}  // namespace causeway::server
