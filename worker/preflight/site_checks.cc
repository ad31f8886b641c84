#include "worker/preflight/checks.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/control_group.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/backend/cpu/bench.h"
#include "worker/data/window_sampler.h"

namespace causeway::worker {
namespace {

constexpr char kDiskCheck[] = "disk";
constexpr char kCheckpointCheck[] = "checkpoint";
constexpr char kMemoryCheck[] = "memory";
constexpr char kDevicesCheck[] = "devices";
constexpr char kDataCheck[] = "data";

constexpr size_t kWriteBytes = 1 << 20;
constexpr size_t kMostWrites = 64;
constexpr absl::Duration kMostWriteTime = absl::Seconds(2);
// A checkpoint should not take longer: training waits for it.
constexpr absl::Duration kLongCheckpoint = absl::Seconds(30);
// Metrics, logs, and what others write meanwhile.
constexpr double kDiskReserveBytes = 100e6;
// Small and large models were measured at 0.65 to 0.82 of the rate of matrix products.
constexpr double kTypicalPeakFraction = 0.7;

absl::Status WriteForAWhile(FileSystem& file_system, const Clock& clock, const std::string& path,
                            DiskFacts& facts) {
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, file_system.Create(path));
  const std::string text = RandomText(/*seed=*/1, kWriteBytes);
  const std::span data(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  const absl::Duration start = clock.Monotonic();
  double written = 0;
  for (size_t i = 0; i < kMostWrites && clock.Monotonic() - start < kMostWriteTime; ++i) {
    RETURN_IF_ERROR(file->Append(data));
    written += static_cast<double>(data.size());
  }
  RETURN_IF_ERROR(file->Sync());
  const absl::Duration synced = clock.Monotonic();
  facts.write_bytes_per_second = written / std::max(1e-9, absl::ToDoubleSeconds(synced - start));
  RETURN_IF_ERROR(file->Append(data.first(1)));
  RETURN_IF_ERROR(file->Sync());
  facts.sync_time = clock.Monotonic() - synced;
  return absl::OkStatus();
}

}  // namespace

int64_t CheckpointBytes(const UnderstoodRun& run) {
  const bool gradients = run.config.sync().contribution() == v1::SyncConfig::GRADIENT;
  // Parameters, published values, two moments; the residual; up to an answer in flight.
  const int arrays = 2 + (gradients ? 0 : 2) + (run.config.sync().error_feedback() ? 1 : 0);
  return 4 * run.plan.arena_size() * arrays;
}

int64_t MemoryBytes(const UnderstoodRun& run) {
  const v1::ModelConfig& model = run.config.model();
  const int64_t tokens =
      int64_t{run.config.train().micro_batch_sequences()} * model.sequence_length();
  const int64_t attention = int64_t{model.heads()} * model.head_dim();
  const int64_t qkv = attention + 2 * int64_t{model.kv_heads()} * model.head_dim();
  const int64_t mlp = (model.mlp() == v1::ModelConfig::GELU ? 1 : 2) * int64_t{model.mlp_width()};
  // Per block what the backward pass needs (cpu_transformer.h), and once what it works in.
  const int64_t kept =
      2 * int64_t{model.width()} + qkv * (model.qk_norm() ? 2 : 1) + attention + mlp;
  const int64_t scratch = 8 * int64_t{model.width()} + 2 * mlp + 2 * qkv + attention;
  const int64_t activations = 4 * tokens * (model.layers() * kept + scratch);
  // Gradients and the largest fragment in flight (its snapshot, its code, its answer) beside what a
  // checkpoint holds, which is itself copied once when it is written.
  int64_t largest = 0;
  for (int i = 0; i < run.plan.fragments(); ++i) {
    largest = std::max(largest, run.plan.range(i).size());
  }
  return 2 * CheckpointBytes(run) + 4 * run.plan.arena_size() + 12 * largest + activations;
}

absl::StatusOr<DiskFacts> MeasureDisk(FileSystem& file_system, const Clock& clock,
                                      const std::string& output) {
  DiskFacts facts;
  facts.folder = NearestFolder(file_system, output);
  facts.exists = facts.folder == output;
  if (!file_system.IsFolder(facts.folder)) {
    return absl::FailedPreconditionError(absl::StrCat(facts.folder, " is a file, not a folder"));
  }
  if (facts.exists) {
    ASSIGN_OR_RETURN(const std::string owner, file_system.LockOwner(output));
    if (!owner.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(output, " is in use by process ", owner, ", another worker"));
    }
  }
  ASSIGN_OR_RETURN(facts.free_bytes, file_system.FreeBytes(facts.folder));
  const std::string path =
      JoinPath(facts.folder, absl::StrCat(".causeway-preflight-", getpid(), ".tmp"));
  const absl::Status written = WriteForAWhile(file_system, clock, path, facts);
  const absl::Status removed = file_system.Remove(path);
  RETURN_IF_ERROR(written);
  RETURN_IF_ERROR(removed);
  return facts;
}

