#include "worker/commands/given_model.h"

#include <algorithm>
#include <thread>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "common/base/file_system.h"

ABSL_DECLARE_FLAG(int, threads);
ABSL_FLAG(
    std::string, checkpoint, "",
    "eval, generate, export: a worker's checkpoint, a parameters file, or a folder of Hugging "
    "Face's");
ABSL_FLAG(std::string, run_dir, "",
          "eval, generate, export: a coordinator's folder, in place of --checkpoint");
ABSL_FLAG(int, sequence_length, 0,
          "import, and eval of a folder of Hugging Face's: tokens per window; 0: what the model "
          "takes, at most 1024");

namespace causeway::worker {

absl::StatusOr<StoredModel> ReadGivenModel() {
  const std::string checkpoint = absl::GetFlag(FLAGS_checkpoint);
  const std::string run_dir = absl::GetFlag(FLAGS_run_dir);
  if (checkpoint.empty() == run_dir.empty()) {
    return absl::InvalidArgumentError(
        "give --checkpoint (the file `checkpoint` in a worker's --out folder, a parameters file, "
        "or "
        "a folder of Hugging Face's) or --run_dir (a coordinator's folder)");
  }
  FileSystem& file_system = *FileSystem::Real();
  if (!run_dir.empty()) return ReadPublished(file_system, run_dir);
  return ReadStoredModel(file_system, checkpoint, absl::GetFlag(FLAGS_sequence_length));
}

std::string GivenModelName() {
  const std::string checkpoint = absl::GetFlag(FLAGS_checkpoint);
  return checkpoint.empty() ? absl::GetFlag(FLAGS_run_dir) : checkpoint;
}

std::unique_ptr<ThreadPool> MakeGivenPool() {
  int threads = absl::GetFlag(FLAGS_threads);
  if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::make_unique<ThreadPool>(threads);
}

}  // namespace causeway::worker
