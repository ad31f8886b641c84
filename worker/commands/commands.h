// The commands of causeway-worker. Each reads its own flags.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/thread_pool.h"
#include "worker/commands/device_choice.h"
#include "worker/data/dataset.h"
#include "worker/model/worker_checkpoint.h"

namespace causeway::worker {

// These print their own errors and return the exit status (common/cli/command_line.h).
int RunTrain();
int RunPreflightCommand();
// These return why, where they cannot do what they are asked for.
absl::Status RunTokenize();
absl::Status RunExport();
absl::Status RunEval();
absl::Status RunGenerate();
absl::Status RunBench();

// `data` as it is if it holds token files; of text, files or folders as tokenize takes them, the
// token files OUT/tokens, which are made of it the first time. Errors of Tokenize.
absl::StatusOr<std::string> TokenFilesOf(const std::string& data, const std::string& out);

// Reads the published parameters of --checkpoint (a worker's checkpoint, a parameters file, or a
// model's folder) or of --run_dir (a coordinator's folder). INVALID_ARGUMENT unless one
// of the two is given; errors of worker_checkpoint.h.
absl::StatusOr<StoredModel> ReadGivenModel();

// --document_begin or --document_end; nullopt if neither is given, INVALID_ARGUMENT if both are.
absl::StatusOr<std::optional<DocumentMark>> GivenDocumentMark();

// The name of what ReadGivenModel reads, for messages.
std::string GivenModelName();

// --threads of them; 0: one per core. INVALID_ARGUMENT for a number that no machine has.
absl::StatusOr<std::unique_ptr<ThreadPool>> MakeGivenPool();

// --connections: 1 .. kMaxConnections; 0: auto. INVALID_ARGUMENT for anything else.
absl::StatusOr<int> GivenConnections();

// Takes --device, --recompute, --published, --gradients, --attention and --deterministic.
absl::StatusOr<DeviceChoice> DevicesFromFlags();

}  // namespace causeway::worker