CheckResult JudgeDisk(const std::string& output, const absl::StatusOr<DiskFacts>& disk,
                      int64_t checkpoint_bytes) {
  if (!disk.ok()) {
    const char* const remedy =
        absl::IsPermissionDenied(disk.status()) ? "choose an --out that this user may write to"
        : absl::IsResourceExhausted(disk.status())
            ? "the disk is full: make room, or choose an --out on another one"
            : "choose another --out";
    return Failed(kDiskCheck, disk.status().message(), remedy);
  }
  const auto checkpoint = static_cast<double>(checkpoint_bytes);
  // The next checkpoint is written before the last one goes.
  const double needed = 2 * checkpoint + kDiskReserveBytes;
  const auto free = static_cast<double>(disk->free_bytes);
  const absl::Duration checkpoint_time = absl::Seconds(checkpoint / disk->write_bytes_per_second);
  std::string finding = absl::StrCat(FormatBytes(free), " free in ", disk->folder);
  if (!disk->exists) absl::StrAppend(&finding, " (where ", output, " will be)");
  absl::StrAppend(&finding, ", ", FormatBytes(disk->write_bytes_per_second),
                  "/s written and synced");
  if (checkpoint_bytes > 0) {
    absl::StrAppend(&finding, "; a checkpoint is ", FormatBytes(checkpoint), " and takes ",
                    FormatTime(checkpoint_time));
  }
  const std::vector<Measured> values = {{"free", free, "bytes"},
                                        {"needed", needed, "bytes"},
                                        {"write_rate", disk->write_bytes_per_second, "bytes/s"},
                                        {"sync_time", disk->sync_time}};
  if (free < needed) {
    return Failed(kDiskCheck, finding,
                  absl::StrCat(FormatBytes(needed),
                               " are needed, for two checkpoints and the logs: make room, or "
                               "choose another --out"),
                  values);
  }
  return PassedUnless(
      kDiskCheck, finding,
      checkpoint_time > kLongCheckpoint
          ? "training waits for every checkpoint: choose a faster disk for --out, or a longer "
            "--checkpoint_interval"
          : "",
      values);
}

CheckResult JudgeCheckpoint(const std::string& path,
                            const absl::StatusOr<WorkerCheckpoint>& checkpoint,
                            const std::string& run_id, const std::string& worker_id) {
  constexpr char kOther[] = "choose another --out, or remove the file";
  if (!checkpoint.ok()) return Failed(kCheckpointCheck, checkpoint.status().message(), kOther);
  const std::string finding =
      absl::StrCat(path, " is of worker ", checkpoint->worker_id, " of run ", checkpoint->run_id,
                   ", at step ", checkpoint->step);
  const bool fits =
      checkpoint->run_id == run_id && (worker_id.empty() || checkpoint->worker_id == worker_id);
  return fits ? Passed(kCheckpointCheck, absl::StrCat(finding, ": training continues from it"))
              : Failed(kCheckpointCheck, absl::StrCat(finding, ", not of this one"), kOther);
}

absl::StatusOr<int64_t> AvailableMemory(FileSystem& file_system, const std::string& root) {
  ASSIGN_OR_RETURN(const std::string text,
                   file_system.ReadFile(absl::StrCat(root, "/proc/meminfo")));
  double available = -1;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() >= 2 && words[0] == "MemAvailable:" &&
        absl::SimpleAtod(words[1], &available)) {
      available *= 1024;
    }
  }
  if (available < 0) return absl::NotFoundError("/proc/meminfo has no line MemAvailable");
  const std::optional<int64_t> left = ReadControlGroupLimits(file_system, root).memory_left;
  if (left.has_value()) available = std::min(available, static_cast<double>(*left));
  return static_cast<int64_t>(available);
}

CheckResult JudgeMemory(int64_t needed_bytes, const absl::StatusOr<int64_t>& available_bytes) {
  const auto needed = static_cast<double>(needed_bytes);
  const std::string need = absl::StrCat("training takes about ", FormatBytes(needed));
  if (!available_bytes.ok()) {
    return Passed(kMemoryCheck, absl::StrCat(need, "; the system does not say what is available"));
  }
  const auto available = static_cast<double>(*available_bytes);
  const std::string finding = absl::StrCat(need, ", ", FormatBytes(available), " are available");
  const std::vector<Measured> values = {{"needed", needed, "bytes"},
                                        {"available", available, "bytes"}};
  if (needed > available) {
    return Failed(kMemoryCheck, finding,
                  "stop other programs, raise the limit of the job or container (--mem, "
                  "MemoryMax=), or use a larger machine",
                  values);
  }
  return PassedUnless(kMemoryCheck, finding,
                      needed > 0.8 * available ? "little is left for other programs" : "", values);
}

