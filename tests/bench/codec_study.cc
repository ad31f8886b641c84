// Measures how the codecs err on what they carry.
//
//   causeway-worker tokenize --input=docs,common,worker --out=DATA
//   codec_study [--json] [--quick] [--data=DATA] [--model=tiny-1m] [--steps_before=N]
//   [--interval=N]
//
// Prints of every codec that rounds, for Gaussian values and, given --data, the delta of a short
// training run with AdamW and one with Muon: bits per value; the error, which is the sum of the
// squared errors over that of the values; the entropy of the code bytes, in bits per value, as far
// as bytes by themselves tell: what a lossless coder could save; the share that sync.entropy_up
// does save, and how many GB of codes it packs and unpacks per second.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/time/clock.h"
#include "common/base/file_system.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "nlohmann/json.hpp"
#include "tests/bench/measure.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/data/dataset.h"
#include "worker/train/trainer.h"

ABSL_FLAG(std::string, data, "", "Tokens to train on for real deltas; without any there are none");
ABSL_FLAG(std::string, model, "tiny-1m", "The model that is trained");
ABSL_FLAG(int, steps_before, 60, "Inner steps before the delta's");
ABSL_FLAG(int, interval, 30, "Inner steps that the delta spans");

namespace causeway::bench {
namespace {

struct DataSet {
  std::string name;
  std::vector<float> base, target;
};

DataSet Gaussian(size_t size) {
  DataSet data{.name = "gaussian", .base = std::vector<float>(size), .target = {}};
  for (size_t i = 0; i < size; ++i) data.base[i] = static_cast<float>(RandomNormal(1, 0, i));
  data.target.resize(size);
  return data;
}

// Makes what one worker would send after some steps on real text. Progress goes to standard error.
absl::StatusOr<DataSet> TrainForDelta(const std::string& name,
                                      v1::TrainConfig::Optimizer optimizer) {
  const int steps_before = absl::GetFlag(FLAGS_steps_before);
  const int steps = steps_before + absl::GetFlag(FLAGS_interval);
  v1::RunConfig config;
  config.mutable_model()->set_preset(absl::GetFlag(FLAGS_model));
  config.mutable_train()->set_optimizer(optimizer);
  config.mutable_train()->set_steps(10 * steps);
  config.mutable_train()->set_warmup_steps(steps_before / 2);
  config.mutable_sync()->set_steps_between_syncs(absl::GetFlag(FLAGS_interval));
  RETURN_IF_ERROR(CompleteRunConfig(config).status());
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config));
  ASSIGN_OR_RETURN(const worker::Dataset dataset,
                   worker::Dataset::Open(*FileSystem::Real(), absl::GetFlag(FLAGS_data)));
  ThreadPool pool(Threads(0));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<worker::Trainer> trainer,
      worker::Trainer::Create(config, dataset, 0,
                              std::make_unique<worker::CpuBackend>(config, plan, &pool)));
  const auto size = static_cast<size_t>(plan.arena_size());
  DataSet data{.name = name, .base = std::vector<float>(size), .target = std::vector<float>(size)};
  InitializeParameters(plan, config.train().seed(), data.target);
  RETURN_IF_ERROR(trainer->backend().SetParameters(data.target));
  for (int step = 1; step <= steps; ++step) {
    if (step == steps_before + 1) RETURN_IF_ERROR(trainer->backend().CopyParameters(data.base));
    ASSIGN_OR_RETURN(const worker::StepReport report,
                     trainer->Step(step, (step - 1) * config.train().batch_sequences()));
    if (step % std::max(1, steps / 10) != 0) continue;
    std::fprintf(stderr, "%s: step %d of %d, loss %.3f\n", name.c_str(), step, steps, report.loss);
  }
  RETURN_IF_ERROR(trainer->backend().CopyParameters(data.target));
  return data;
}

double BitsOfEntropy(std::span<const uint8_t> bytes) {
  std::array<double, 256> counts = {};
  for (const uint8_t byte : bytes) ++counts[byte];
  const auto total = static_cast<double>(bytes.size());
  double bits = 0;
  for (const double count : counts) {
    if (count > 0) bits -= count * std::log2(count / total);
  }
  return bits;
}

