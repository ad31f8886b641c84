// How fast the codecs are, next to how fast the same cores copy memory.
//
//   codec_bench [--json] [--quick] [--codec=NAME] [--values=N] [--threads=N] [--repeats=N]
//
// Per codec and operation, on one core and on all:
//
//   gb_per_s          fp32 bytes of the values processed (4 per value) over time, on one core
//   memcpy_fraction   the same, over the bytes that memcpy copies (each counted once) in that
//                     time on one core, measured in the same run
//   all_cores_...     the same with a thread per core, against memcpy with as many threads
//
// All operations run on slices of 16384 values, as in the merge. Every array that is streamed
// takes --values fp32 values, or at least as many bytes where it is encoded, so it is far larger
// than the caches:
//
//   encode            reads base and target, writes codes
//   encode_feedback   also reads and writes the residual
//   accumulate        reads codes, and for fp32 the base; adds to a slice of doubles that stays in
//                     cache, as the merge's accumulator does
//   apply             reads codes, reads and writes the values
//   validate          reads codes and base
//
// The fastest of --repeats passes counts: other load only ever adds time.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "nlohmann/json.hpp"
#include "tests/bench/measure.h"

ABSL_FLAG(std::string, codec, "", "Only this codec, such as int4");
ABSL_FLAG(int64_t, values, int64_t{128} << 20, "Values per array");
ABSL_FLAG(int, threads, 0, "Threads; 0: one per core");
ABSL_FLAG(int, repeats, 5, "Passes per row, of which the fastest counts");

namespace causeway::bench {
namespace {

constexpr size_t kSlice = 4 * kCodecChunk;
constexpr size_t kPattern = 16 * kSlice;  // Values until the arrays repeat themselves.

// `pattern` again and again.
template <typename T>
std::vector<T> Repeated(const std::vector<T>& pattern, size_t times) {
  std::vector<T> all(pattern.size() * times);
  for (size_t i = 0; i < times; ++i) {
    std::memcpy(all.data() + i * pattern.size(), pattern.data(), pattern.size() * sizeof(T));
  }
  return all;
}

class CodecBench {
 public:
  CodecBench(size_t values, int threads, int repeats)
      : patterns_(values / kPattern), repeats_(repeats), one_(1), all_(threads) {
    std::vector<float> base(kPattern);
    std::vector<float> target(kPattern);
    for (size_t i = 0; i < kPattern; ++i) {
      // Never across 0: fp32's distances would then grow beyond what repeated passes can add.
      base[i] = static_cast<float>(0.1 + 0.05 * RandomUniform(1, 0, i));
      target[i] = base[i] - static_cast<float>(1e-3 * RandomNormal(2, 0, i));
    }
    base_ = Repeated(base, patterns_);
    target_ = Repeated(target, patterns_);
    residual_.resize(base_.size());
    values_.resize(base_.size());
  }

