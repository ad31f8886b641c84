#include "worker/commands/commands.h"

#include <algorithm>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/client/link.h"
#include "common/params/run_config.h"

ABSL_DECLARE_FLAG(int, threads);
ABSL_DECLARE_FLAG(std::string, connections);
ABSL_FLAG(std::string, checkpoint, "",
          "FILE|FOLDER: a worker's checkpoint, or what `export` or `replay` made");
ABSL_FLAG(std::string, run_dir, "", "FOLDER: a coordinator's, in place of --checkpoint");
ABSL_FLAG(int64_t, document_begin, -1,
          "TOKEN: begins each document, in shards that do not say (train.document_masking)");
ABSL_FLAG(int64_t, document_end, -1, "TOKEN: ends each document, likewise");

namespace causeway::worker {

absl::StatusOr<std::optional<DocumentMark>> GivenDocumentMark() {
  const int64_t begin = absl::GetFlag(FLAGS_document_begin);
  const int64_t end = absl::GetFlag(FLAGS_document_end);
  if (begin < -1 || begin >= kMaxVocabulary || end < -1 || end >= kMaxVocabulary ||
      (begin >= 0 && end >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("give one of --document_begin and --document_end, a token below ",
                     kMaxVocabulary, ", or none; they are ", begin, " and ", end));
  }
  if (begin < 0 && end < 0) return std::nullopt;
  return DocumentMark{.token = std::max(begin, end), .begins = begin >= 0};
}

absl::StatusOr<StoredModel> ReadGivenModel() {
  const std::string checkpoint = absl::GetFlag(FLAGS_checkpoint);
  const std::string run_dir = absl::GetFlag(FLAGS_run_dir);
  if (checkpoint.empty() == run_dir.empty()) {
    return absl::InvalidArgumentError(
        "give --checkpoint (the file `checkpoint` in a worker's --out folder, a parameters file, "
        "or "
        "a folder of `export`) or --run_dir (a coordinator's folder)");
  }
  FileSystem& file_system = *FileSystem::Real();
  ASSIGN_OR_RETURN(StoredModel stored, run_dir.empty() ? ReadStoredModel(file_system, checkpoint)
                                                       : ReadPublished(file_system, run_dir));
  RETURN_IF_ERROR(Annotate(CheckOwnModel(stored.config), GivenModelName()));
  return stored;
}

std::string GivenModelName() {
  const std::string checkpoint = absl::GetFlag(FLAGS_checkpoint);
  return checkpoint.empty() ? absl::GetFlag(FLAGS_run_dir) : checkpoint;
}

absl::StatusOr<int> GivenConnections() {
  const std::string value = absl::GetFlag(FLAGS_connections);
  if (value == "auto") return 0;
  int connections = 0;
  if (!absl::SimpleAtoi(value, &connections) || connections < 1 || connections > kMaxConnections) {
    return absl::InvalidArgumentError(absl::StrCat("--connections must be auto or 1 .. ",
                                                   kMaxConnections, "; it is \"", value, "\""));
  }
  return connections;
}

absl::StatusOr<std::unique_ptr<ThreadPool>> MakeGivenPool() {
  ASSIGN_OR_RETURN(const int threads, ThreadsFor(absl::GetFlag(FLAGS_threads)));
  auto pool = std::make_unique<ThreadPool>(threads);
  RETURN_IF_ERROR(pool->started());
  return pool;
}

}  // namespace causeway::worker

ABSL_FLAG(std::string, device, "auto",
          "auto|cpu|cuda|cuda:N,...: auto: the GPUs if there are any; bench and eval take one");
ABSL_FLAG(std::string, recompute, "auto",
          "auto|none|norms|block: on GPUs: what a backward pass computes again instead of keeping "
          "it; auto: as little as the memory allows; the results are the same");
ABSL_FLAG(std::string, published, "device",
          "device|host: on GPUs: where the copy of the published parameters lies; host saves 4 "
          "bytes of GPU memory per parameter and costs copies at each synchronization");
ABSL_FLAG(std::string, gradients, "whole",
          "whole|sharded: what each of several GPUs keeps of them; sharded: its share, which saves "
          "up to 4 bytes of memory per parameter and sums every micro-batch over the GPUs instead "
          "of every step");

ABSL_FLAG(std::string, attention, "auto",
          "auto|own|cudnn: on GPUs: who computes it; own: this program's kernels; auto: what the "
          "worker's earlier steps took, or the faster, which is then kept; they round differently");

ABSL_FLAG(std::string, deterministic, "on",
          "on|off: on GPUs: whether a step that is repeated has the same bits; off: attention by "
          "cuDNN may add up in any order, which is faster");

namespace causeway::worker {

absl::StatusOr<DeviceChoice> DevicesFromFlags() {
  ASSIGN_OR_RETURN(DeviceChoice choice, ParseDevices(absl::GetFlag(FLAGS_device)));
  choice.recompute = absl::GetFlag(FLAGS_recompute);
  choice.published_on_device = absl::GetFlag(FLAGS_published) == "device";
  choice.shard_gradients = absl::GetFlag(FLAGS_gradients) == "sharded";
  choice.attention = absl::GetFlag(FLAGS_attention);
  choice.deterministic = absl::GetFlag(FLAGS_deterministic) == "on";
  return choice;
}

}  // namespace causeway::worker
