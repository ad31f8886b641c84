// The end of its run, as a shard remembers it.
#ifndef CAUSEWAY_SERVER_SHARDS_END_NOTE_H_
#define CAUSEWAY_SERVER_SHARDS_END_NOTE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/shards.pb.h"
#include "common/base/file_system.h"

namespace causeway::server {

// The roster by which the shard of this folder heard that the run has reached its end; nothing
// if it has not, or has heard since that it goes on. DATA_LOSS for a file that nobody here wrote.
absl::StatusOr<std::optional<v1::ShardRoster>> ReadEnd(FileSystem& file_system,
                                                       const std::string& folder);
// Durable when it returns. To be called before the lead is told that the roster was heard: the lead
// may be gone for good a moment later.
absl::Status NoteEnd(FileSystem& file_system, const std::string& folder,
                     const v1::ShardRoster& roster);
// The run goes on. Durable when it returns.
absl::Status ForgetEnd(FileSystem& file_system, const std::string& folder);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SHARDS_END_NOTE_H_