DeviceFacts FindDevices(FileSystem& file_system, int threads, const std::string& root) {
  DeviceFacts facts;
  facts.cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const ControlGroupLimits limits = ReadControlGroupLimits(file_system, root);
  facts.core_limit = limits.cores;
  facts.threads = threads > 0 ? threads : UsableCores(limits);
  facts.instructions = VectorInstructions();
  facts.has_gpu = file_system.Exists(absl::StrCat(root, "/dev/nvidia0")) ||
                  file_system.Exists(absl::StrCat(root, "/dev/kfd"));
  return facts;
}

CheckResult JudgeDevices(const DeviceFacts& devices) {
  std::string finding = absl::StrFormat(
      "%d CPU threads of %d cores, %s, %.0f GFLOP/s in matrix products", devices.threads,
      devices.cores, devices.instructions, 1e-9 * devices.matrix_flops_per_second);
  std::string remedy;
  if (devices.uses_gpus) absl::StrAppend(&finding, "; training takes the GPUs that are here");
  if (devices.core_limit > 0 && devices.core_limit < devices.threads - 0.5) {
    absl::StrAppendFormat(&finding, ", but the container may use only %.1f cores",
                          devices.core_limit);
    remedy = absl::StrFormat("give --threads=%d: more threads than cores wait for each other",
                             std::max(1, static_cast<int>(devices.core_limit)));
  } else if (devices.threads > devices.cores) {
    remedy = "give --threads at most as many as there are cores: more wait for each other";
  } else if (devices.has_gpu && !devices.uses_gpus) {
    absl::StrAppend(&finding, "; a GPU is here");
    remedy = "this build trains on CPUs alone";
  }
  return PassedUnless(kDevicesCheck, finding, remedy,
                      {{"threads", devices.threads},
                       {"cores", devices.cores},
                       {"matrix_rate", devices.matrix_flops_per_second, "flop/s"}});
}

absl::Duration GuessStepTime(const UnderstoodRun& run, const DeviceFacts& devices) {
  const double tokens = static_cast<double>(run.config.train().batch_sequences()) *
                        run.config.model().sequence_length();
  return absl::Seconds(tokens * FlopsPerToken(run.config.model(), run.plan) /
                       (kTypicalPeakFraction * devices.matrix_flops_per_second));
}

CheckResult JudgeData(const absl::StatusOr<Dataset>& data, const UnderstoodRun* run,
                      uint64_t shared_fingerprint, bool own_data) {
  constexpr char kTokenize[] = "make shards with `causeway-worker tokenize`, or check --data";
  if (!data.ok()) return Failed(kDataCheck, data.status().message(), kTokenize);
  const int64_t tokens = data->train()->tokens();
  std::string finding =
      absl::StrCat(tokens, " tokens to train on and ", data->held_out()->tokens(), " held out in ",
                   data->train()->shards().size() + data->held_out()->shards().size(), " shards");
  if (run == nullptr) {
    return Passed(kDataCheck, absl::StrCat(finding,
                                           "; without the run's configuration no more is "
                                           "known"));
  }
  const v1::ModelConfig& model = run->config.model();
  const absl::Status vocabulary = data->CheckVocabulary(model.vocabulary_size());
  if (!vocabulary.ok()) {
    return Failed(kDataCheck, vocabulary.message(),
                  "make the shards with the tokenizer of the run");
  }
  const SamplingOptions sampling = {.sequence_length = model.sequence_length(),
                                    .vocabulary_size = model.vocabulary_size(),
                                    .seed = run->config.train().seed(),
                                    .slot = 0,
                                    .slots = own_data ? 1 : run->config.membership().max_workers()};
  const absl::StatusOr<WindowSampler> sampler = WindowSampler::Create(*data, sampling);
  if (!sampler.ok()) {
    return Failed(kDataCheck, sampler.status().message(),
                  "give this site more text, or run with fewer membership.max_workers or a shorter "
                  "model.sequence_length");
  }
  if (!own_data && shared_fingerprint != 0 && data->train()->Fingerprint() != shared_fingerprint) {
    return Failed(kDataCheck,
                  absl::StrCat(finding, ", and not the text that the other sites share"),
                  "copy their shards, or give --own_data to train on another text than they do");
  }
  absl::StrAppend(&finding, ", ", sampler->windows(), " windows of ", model.sequence_length());
  return PassedUnless(kDataCheck, finding,
                      data->held_out()->tokens() > model.sequence_length()
                          ? ""
                          : "hold some text out (tokenize --held_out_fraction=0.05): without it "
                            "this site cannot evaluate",
                      {{"tokens", tokens},
                       {"held_out_tokens", data->held_out()->tokens()},
                       {"windows", sampler->windows()}});
}

}  // namespace causeway::worker
