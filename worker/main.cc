// causeway-worker: one site of a run.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/cli/command_line.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"
#include "worker/commands/commands.h"

ABSL_FLAG(std::string, log_level, "info", "debug, info, warn or error");

namespace {

constexpr char kHelp[] = R"(causeway-worker trains one site of a Causeway run.

  causeway-worker tokenize --input=TEXT[,MORE] --out=SHARDS
      Turns text files, folders and JSONL into token shards, on all cores.
        --tokenizer=bytes|tokenizer.json|FILE.model  --extensions=.txt,.md  --jsonl_field=text
        --bad_lines=refuse|skip  --document_separator=after|before|none  --end_of_text=TOKEN
        --format=llmc|uint16|uint32  --shard_tokens=N  --held_out_fraction=0.05  --threads=N
        --replace

  causeway-worker preflight --coordinator=HOST:PORT [--id=NAME --data=SHARDS --out=FOLDER]
      Says line by line whether this site can join the run there, and how its link will do: name,
      TCP, TLS, identity, version, configuration, clock, rates, buffers, disk, memory, devices,
      data. Joins nothing. Exit status 1 if a check failed. Takes the credentials of train.
        --connections=4  --probe_seconds=3  --step_time=1s (if known)  --json

  causeway-worker train --coordinator=HOST:PORT --id=NAME --data=SHARDS --out=FOLDER
      Joins the run that the coordinator at HOST:PORT (or at one of HOST:PORT,HOST:PORT: where it
      may move to) describes, and trains until its budget is spent. SIGTERM finishes the transfers, writes a checkpoint and leaves; the same command
      continues from there.
        --threads=N (0: all cores)  --connect_timeout=30s  --checkpoint_interval=10m
        --replay_merges=FILE
        --drain_timeout=20s  --sample_tokens=N  --max_tokens_per_second=N  --min_step_time=D
        --own_data: the shards are this site's alone, and it trains on all of them
        --shard_format=auto (or llmc, uint16, uint32)
        --document_begin=TOKEN or --document_end=TOKEN: where documents begin in shards that do not
        say, for train.document_masking
        --eval_tasks=FILE  --eval_tasks_every=STEPS: accuracy on multiple-choice tasks meanwhile
        --connections=auto (or 1 .. 16)  --max_upload_mbit=N  --max_download_mbit=N
        --congestion_control=auto (bbr where allowed; or system, cubic, ...)
        --tls_ca=FILE --tls_cert=FILE --tls_key=FILE, or --tls_ca=FILE --token_file=FILE
        --tls_server_name=NAME, if the coordinator's certificate has another name than HOST
        --insecure: plaintext to another machine
        --metrics=HOST:PORT (for Prometheus)  --metrics_address_file=FILE
        --tensorboard=FOLDER (curves, in a subfolder of this worker's name)
        --device=auto (or cpu, cuda, cuda:0,1); on GPUs (docs/gpu.md):
        --attention=auto (or own, cudnn)  --recompute=auto (or none, norms, block)
        --published=device (or host): where the copy of the published parameters lies
        --gradients=whole (or sharded): whether each of several GPUs keeps its share of them alone
        --deterministic=on (or off): whether a step that is repeated has the same bits
      Several machines can be one worker: with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
      MASTER_ADDR and MASTER_PORT in the environment, as torchrun sets them, this is one of its
      processes (docs/several_processes.md).
        --site_timeout=10m: how long to wait for the others
        --site_secret_file=FILE: this worker's processes speak TLS, by its text

  causeway-worker import --from=FOLDER --out=FILE
      Turns a checkpoint of Hugging Face into parameters that a run can start from, and prints its
      model.
        --sequence_length=N

  causeway-worker export --checkpoint=FOLDER/checkpoint --out=FOLDER
      Writes the published parameters as safetensors and config.json, which `transformers` loads.
        --run_dir=FOLDER (the coordinator's, in place of --checkpoint)  --dtype=f32|bf16
        --tokenizer=FILE_OR_FOLDER  --max_positions=N  --max_file_gb=5
        --replace (a model that is in --out already)

  causeway-worker eval --checkpoint=FOLDER/checkpoint --data=SHARDS --tasks=FILE
      What the published parameters are worth: the loss on held-out text, in nats per token and bits
      per byte, and the accuracy on multiple-choice tasks. Besides a worker's checkpoint, a file of
      `import` or `replay` and a folder of Hugging Face's will do.
        --run_dir=FOLDER (the coordinator's)  --sequences=64  --json
        --tokenizer=FILE (of shards that no tokenizer lies beside)
        --device=auto (or cpu, cuda, cuda:N)  --attention=auto (or own, cudnn)

  causeway-worker make-task --input=FILE.jsonl --out=FILE
      Turns lines {"context", "completions": [...], "label"} into such a task.
        --tokenizer=bytes

  causeway-worker generate --checkpoint=FOLDER/checkpoint --prompt=TEXT
      Text from the published parameters.
        --run_dir=FOLDER  --tokenizer=bytes  --prompts=FILE (one per line, all at once)
        --tokens=200  --temperature=0.7  --top_k=0  --top_p=1  --seed=0  --ignore_end  --json
        --max_cache_gb=N (for keys and values; prompts that do not fit are made in turns)

  causeway-worker bench --model=gpt2-124m-shape --seq=1024
      How fast this machine trains, against how fast it multiplies matrices; on a GPU also where a
      step's time goes, kernel by kernel.
        --device=auto (or cpu, cuda, cuda:N)  --micro_batch=4  --batch=N (on GPUs)  --steps=3
        --attention=auto (or own, cudnn)  --recompute=auto (or none, norms, block)
        --deterministic=on (or off)  --threads=N  --json

For all: --log_level=debug|info|warn|error. The release: --version
Exit status: 0 done, 1 failed on the way, 2 refused before anything started.
)";

}  // namespace

int main(int argc, char** argv) {
  // gRPC's own log would repeat for every attempt what the session's log says once.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  causeway::TuneForStreams();
  const std::vector<std::string> arguments =
      causeway::ParseCommandLine(argc, argv, kHelp, causeway::kSoftwareVersion);
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
  if (command == "import") return causeway::worker::RunImport();
  if (command == "export") return causeway::worker::RunExport();
  if (command == "make-task") return causeway::worker::RunMakeTask();
  if (command == "eval") return causeway::worker::RunEval();
  if (command == "generate") return causeway::worker::RunGenerate();
  if (command == "preflight") return causeway::worker::RunPreflightCommand();
  if (command == "bench") return causeway::worker::RunBench();
  return causeway::Refuse("causeway-worker",
                          absl::InvalidArgumentError(absl::StrCat(
                              command.empty() ? "a command is required"
                                              : absl::StrCat("unknown command \"", command, "\""),
                              ": train, tokenize, import, export, eval, make-task, generate, "
                              "bench or preflight; --help explains")));
}
