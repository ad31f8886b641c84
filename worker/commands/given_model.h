// The model that a command's flags name.
#ifndef CAUSEWAY_WORKER_COMMANDS_GIVEN_MODEL_H_
#define CAUSEWAY_WORKER_COMMANDS_GIVEN_MODEL_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/thread_pool.h"
#include "worker/data/dataset.h"
#include "worker/io/stored_model.h"

namespace causeway::worker {

// Reads the published parameters of --checkpoint (a worker's checkpoint, a parameters file, or a
// model's folder) or of --run_dir (a coordinator's folder). INVALID_ARGUMENT unless one
// of the two is given; errors of stored_model.h.
absl::StatusOr<StoredModel> ReadGivenModel();

// --document_begin or --document_end; nullopt if neither is given, INVALID_ARGUMENT if both are.
absl::StatusOr<std::optional<DocumentMark>> GivenDocumentMark();

// The name of what ReadGivenModel reads, for messages.
std::string GivenModelName();

// --threads of them; 0: one per core. INVALID_ARGUMENT for a number that no machine has.
absl::StatusOr<std::unique_ptr<ThreadPool>> MakeGivenPool();

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_COMMANDS_GIVEN_MODEL_H_