struct LosslessStage {
  double saves = 0;          // Share of the bytes.
  double packs_per_s = 0;    // Bytes of codes, on one core.
  double unpacks_per_s = 0;  // 0: nothing was packed.
};

// Packs codes as sync.entropy_up and entropy_down do, chunk by chunk as on the wire.
absl::StatusOr<LosslessStage> PackChunks(std::span<const uint8_t> bytes) {
  constexpr size_t kChunk = size_t{1} << 20;
  LosslessStage stage;
  double sent = 0;
  double unpacked = 0;
  absl::Duration packing;
  absl::Duration unpacking;
  std::string packed;
  std::vector<uint8_t> again(kChunk);
  for (size_t begin = 0; begin < bytes.size(); begin += kChunk) {
    const auto chunk = bytes.subspan(begin, std::min(kChunk, bytes.size() - begin));
    absl::Time start = absl::Now();
    const bool smaller = EntropyPack(chunk, packed);
    packing += absl::Now() - start;
    sent += static_cast<double>(smaller ? packed.size() : chunk.size());
    if (!smaller) continue;
    start = absl::Now();
    RETURN_IF_ERROR(EntropyUnpack(packed, std::span(again).first(chunk.size())));
    unpacking += absl::Now() - start;
    unpacked += static_cast<double>(chunk.size());
  }
  const auto total = static_cast<double>(bytes.size());
  stage.saves = 1 - sent / total;
  stage.packs_per_s = total / absl::ToDoubleSeconds(packing);
  if (unpacked > 0) stage.unpacks_per_s = unpacked / absl::ToDoubleSeconds(unpacking);
  return stage;
}

absl::StatusOr<nlohmann::json> StudyCodec(const Codec& codec, const DataSet& data) {
  const size_t size = data.base.size();
  std::vector<uint8_t> bytes(codec.EncodedBytes(size));
  RETURN_IF_ERROR(codec.Encode(data.base, data.target, {}, bytes));
  std::vector<double> decoded(size);
  RETURN_IF_ERROR(codec.Accumulate(bytes, data.base, 1.0, decoded));
  double error = 0;
  double power = 0;
  for (size_t i = 0; i < size; ++i) {
    const double x = static_cast<double>(data.base[i]) - static_cast<double>(data.target[i]);
    error += (decoded[i] - x) * (decoded[i] - x);
    power += x * x;
  }
  const auto values = static_cast<double>(size);
  ASSIGN_OR_RETURN(const LosslessStage lossless, PackChunks(bytes));
  return nlohmann::json{{"data", data.name},
                        {"codec", std::string(codec.name())},
                        {"bits_per_value", 8 * static_cast<double>(bytes.size()) / values},
                        {"entropy_bits_per_value", BitsOfEntropy(bytes) / values},
                        {"lossless_saves", lossless.saves},
                        {"packs_bytes_per_s", lossless.packs_per_s},
                        {"unpacks_bytes_per_s", lossless.unpacks_per_s},
                        {"error", error / power}};
}

absl::StatusOr<nlohmann::json> Measure() {
  if (absl::GetFlag(FLAGS_steps_before) < 1 || absl::GetFlag(FLAGS_interval) < 1) {
    return absl::InvalidArgumentError("--steps_before and --interval must be at least 1");
  }
  std::vector<DataSet> sets = {Gaussian(size_t{1} << (absl::GetFlag(FLAGS_quick) ? 14 : 21))};
  if (!absl::GetFlag(FLAGS_data).empty()) {
    for (const auto& [name, optimizer] : {std::pair("delta-adamw", v1::TrainConfig::ADAMW),
                                          std::pair("delta-muon", v1::TrainConfig::MUON)}) {
      ASSIGN_OR_RETURN(sets.emplace_back(), TrainForDelta(name, optimizer));
    }
  }
  nlohmann::json report = {{"codecs", nlohmann::json::array()}};
  for (const DataSet& data : sets) {
    for (const v1::Codec id : std::span(kCodecs).subspan(1)) {  // All that round.
      ASSIGN_OR_RETURN(const nlohmann::json row, StudyCodec(**FindCodec(id), data));
      report["codecs"].push_back(row);
    }
  }
  return report;
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  return causeway::bench::RunBenchmark(argc, argv, "Compares what codecs lose.",
                                       causeway::bench::Measure);
}
