// Measures what block size and scale format cost and bring, and how the codecs err on what they
// carry.
//
//   causeway-worker tokenize --input=docs,common,worker --out=DATA
//   codec_study [--json] [--quick] [--data=DATA] [--model=tiny-1m] [--steps_before=N]
//   [--interval=N]
//
// Prints, for Gaussian values, Student's t with 3 degrees of freedom and, given --data, the delta
// of a short training run with AdamW and one with Muon:
//
//   codecs    of the codecs as they are: bits per value; the error, which is the sum of the squared
//             errors over that of the values; the entropy of the code bytes, in bits per value, as
//             far as bytes by themselves tell: what a lossless coder could save; the share that
//             sync.entropy_up does save, and how many GB of codes it packs and unpacks per second
//   blocks    of each format of values and block size, for scales in
//               fp32   as they are
//               bf16   8 significant bits
//               e8m0   powers of two times the largest level; of the two next to the largest
//                      magnitude, the one that errs less
//               e4m3   4 significant bits, relative to an fp32 per 4096 values
//             bits per value and the error, computed in double
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/time/clock.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/codec/codec.h"
#include "nlohmann/json.hpp"
#include "tests/bench/measure.h"
#include "tests/bench/training_delta.h"

ABSL_FLAG(std::string, data, "", "Tokens to train on for real deltas; without any there are none");
ABSL_FLAG(std::string, model, "tiny-1m", "The model that is trained");
ABSL_FLAG(int, steps_before, 60, "Inner steps before the delta's");
ABSL_FLAG(int, interval, 30, "Inner steps that the delta spans");

namespace causeway::bench {
namespace {

constexpr char kProgram[] = "codec_study";

struct DataSet {
  std::string name;
  std::vector<float> base, target;
};

DataSet Drawn(const std::string& name, size_t size, double (*draw)(uint64_t)) {
  DataSet data{.name = name, .base = std::vector<float>(size), .target = {}};
  for (size_t i = 0; i < size; ++i) data.base[i] = static_cast<float>(draw(i));
  data.target.resize(size);
  return data;
}

double Gaussian(uint64_t i) { return RandomNormal(1, 0, i); }

double StudentT3(uint64_t i) {
  double squares = 0;
  for (uint64_t j = 1; j <= 3; ++j) squares += std::pow(RandomNormal(1, j, i), 2);
  return RandomNormal(1, 0, i) / std::sqrt(squares / 3);
}

// --- The codecs ----------------------------------------------------------------------------------

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

// --- Block sizes and scale formats ---------------------------------------------------------------

// Magnitudes in units of the largest one or, with `by_mean`, of the root mean square.
struct ValueFormat {
  std::string name;
  double bits;
  bool by_mean;
  double power_of_two_unit;  // e8m0 scales are powers of two times this.
  std::vector<double> levels;
};

std::vector<ValueFormat> ValueFormats() {
  std::vector<ValueFormat> formats = {
      {"int4", 4, false, 7, {}},
      {"e2m1", 4, false, 6, {}},
      {"e3m0", 4, false, 1, {0}},
      {"lm2", 2, true, 1, {0.4528, 1.510}},
  };
  for (int i = 0; i <= 7; ++i) formats[0].levels.push_back(i / 7.0);
  for (const double level : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}) {
    formats[1].levels.push_back(level / 6);
  }
  for (int i = -6; i <= 0; ++i) formats[2].levels.push_back(std::exp2(i));
  return formats;
}

double SquaredError(const ValueFormat& format, double scale, std::span<const double> values) {
  double error = 0;
  for (const double x : values) {
    double nearest = std::numeric_limits<double>::infinity();
    for (const double level : format.levels) {
      nearest = std::min(nearest, std::abs(std::abs(x) - level * scale));
    }
    error += nearest * nearest;
  }
  return error;
}

// Rounds a positive number to `bits` significant bits: up, or to nearest.
double Rounded(double x, int bits, bool up) {
  int exponent = 0;
  const double fraction = std::ldexp(std::frexp(x, &exponent), bits);
  return std::ldexp(up ? std::ceil(fraction) : std::nearbyint(fraction), exponent - bits);
}

struct ScaleFormat {
  std::string name;
  double bits;            // Size of a block's scale.
  double bits_per_chunk;  // Size of what all scales of a chunk share.
};

double BlockError(const ValueFormat& format, const ScaleFormat& scale_format, double scale,
                  double largest_scale, std::span<const double> values) {
  if (scale == 0) return 0;
  const bool up = !format.by_mean;
  if (scale_format.name == "fp32") return SquaredError(format, scale, values);
  if (scale_format.name == "bf16") return SquaredError(format, Rounded(scale, 8, up), values);
  if (scale_format.name == "e8m0") {
    const double unit = format.power_of_two_unit;
    const double above = unit * std::exp2(std::ceil(std::log2(scale / unit)));
    return std::min(SquaredError(format, above, values), SquaredError(format, above / 2, values));
  }
  constexpr double kLargest = 448;
  constexpr double kSmallest = 0x1p-9;
  const double relative = scale / largest_scale * kLargest;
  // Below 2^-6 numbers are multiples of the smallest one.
  const double rounded = relative < 0x1p-6 ? std::ceil(relative / kSmallest) * kSmallest
                                           : std::min(Rounded(relative, 4, up), kLargest);
  return SquaredError(format, rounded / kLargest * largest_scale, values);
}

double Scale(const ValueFormat& format, std::span<const double> block) {
  double largest = 0;
  double squares = 0;
  for (const double x : block) {
    largest = std::max(largest, std::abs(x));
    squares += x * x;
  }
  return format.by_mean ? std::sqrt(squares / static_cast<double>(block.size())) : largest;
}

nlohmann::json StudyBlocks(const ValueFormat& format, const ScaleFormat& scale_format,
                           size_t block_size, const DataSet& data) {
  std::vector<double> values(data.base.size());
  double power = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(data.base[i]) - static_cast<double>(data.target[i]);
    power += values[i] * values[i];
  }
  double error = 0;
  for (size_t begin = 0; begin < values.size(); begin += kCodecChunk) {
    const auto chunk =
        std::span(values).subspan(begin, std::min(kCodecChunk, values.size() - begin));
    std::vector<double> scales;
    for (size_t i = 0; i < chunk.size(); i += block_size) {
      scales.push_back(Scale(format, chunk.subspan(i, std::min(block_size, chunk.size() - i))));
    }
    const double largest_scale = *std::max_element(scales.begin(), scales.end());
    for (size_t i = 0; i < scales.size(); ++i) {
      const size_t first = i * block_size;
      error += BlockError(format, scale_format, scales[i], largest_scale,
                          chunk.subspan(first, std::min(block_size, chunk.size() - first)));
    }
  }
  const double bits = format.bits + scale_format.bits / static_cast<double>(block_size) +
                      scale_format.bits_per_chunk / static_cast<double>(kCodecChunk);
  return {{"data", data.name},          {"format", format.name},  {"block", block_size},
          {"scale", scale_format.name}, {"bits_per_value", bits}, {"error", error / power}};
}

