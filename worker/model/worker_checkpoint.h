// A worker's local checkpoint: everything that a bit-exact continuation needs. docs/formats.md has
// the bytes; the file is an array file (common/files/array_file.h) of kind "CWAYWORK".
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker {

struct WorkerCheckpoint : TrainingPlace {
  std::string run_id;
  std::string worker_id;
  v1::RunConfig config;  // Complete.
  std::vector<float> parameters;
  // Of a site: the local values between its tensors, where merges mix them (sync.mixing).
  std::vector<float> gaps;
  // The inner optimizer's; the moments are empty where gradients are synchronized.
  int64_t optimizer_updates = 0;
  std::vector<float> first_moments;
  std::vector<float> second_moments;
};

// Replaces `path` durably.
absl::Status WriteWorkerCheckpoint(FileSystem& file_system, const std::string& path,
                                   const WorkerCheckpoint& checkpoint);
// Errors of ArrayFile::Read; DATA_LOSS if the content contradicts itself: every array has the
// length that the configuration takes. SyncEngine::Restore checks what is in flight.
absl::StatusOr<WorkerCheckpoint> ReadWorkerCheckpoint(FileSystem& file_system,
                                                      const std::string& path);

// Packs what a site with a trainer of its own keeps: a checkpoint without moments, and with
// parameters only where some of them are needed. An array file of kind "CWAYSITE" in memory, into
// the bytes that `allocate` gives; RESOURCE_EXHAUSTED if it gives none.
absl::Status PackSiteState(const WorkerCheckpoint& checkpoint,
                           const std::function<uint8_t*(size_t bytes)>& allocate);
// Errors as those of ReadWorkerCheckpoint. `bytes` are not kept.
absl::StatusOr<WorkerCheckpoint> UnpackSiteState(std::span<const uint8_t> bytes);

// Parameters that lie on a disk, wherever they come from.

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
