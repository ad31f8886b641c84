// The commands of causeway-worker. Each reads its own flags, prints its own errors and returns the
// exit status (common/cli/command_line.h).
#ifndef CAUSEWAY_WORKER_COMMANDS_COMMANDS_H_
#define CAUSEWAY_WORKER_COMMANDS_COMMANDS_H_

namespace causeway::worker {

int RunTrain();
int RunTokenize();
int RunExport();
int RunEval();
int RunGenerate();
int RunBench();
int RunPreflightCommand();

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_COMMANDS_COMMANDS_H_