absl::StatusOr<nlohmann::json> Study(const std::vector<DataSet>& sets) {
  nlohmann::json report = {{"codecs", nlohmann::json::array()},
                           {"blocks", nlohmann::json::array()}};
  const std::vector<ScaleFormat> scales = {
      {"fp32", 32, 0}, {"bf16", 16, 0}, {"e8m0", 8, 0}, {"e4m3", 8, 32}};
  for (const DataSet& data : sets) {
    for (const v1::Codec id : std::span(kCodecs).subspan(1)) {  // All that round.
      ASSIGN_OR_RETURN(const nlohmann::json row, StudyCodec(**FindCodec(id), data));
      report["codecs"].push_back(row);
    }
    for (const ValueFormat& format : ValueFormats()) {
      for (const size_t block : {16U, 32U, 64U, 128U, 256U}) {
        for (const ScaleFormat& scale : scales) {
          report["blocks"].push_back(StudyBlocks(format, scale, block, data));
        }
      }
    }
  }
  return report;
}

absl::Status Run() {
  const bool quick = absl::GetFlag(FLAGS_quick);
  const size_t values = quick ? size_t{1} << 14 : size_t{1} << 21;
  std::vector<DataSet> sets = {Drawn("gaussian", values, Gaussian),
                               Drawn("student-t3", values, StudentT3)};
  if (!absl::GetFlag(FLAGS_data).empty()) {
    for (const auto& [name, optimizer] : {std::pair("delta-adamw", v1::TrainConfig::ADAMW),
                                          std::pair("delta-muon", v1::TrainConfig::MUON)}) {
      ASSIGN_OR_RETURN(TrainingDelta delta,
                       TrainForDelta({.data = absl::GetFlag(FLAGS_data),
                                      .model = absl::GetFlag(FLAGS_model),
                                      .optimizer = optimizer,
                                      .steps_before = absl::GetFlag(FLAGS_steps_before),
                                      .interval = absl::GetFlag(FLAGS_interval)}));
      sets.push_back({name, std::move(delta.published), std::move(delta.local)});
    }
  }
  ASSIGN_OR_RETURN(const nlohmann::json report, Study(sets));
  Print(report);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (!ParseCommandLine(argc, argv, "Compares block sizes, scale formats and codecs.").empty()) {
    return Refuse(kProgram, absl::InvalidArgumentError("takes flags only"));
  }
  if (absl::GetFlag(FLAGS_steps_before) < 1 || absl::GetFlag(FLAGS_interval) < 1) {
    return Refuse(kProgram,
                  absl::InvalidArgumentError("--steps_before and --interval must be at least 1"));
  }
  const absl::Status status = Run();
  return status.ok() ? 0 : Fail(kProgram, status);
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) { return causeway::bench::Main(argc, argv); }
