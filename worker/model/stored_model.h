// Parameters that lie on a disk, wherever they come from.
#ifndef CAUSEWAY_WORKER_MODEL_STORED_MODEL_H_
#define CAUSEWAY_WORKER_MODEL_STORED_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"

namespace causeway::worker {

struct StoredModel {
  v1::RunConfig config;           // Complete.
  std::vector<float> parameters;  // The published ones: the arena of config's plan.
  // The schedule's step, in a worker's checkpoint; otherwise -1.
  int64_t step = -1;
};

// A worker's checkpoint, a parameters file (common/files/array_file.h), or a model's folder
// (common/files/model_folder.h), told apart by what they are. Errors of their readers;
// INVALID_ARGUMENT for anything else.
absl::StatusOr<StoredModel> ReadStoredModel(FileSystem& file_system, const std::string& path);

// The latest saved state of every fragment in a coordinator's run directory, while the coordinator
// runs or not; docs/formats.md has the files. A running one saves each fragment every so many
// rounds
// (--snapshot_every_rounds), a stopping one all of them. FAILED_PRECONDITION while some fragment
// was never saved; DATA_LOSS for damaged files.
absl::StatusOr<StoredModel> ReadPublished(FileSystem& file_system, const std::string& run_folder);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_MODEL_STORED_MODEL_H_
