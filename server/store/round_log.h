// rounds.jsonl: the published rounds as lines of JSON, for reports and for people who watch.
//
// It is derived: nothing reads it back, it is not synced, and it is rebuilt from the database
// whenever it disagrees.
#ifndef CAUSEWAY_SERVER_STORE_ROUND_LOG_H_
#define CAUSEWAY_SERVER_STORE_ROUND_LOG_H_

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/record.pb.h"
#include "common/base/file_system.h"
#include "nlohmann/json.hpp"

namespace causeway::server {

// The record's own fields (record.proto), but for what the store adds, and "unix_s": when it was
// published.
nlohmann::json RoundToJson(const v1::Round& round);

// Not thread-safe.
class RoundLog {
 public:
  // Makes the file hold exactly these rounds, in order of their commits.
  static absl::StatusOr<std::unique_ptr<RoundLog>> Open(FileSystem& file_system,
                                                        const std::string& path,
                                                        std::span<const v1::Round> rounds);
  // After the first failure, which is logged, nothing more is appended: the next opening rebuilds
  // the file.
  void Append(const v1::Round& round);

 private:
  explicit RoundLog(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  std::unique_ptr<WritableFile> file_;  // Null after a failure.
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_ROUND_LOG_H_
