// COMMITS: how many commits the database had, kept beside it.
//
// SQLite's log ends, without a word, at the first frame that is damaged: the commits after it are
// gone. The witness is written after each commit and before anybody is told, and not synced, so it
// may be behind the database, never ahead; a database that knows of fewer commits has lost some.
//
// Two slots of 24 bytes, little endian: "CWAYCOMM", the number, XXH3-64 of those 16 bytes. Even
// numbers go to the first slot and odd ones to the second, in place, so that a write that is cut
// off leaves the number before.
#ifndef CAUSEWAY_SERVER_STORE_COMMIT_WITNESS_H_
#define CAUSEWAY_SERVER_STORE_COMMIT_WITNESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"

namespace causeway::server {

// Not thread-safe.
class CommitWitness {
 public:
  // The larger number in the file; 0 if it is absent or empty. DATA_LOSS, with the offset, if both
  // slots are damaged.
  static absl::StatusOr<int64_t> Read(FileSystem& file_system, const std::string& path);

  // Replaces the file durably and keeps it open.
  static absl::StatusOr<std::unique_ptr<CommitWitness>> Create(FileSystem& file_system,
                                                               const std::string& path,
                                                               int64_t commits);
  absl::Status Update(int64_t commits);

 private:
  explicit CommitWitness(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  const std::unique_ptr<WritableFile> file_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_COMMIT_WITNESS_H_
