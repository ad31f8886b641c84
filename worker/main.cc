// causeway-worker: one site of a run.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/cli/command_line.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"
#include "worker/commands/commands.h"

ABSL_FLAG(std::string, log_level, "info", "debug, info, warn or error");

namespace {

constexpr char kHelp[] = R"(causeway-worker trains one site of a Causeway run.

  causeway-worker tokenize --input=TEXT[,MORE] --out=SHARDS
      Turns text files and folders into token shards.
        --tokenizer=bytes  --held_out_fraction=0.05  --replace

  causeway-worker train --coordinator=HOST:PORT --id=NAME --data=SHARDS --out=FOLDER
      Joins the run that the coordinator at HOST:PORT describes, and trains until its budget is
      spent. SIGTERM finishes the transfers, writes a checkpoint and leaves; the same command
      continues from there.
        --threads=N (0: all cores)  --connect_timeout=30s  --checkpoint_interval=10m
        --drain_timeout=20s  --sample_tokens=N  --max_tokens_per_second=N

  causeway-worker eval --checkpoint=FOLDER/checkpoint --data=SHARDS
      The loss of the published parameters on held-out text.
        --sequences=64  --json

  causeway-worker generate --checkpoint=FOLDER/checkpoint --prompt=TEXT
      Text from the published parameters.
        --tokens=200  --temperature=0.7  --seed=0

  causeway-worker bench --model=gpt2-124m-shape --seq=1024
      How fast this machine trains, against how fast it multiplies matrices.
        --micro_batch=4  --steps=3  --threads=N  --json

For all: --log_level=debug|info|warn|error
Exit status: 0 done, 1 failed on the way, 2 refused before anything started.
)";

}  // namespace

int main(int argc, char** argv) {
  causeway::TuneAllocatorForStreams();
  const std::vector<std::string> arguments = causeway::ParseCommandLine(argc, argv, kHelp);
  const absl::Status log =
      causeway::InitializeLog("causeway-worker", absl::GetFlag(FLAGS_log_level));
  if (!log.ok()) return causeway::Refuse("causeway-worker", log);
  const std::string command = arguments.empty() ? "" : arguments[0];
  if (arguments.size() > 1) {
    return causeway::Refuse("causeway-worker",
                            absl::InvalidArgumentError(absl::StrCat(
                                "unexpected argument \"", arguments[1], "\"; --help explains")));
  }
  if (command == "train") return causeway::worker::RunTrain();
  if (command == "tokenize") return causeway::worker::RunTokenize();
  if (command == "eval") return causeway::worker::RunEval();
  if (command == "generate") return causeway::worker::RunGenerate();
  if (command == "bench") return causeway::worker::RunBench();
  return causeway::Refuse("causeway-worker",
                          absl::InvalidArgumentError(absl::StrCat(
                              command.empty() ? "a command is required"
                                              : absl::StrCat("unknown command \"", command, "\""),
                              ": train, tokenize, eval, generate or bench; --help explains")));
}
