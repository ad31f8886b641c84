#include "worker/commands/given_model.h"

#include <algorithm>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/params/run_config.h"

ABSL_DECLARE_FLAG(int, threads);
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

absl::StatusOr<std::unique_ptr<ThreadPool>> MakeGivenPool() {
  ASSIGN_OR_RETURN(const int threads, ThreadsFor(absl::GetFlag(FLAGS_threads)));
  auto pool = std::make_unique<ThreadPool>(threads);
  RETURN_IF_ERROR(pool->started());
  return pool;
}

}  // namespace causeway::worker
