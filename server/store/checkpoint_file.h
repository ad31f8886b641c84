// The coordinator's checkpoint: the state of every fragment in one array file
// (common/files/array_file.h) of kind "CWAYCORD", version 1. Its metadata:
//
//   {"run_id": "...", "config": "<textproto>", "config_hash": "<hex>", "plan_hash": "<hex>",
//    "fragments": [{"fragment": 0, "version": 7, "published_hash": "<hex>",
//                   "optimizer": ["momentum"]}]}
//
// and, for each fragment in that order, the fp32 arrays "0/theta", "0/published" and one for each
// state of the outer optimizer, "0/momentum".
#ifndef CAUSEWAY_SERVER_STORE_CHECKPOINT_FILE_H_
#define CAUSEWAY_SERVER_STORE_CHECKPOINT_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "server/store/store.h"

namespace causeway::server {

// FragmentView with its own memory.
struct FragmentSnapshot {
  int fragment = 0;
  int64_t version = 0;
  uint64_t published_hash = 0;
  std::vector<float> theta;
  std::vector<float> published;
  std::vector<std::pair<std::string, std::vector<float>>> optimizer;
};

struct RunSnapshot {
  RunIdentity identity;
  std::vector<FragmentSnapshot> fragments;
};

FragmentSnapshot CopyFragment(const FragmentView& view);

// Replaces `path` durably; after an error the old file stands.
absl::Status WriteCheckpoint(FileSystem& file_system, const std::string& path,
                             const RunIdentity& identity, std::span<const FragmentView> fragments);

// DATA_LOSS, with the path, if the file is cut short, fails its checksum or contradicts itself;
// FAILED_PRECONDITION if its format version is not 1.
absl::StatusOr<RunSnapshot> ReadCheckpoint(FileSystem& file_system, const std::string& path);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_CHECKPOINT_FILE_H_
