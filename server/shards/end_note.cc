#include "server/shards/end_note.h"

#include <google/protobuf/text_format.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "server/store/run_directory.h"

namespace causeway::server {

absl::StatusOr<std::optional<v1::ShardRoster>> ReadEnd(FileSystem& file_system,
                                                       const std::string& folder) {
  const std::string path = JoinPath(folder, kEndFile);
  if (!file_system.Exists(path)) return std::optional<v1::ShardRoster>();
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  v1::ShardRoster roster;
  if (!google::protobuf::TextFormat::ParseFromString(text, &roster) || !roster.reached_end()) {
    return absl::DataLossError(absl::StrCat(
        path, " is not what a shard writes: remove it, its lead says whether the run has ended"));
  }
  return std::optional(std::move(roster));
}

absl::Status NoteEnd(FileSystem& file_system, const std::string& folder,
                     const v1::ShardRoster& roster) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(roster, &text);
  return WriteFileAtomically(file_system, JoinPath(folder, kEndFile), absl::string_view(text));
}

absl::Status ForgetEnd(FileSystem& file_system, const std::string& folder) {
  RETURN_IF_ERROR(file_system.Remove(JoinPath(folder, kEndFile)));
  return file_system.SyncFolder(folder);
}

}  // namespace causeway::server