  // The rows of one codec: operation by operation.
  nlohmann::json Rows(const Codec& codec, const MemoryRates& one_core, const MemoryRates& all) {
    std::vector<uint8_t> pattern(codec.EncodedBytes(kPattern));
    Check(codec.Encode(std::span(base_).first(kPattern), std::span(target_).first(kPattern), {},
                       pattern));
    // Readers go round `base` while the codes take as many bytes as it.
    const size_t rounds = std::max(size_t{1}, base_.size() * sizeof(float) / pattern.size());
    const std::vector<uint8_t> encoded = Repeated(pattern, rounds);
    std::vector<uint8_t> out(codec.EncodedBytes(base_.size()));
    const size_t slice_bytes = codec.EncodedBytes(kSlice);

    nlohmann::json rows = nlohmann::json::array();
    const auto measure = [&](const char* operation, size_t values, auto slice_operation) {
      const double one_rate = Rate(&one_, values, slice_operation);
      const double all_rate = Rate(&all_, values, slice_operation);
      rows.push_back({{"codec", std::string(codec.name())},
                      {"operation", operation},
                      {"bytes_per_value", static_cast<double>(pattern.size()) / kPattern},
                      {"gb_per_s", one_rate * 1e-9},
                      {"memcpy_fraction", one_rate / one_core.memcpy_bytes_per_s},
                      {"all_cores_gb_per_s", all_rate * 1e-9},
                      {"all_cores_memcpy_fraction", all_rate / all.memcpy_bytes_per_s}});
    };
    const auto part = [](auto& array, size_t slice) {
      return std::span(array).subspan(slice * kSlice % array.size(), kSlice);
    };
    const auto codes = [&](size_t slice) {
      return std::span(encoded).subspan(slice * slice_bytes, slice_bytes);
    };
    const auto answer = [&](size_t slice) {
      return std::span(out).subspan(slice * slice_bytes, slice_bytes);
    };
    measure("encode", base_.size(), [&](size_t slice) {
      return codec.Encode(part(base_, slice), part(target_, slice), {}, answer(slice));
    });
    measure("encode_feedback", base_.size(), [&](size_t slice) {
      return codec.Encode(part(base_, slice), part(target_, slice), {part(residual_, slice)},
                          answer(slice));
    });
    measure("accumulate", rounds * kPattern, [&](size_t slice) {
      thread_local std::vector<double> sum(kSlice);
      return codec.Accumulate(codes(slice), part(base_, slice), 0.25, sum);
    });
    values_ = base_;
    measure("apply", base_.size(),
            [&](size_t slice) { return codec.Apply(codes(slice), part(values_, slice)); });
    measure("validate", base_.size(),
            [&](size_t slice) { return codec.Validate(codes(slice), part(base_, slice)); });
    return rows;
  }

 private:
  // fp32 bytes per second of the fastest pass over `values` values.
  template <typename SliceOperation>
  double Rate(ThreadPool* pool, size_t values, const SliceOperation& operation) {
    constexpr size_t kSlicesPerTask = kPattern / kSlice;
    double best = 1e300;
    for (int i = 0; i < repeats_; ++i) {
      const double seconds = Seconds([&] {
        pool->ParallelFor(static_cast<int64_t>(values / kPattern), [&](int64_t task) {
          const size_t first = static_cast<size_t>(task) * kSlicesPerTask;
          for (size_t slice = first; slice < first + kSlicesPerTask; ++slice) {
            Check(operation(slice));
          }
        });
      });
      best = std::min(best, seconds);
    }
    return static_cast<double>(values * sizeof(float)) / best;
  }

  size_t patterns_;
  int repeats_;
  ThreadPool one_, all_;
  std::vector<float> base_, target_, residual_, values_;
};

nlohmann::json Run(size_t values, int threads, int repeats, const std::string& only) {
  nlohmann::json report;
  report["values"] = values;
  report["threads"] = threads;
  report["load_average"] = LoadAverage();
  const MemoryRates one_core = MeasureMemory(1, values * sizeof(float), repeats);
  const MemoryRates all_cores = MeasureMemory(threads, values * sizeof(float), repeats);
  report["single_core"] = one_core.ToJson();
  report["all_cores"] = all_cores.ToJson();
  report["rows"] = nlohmann::json::array();
  CodecBench bench(values, threads, repeats);
  for (const v1::Codec id : kCodecs) {
    const Codec& codec = **FindCodec(id);
    if (!only.empty() && codec.name() != only) continue;
    for (const auto& row : bench.Rows(codec, one_core, all_cores)) {
      report["rows"].push_back(row);
    }
  }
  report["load_average_after"] = LoadAverage();
  return report;
}

absl::StatusOr<nlohmann::json> Measure() {
  const bool quick = absl::GetFlag(FLAGS_quick);
  const int64_t values = quick ? int64_t{1} << 20 : absl::GetFlag(FLAGS_values);
  const int repeats = quick ? 1 : absl::GetFlag(FLAGS_repeats);
  const int threads = Threads(absl::GetFlag(FLAGS_threads));
  if (values < 1 || values % static_cast<int64_t>(kPattern) != 0 || repeats < 1 || threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--values must be a multiple of ", kPattern,
                                                   ", --repeats and --threads at least 1"));
  }
  return Run(static_cast<size_t>(values), threads, repeats, absl::GetFlag(FLAGS_codec));
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  return causeway::bench::RunBenchmark(argc, argv, "Times the codecs.", causeway::bench::Measure);
}
