// causeway-worker: one site of a run.
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/cli/command_line.h"
#include "common/cli/program.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"
#include "worker/commands/commands.h"

ABSL_FLAG(std::string, log_level, "info",
          "debug|info|warn|error: what is logged, and graver things");

namespace {

using causeway::Command;
using causeway::FlagGroup;

constexpr Command kCommands[] = {
    {.usage = "tokenize --input=TEXT[,MORE] --out=SHARDS",
     .about = "Turns text files and folders into token files, each byte a token. For other "
              "tokenizers and JSON Lines there is python3 -m causeway.tokenize.",
     .flags = "input out extensions held_out_fraction replace"},
    {.usage = "train --join=LINE --data=SHARDS --out=FOLDER\n"
              "train --coordinator=HOST:PORT --id=NAME --data=SHARDS --out=FOLDER",
     .about = "Joins the run that the coordinator describes, and trains until its budget is spent. "
              "SIGTERM, SIGHUP, SIGUSR1 or SIGXCPU finishes the transfers, writes a checkpoint and "
              "leaves; the same command continues from there.",
     .flags = "coordinator id data out own_data shard_format document_begin document_end threads "
              "connect_timeout checkpoint_interval drain_timeout "
              "sample_tokens max_tokens_per_second min_step_time replay_merges connections "
              "max_upload_mbit max_download_mbit congestion_control metrics metrics_address_file "
              "tensorboard device attention recompute published gradients deterministic "
              "@credentials"},
    {.usage = "train (one of several processes)",
     .about = "Several machines with GPUs can be one worker: with RANK, WORLD_SIZE, LOCAL_RANK, "
              "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, as torchrun sets "
              "them, this is one of its processes (docs/gpu.md).",
     .flags = "site_timeout site_secret_file"},
    {.usage = "preflight --coordinator=HOST:PORT [--id=NAME --data=SHARDS --out=FOLDER]",
     .about = "Says line by line whether this site can join the run there, and how its link will "
              "do: name, TCP, TLS, identity, version, configuration, clock, rates, buffers, disk, "
              "memory, devices, data. Joins nothing. Exit status 1 if a check failed.",
     .flags = "coordinator id data out own_data threads connections congestion_control "
              "probe_seconds step_time json @credentials"},
    {.usage = "export --checkpoint=FOLDER/checkpoint --out=FOLDER",
     .about = "Writes the published parameters as safetensors, from which a run can start. python3 "
              "-m causeway.huggingface makes a folder of it that `transformers` loads.",
     .flags = "checkpoint run_dir out dtype max_file_gb replace"},
    {.usage = "eval --checkpoint=FOLDER/checkpoint --data=SHARDS",
     .about = "What the published parameters are worth: the loss on held-out text, in nats per "
              "token and bits per byte. python3 -m causeway.score has tasks.",
     .flags = "checkpoint run_dir data sequences shard_format document_begin document_end device "
              "attention deterministic threads json"},
    {.usage = "generate --checkpoint=FOLDER/checkpoint --prompt=TEXT",
     .about = "Text from the published parameters, made on the CPU. For other tokens than bytes "
              "there is python3 -m causeway.generate.",
     .flags = "checkpoint run_dir prompt prompts ids tokens temperature top_k top_p seed end_token "
              "known_tokens max_cache_gb threads json"},
    {.usage = "bench --model=gpt2-124m-shape --seq=1024",
     .about = "How fast this machine trains, against how fast it multiplies matrices; on a GPU "
              "also where a step's time goes, kernel by kernel.",
     .flags =
         "model seq micro_batch batch steps optimizer device attention deterministic threads json"},
};

constexpr FlagGroup kFlagGroups[] = {
    {.name = "credentials",
     .heading = "Credentials (train, preflight), an invitation, a certificate or a token:",
     .flags =
         "join identity tls_ca tls_cert tls_key token_file tls_server_name tls_refresh insecure"},
    {.heading = "For all commands:", .flags = "log_level"},
};

constexpr causeway::Moved kMoved[] = {
    {.names = "import --from --max_positions", .to = "python3 -m causeway.huggingface"},
    {.names = "make-task --tasks --eval_tasks --eval_tasks_every",
     .to = "python3 -m causeway.score has the tasks of lm-evaluation-harness"},
    {.names = "--tokenizer",
     .to = "python3 -m causeway.tokenize, causeway.generate and causeway.huggingface export"},
    {.names = "--jsonl_field --bad_lines --document_separator --end_of_text --format "
              "--shard_tokens",
     .to = "python3 -m causeway.tokenize"},
};

constexpr causeway::Program kProgram = {
    .name = "causeway-worker",
    .about = "causeway-worker trains one site of a Causeway run.",
    .commands = kCommands,
    .groups = kFlagGroups,
    .end =
        "Exit status: 0 done, 1 failed on the way, or nobody answered, 2 refused before "
        "anything\nstarted.\n",
    .moved = kMoved};

}  // namespace

int main(int argc, char** argv) {
  // gRPC's own log would repeat for every attempt what the session's log says once.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  causeway::NameMappedFaults();
  causeway::TuneForStreams();
  const std::string command =
      causeway::ParseCommandLine(argc, argv, kProgram, causeway::kSoftwareVersion).front();
  const absl::Status log =
      causeway::InitializeLog("causeway-worker", absl::GetFlag(FLAGS_log_level));
  if (!log.ok()) return causeway::Refuse("causeway-worker", log);
  if (command == "train") return causeway::worker::RunTrain();
  if (command == "preflight") return causeway::worker::RunPreflightCommand();
  const absl::Status status = command == "tokenize"   ? causeway::worker::RunTokenize()
                              : command == "export"   ? causeway::worker::RunExport()
                              : command == "eval"     ? causeway::worker::RunEval()
                              : command == "generate" ? causeway::worker::RunGenerate()
                                                      : causeway::worker::RunBench();
  return status.ok() ? 0 : causeway::Refuse(absl::StrCat("causeway-worker ", command), status);
}
