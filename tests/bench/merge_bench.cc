// How fast a round of one fragment is merged, next to what the memory of the same machine can do.
//
//   merge_bench [--json] [--quick] [--values=N] [--threads=N] [--repeats=N]
//
// Merges 2 and 8 int4 contributions with Nesterov and an int4 answer, on all cores. A merge counts
// as moving every byte once that it must move:
//
//   contributions read, theta, momentum and published read and written, the answer written
//
// `triad_fraction` is that over the time, divided by the STREAM triad rate on the same threads.
// `cpu_triad_fraction` is the same of the seconds that the threads computed: what to look at where
// others use the cores, too, but blind to a core that waits for another.
// Each merge is timed twice: with contributions that were validated when they arrived, as the
// coordinator's are, and (`validating`) with ones that the merge has to read twice. Then come the
// other rules (delta_combiner.h): `rules` has their seconds, and their ratio to the mean.
//
// `beyond_bytes` is the process's peak (VmHWM) during the merges less what it had before them and
// less the answer: what the merge takes beyond state, contributions and answer, as exact as the
// kernel counts (it may come out some pages below zero).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/random.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "common/params/run_config.h"
#include "nlohmann/json.hpp"
#include "server/outer/merge.h"
#include "tests/bench/measure.h"

ABSL_FLAG(int64_t, values, int64_t{256} << 20, "Parameters of the fragment");
ABSL_FLAG(int, threads, 0, "Threads; 0: one per core");
ABSL_FLAG(int, repeats, 5, "Timed merges per row, of which the fastest counts");

namespace causeway::bench {
namespace {

using server::Contribution;
using server::FragmentState;
using server::MergeFragment;
using server::MergeInput;
using server::MergeRule;

// A field of /proc/self/status in bytes; 0 where there is none.
int64_t ProcessBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!absl::StartsWith(line, field + ":")) continue;
    std::istringstream words(line.substr(field.size() + 1));
    int64_t kibibytes = 0;
    words >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

// The peak counts from here.
void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// Contributions of one fragment. A pattern of whole codec chunks is encoded once per worker and
// repeated.
class Inputs {
 public:
  Inputs(size_t values, size_t workers, const Codec* codec) {
    constexpr size_t kPattern = 64 * kCodecChunk;
    const std::vector<float> base(kPattern, 0.0F);
    std::vector<float> target(kPattern);
    for (size_t worker = 0; worker < workers; ++worker) {
      for (size_t i = 0; i < kPattern; ++i) {
        target[i] = static_cast<float>(1e-3 * RandomNormal(worker, 0, i));
      }
      std::vector<uint8_t> pattern(codec->EncodedBytes(kPattern));
      Check(codec->Encode(base, target, {}, pattern));
      std::vector<uint8_t>& all = bytes_.emplace_back(codec->EncodedBytes(values));
      // A last part of a chunk would have another layout; whole chunks do not depend on where.
      for (size_t at = 0; at < all.size(); at += pattern.size()) {
        std::memcpy(all.data() + at, pattern.data(), std::min(pattern.size(), all.size() - at));
      }
      contributions_.push_back({.worker_id = absl::StrFormat("worker-%03d", worker),
                                .codec = codec,
                                .encoded = all,
                                .weight = 1.0 / static_cast<double>(workers)});
    }
  }

  std::vector<Contribution> contributions(bool validated) const {
    std::vector<Contribution> result = contributions_;
    for (Contribution& contribution : result) contribution.validated = validated;
    return result;
  }
  size_t bytes() const {
    size_t sum = 0;
    for (const auto& contribution : bytes_) sum += contribution.size();
    return sum;
  }

