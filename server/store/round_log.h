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
#include "common/base/file_system.h"
#include "nlohmann/json.hpp"
#include "server/store/run_tables.h"
#include "server/store/store.h"

namespace causeway::server {

// {"unix_s" (published), "fragment", "round", "contributors", "weights", "send_step",
//  "first_unix_s", "closed_unix_s", "published_unix_s", "bytes_in", "bytes_out",
//  "published_hash" (16 hexadecimal digits), "reason"}
nlohmann::json RoundToJson(const RoundRecord& record);

// Not thread-safe.
class RoundLog {
 public:
  // Makes the file hold exactly these rounds, in order of their commits.
  static absl::StatusOr<std::unique_ptr<RoundLog>> Open(FileSystem& file_system,
                                                        const std::string& path,
                                                        std::span<const StoredRound> rounds);
  // After the first failure, which is logged, nothing more is appended: the next opening rebuilds
  // the file.
  void Append(const RoundRecord& record);

 private:
  explicit RoundLog(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  std::unique_ptr<WritableFile> file_;  // Null after a failure.
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_ROUND_LOG_H_
