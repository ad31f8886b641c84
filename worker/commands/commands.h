// The commands of causeway-worker. Each reads its own flags, prints its own errors and returns the
// exit status (common/cli/command_line.h).
#ifndef CAUSEWAY_WORKER_COMMANDS_COMMANDS_H_
#define CAUSEWAY_WORKER_COMMANDS_COMMANDS_H_

#include <string>

#include "absl/status/statusor.h"

namespace causeway::worker {

int RunTrain();
int RunTokenize();
int RunExport();
int RunEval();
int RunGenerate();
int RunBench();
int RunPreflightCommand();

// `data` as it is if it holds token files; of text, files or folders as tokenize takes them, the
// token files OUT/tokens, which are made of it the first time. Errors of Tokenize.
absl::StatusOr<std::string> TokenFilesOf(const std::string& data, const std::string& out);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_COMMANDS_COMMANDS_H_