 private:
  std::vector<std::vector<uint8_t>> bytes_;
  std::vector<Contribution> contributions_;
};

struct Timing {
  double seconds = 1e300;
  double cpu_seconds = 1e300;  // All threads added up.
};

Timing TimeMerges(const MergeInput& input, const FragmentState& state, ThreadPool* pool,
                  int repeats) {
  Timing best;
  for (int i = 0; i < repeats; ++i) {
    const double cpu = ProcessCpuSeconds();
    best.seconds =
        std::min(best.seconds, Seconds([&] { Check(MergeFragment(input, state, pool).status()); }));
    best.cpu_seconds = std::min(best.cpu_seconds, ProcessCpuSeconds() - cpu);
  }
  return best;
}

// By name, beside the mean.
nlohmann::json TimeRules(MergeInput input, const FragmentState& state, ThreadPool* pool,
                         int repeats, const Timing& mean) {
  constexpr auto kTrimmed = v1::OuterConfig::TRIMMED_MEAN;
  const std::pair<const char*, MergeRule> rules[] = {
      {"norm_and_direction", {.merge = v1::OuterConfig::NORM_AND_DIRECTION}},
      {"clipped", {.clip_factor = 1.5}},
      {"trimmed_1", {.merge = kTrimmed, .trim = 1}},
      {"trimmed_2", {.merge = kTrimmed, .trim = 2}},
      {"clipped_trimmed_1", {.merge = kTrimmed, .clip_factor = 1.5, .trim = 1}}};
  nlohmann::json report = nlohmann::json::object();
  for (const auto& [name, rule] : rules) {
    if (rule.merge == kTrimmed && input.contributions.size() < size_t{kFewestToTrim}) continue;
    input.rule = rule;
    const Timing timing = TimeMerges(input, state, pool, repeats);
    report[name] = {{"seconds", timing.seconds},
                    {"of_mean", timing.seconds / mean.seconds},
                    {"cpu_of_mean", timing.cpu_seconds / mean.cpu_seconds}};
  }
  return report;
}

nlohmann::json Run(size_t values, int threads, int repeats, size_t rate_bytes) {
  nlohmann::json report;
  report["values"] = values;
  report["threads"] = threads;
  report["load_average"] = LoadAverage();
  report["single_core"] = MeasureMemory(1, rate_bytes, repeats).ToJson();
  const MemoryRates all_cores = MeasureMemory(threads, rate_bytes, repeats);
  report["all_cores"] = all_cores.ToJson();

  const Codec* const codec = *FindCodec(v1::INT4);
  v1::OuterConfig outer;
  outer.set_optimizer(v1::OuterConfig::NESTEROV);
  outer.set_learning_rate(0.7);
  outer.set_momentum(0.9);
  const auto optimizer = Value(server::CreateOuterOptimizer(outer, v1::TrainConfig(), {}));
  std::vector<float> theta(values, 0.02F);
  std::vector<float> published(values, 0.02F);
  std::vector<float> momentum(values, 0.0F);
  const FragmentState state{.theta = theta, .published = published, .optimizer = {momentum}};
  ThreadPool pool(threads);

  report["rows"] = nlohmann::json::array();
  for (const size_t workers : {size_t{2}, size_t{8}}) {
    const Inputs inputs(values, workers, codec);
    const size_t answer_bytes = codec->EncodedBytes(values);
    const size_t moved = inputs.bytes() + 3 * 2 * values * sizeof(float) + answer_bytes;
    MergeInput input{.contributions = inputs.contributions(true),
                     .optimizer = optimizer.get(),
                     .answer_codec = codec,
                     .round = 1};
    ResetPeak();
    const int64_t before = ProcessBytes("VmHWM");
    const Timing merge = TimeMerges(input, state, &pool, repeats);
    input.contributions = inputs.contributions(false);
    const Timing validating = TimeMerges(input, state, &pool, repeats);
    const int64_t peak = ProcessBytes("VmHWM");
    input.contributions = inputs.contributions(true);
    const double rate = static_cast<double>(moved) / merge.seconds;
    const double validating_rate = static_cast<double>(moved) / validating.seconds;
    report["rows"].push_back(
        {{"workers", workers},
         {"codec", std::string(codec->name())},
         {"moved_bytes", moved},
         {"moved_bytes_per_value", static_cast<double>(moved) / static_cast<double>(values)},
         {"seconds", merge.seconds},
         {"cpu_seconds", merge.cpu_seconds},
         {"gb_per_s", rate * 1e-9},
         {"triad_fraction", rate / all_cores.triad_bytes_per_s},
         {"cpu_triad_fraction",
          static_cast<double>(moved) / merge.cpu_seconds / all_cores.triad_bytes_per_cpu_s},
         {"validating_seconds", validating.seconds},
         {"validating_triad_fraction", validating_rate / all_cores.triad_bytes_per_s},
         {"state_bytes", 3 * values * sizeof(float)},
         {"contribution_bytes", inputs.bytes()},
         {"answer_bytes", answer_bytes},
         {"beyond_bytes", peak - before - static_cast<int64_t>(answer_bytes)},
         {"rules", TimeRules(input, state, &pool, repeats, merge)}});
  }
  report["load_average_after"] = LoadAverage();
  return report;
}

absl::StatusOr<nlohmann::json> Measure() {
  const bool quick = absl::GetFlag(FLAGS_quick);
  const int64_t values = quick ? int64_t{1} << 20 : absl::GetFlag(FLAGS_values);
  const int repeats = quick ? 1 : absl::GetFlag(FLAGS_repeats);
  const int threads = Threads(absl::GetFlag(FLAGS_threads));
  if (values < 1 || values % static_cast<int64_t>(kCodecChunk) != 0 || repeats < 1 || threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--values must be a multiple of ", kCodecChunk,
                                                   ", --repeats and --threads at least 1"));
  }
  const size_t rate_bytes = size_t{1} << (quick ? 22 : 30);
  return Run(static_cast<size_t>(values), threads, repeats, rate_bytes);
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  return causeway::bench::RunBenchmark(argc, argv, "Times the merge of one fragment's round.",
                                       causeway::bench::Measure);
}
