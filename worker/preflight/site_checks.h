// Checks of the site itself: disk, memory, processors, data. Everything is read through the
// FileSystem seam, /proc included.
#ifndef CAUSEWAY_WORKER_PREFLIGHT_SITE_CHECKS_H_
#define CAUSEWAY_WORKER_PREFLIGHT_SITE_CHECKS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "worker/data/dataset.h"
#include "worker/io/worker_checkpoint.h"
#include "worker/preflight/check_result.h"
#include "worker/preflight/coordinator_checks.h"

namespace causeway::worker {

// Bytes of a checkpoint of this run, and of all memory that training it takes on a CPU; both to
// within a tenth or so.
int64_t CheckpointBytes(const UnderstoodRun& run);
int64_t MemoryBytes(const UnderstoodRun& run);

// --- Disk ---
struct DiskFacts {
  std::string folder;   // The output folder, or its nearest parent that exists.
  bool exists = false;  // The output folder itself.
  uint64_t free_bytes = 0;
  double write_bytes_per_second = 0;  // Written and synced.
  absl::Duration sync_time;           // Time of the last sync, after nearly nothing was written.
};
// Writes up to 64 MiB for at most two seconds and removes them again. Errors of the file system;
// FAILED_PRECONDITION if another process uses the folder.
absl::StatusOr<DiskFacts> MeasureDisk(FileSystem& file_system, const Clock& clock,
                                      const std::string& output);
// `checkpoint_bytes` is 0 if the run is not known.
CheckResult JudgeDisk(const std::string& output, const absl::StatusOr<DiskFacts>& disk,
                      int64_t checkpoint_bytes);

// A checkpoint that is in the output folder already; `worker_id` may be empty.
CheckResult JudgeCheckpoint(const std::string& path,
                            const absl::StatusOr<WorkerCheckpoint>& checkpoint,
                            const std::string& run_id, const std::string& worker_id);

// --- Memory ---
// Bytes that this process may still take: by /proc/meminfo and its control groups.
// NOT_FOUND where the kernel does not say. `root` is "" but for tests.
absl::StatusOr<int64_t> AvailableMemory(FileSystem& file_system, const std::string& root = "");
CheckResult JudgeMemory(int64_t needed_bytes, const absl::StatusOr<int64_t>& available_bytes);

// --- Devices ---
struct DeviceFacts {
  int cores = 1;             // That the system has for this process.
  double core_limit = 0;     // By the control groups' quotas; 0: none.
  int threads = 1;           // That training would use.
  std::string instructions;  // VectorInstructions.
  bool unused_gpu = false;   // There is one, and this build cannot use it.
  double matrix_flops_per_second = 0;
};
// Without the rate of matrix products, which the caller measures.
DeviceFacts FindDevices(FileSystem& file_system, int threads, const std::string& root = "");
CheckResult JudgeDevices(const DeviceFacts& devices);
// Guesses the time of an inner step: products at the measured rate, and the rest as on the machines
// of docs/results.md.
absl::Duration GuessStepTime(const UnderstoodRun& run, const DeviceFacts& devices);

// --- Data ---
// `run` is null if it is not known: then only that the shards can be read. `shared_fingerprint` is
// that of the data which the run's workers share, 0 if it is not known or the site trains on its
// own
// (`own_data`).
CheckResult JudgeData(const absl::StatusOr<Dataset>& data, const UnderstoodRun* run,
                      uint64_t shared_fingerprint, bool own_data);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_PREFLIGHT_SITE_CHECKS_H_
