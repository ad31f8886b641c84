// A copy of a run folder's database, for readers who leave the folder as it is: SQLite would write
// beside the original.
#ifndef CAUSEWAY_SERVER_STORE_DATABASE_COPY_H_
#define CAUSEWAY_SERVER_STORE_DATABASE_COPY_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "server/store/run_database.h"

namespace causeway::server {

// A folder below TMPDIR, removed with the object.
class DatabaseCopy {
 public:
  // Errors of the disks. While somebody changes the original, the copy may be no database.
  static absl::StatusOr<std::unique_ptr<DatabaseCopy>> Make(FileSystem& file_system,
                                                            const std::string& folder);
  ~DatabaseCopy();

  // Must not outlive this.
  absl::StatusOr<std::unique_ptr<RunDatabase>> Open() const;
  // An error of the copy, as one of the original.
  absl::Status Named(const absl::Status& status) const;

 private:
  DatabaseCopy(std::string path, std::string original)
      : path_(std::move(path)), original_(std::move(original)) {}

  const std::string path_;
  const std::string original_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_DATABASE_COPY_H_
