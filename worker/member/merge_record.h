// The merges of a worker, and the step after each (merges.jsonl): with an elastic overlap that
// depends on the network, so a process that resumes from a checkpoint, or repeats a whole run,
// reads it here.
#ifndef CAUSEWAY_WORKER_MEMBER_MERGE_RECORD_H_
#define CAUSEWAY_WORKER_MEMBER_MERGE_RECORD_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/telemetry/event_log.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker {

// The merges of a record, in its order; none if there is no such file and it `may_be_absent`. A
// last line that was cut off is left out. NOT_FOUND; DATA_LOSS for any other line that is none.
absl::StatusOr<std::vector<RecordedMerge>> ReadMergeRecord(FileSystem& file_system,
                                                           const std::string& path,
                                                           bool may_be_absent);

// Not thread-safe.
class MergeRecord {
 public:
  // Goes on after the merges that the file holds; `anew`: with none.
  static absl::StatusOr<std::unique_ptr<MergeRecord>> Open(FileSystem& file_system,
                                                           const std::string& path, bool anew);

  // Writes it, unless the round is there: a merge that is repeated is the one of the record.
  absl::Status Add(const RecordedMerge& merge);

  // The merges that Open found.
  const std::vector<RecordedMerge>& merges() const { return merges_; }

 private:
  std::vector<RecordedMerge> merges_;
  std::set<std::pair<int, int64_t>> rounds_;  // Fragment and round.
  std::unique_ptr<JsonLinesFile> file_;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_MEMBER_MERGE_RECORD_H_
