// What benchmarks share: times, this machine's memory rates, measured in the same run as what is
// compared with them, and the report. A benchmark ends with its name and a line where something
// fails.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

ABSL_DECLARE_FLAG(bool, quick);

namespace causeway::bench {

void Check(const absl::Status& status);

template <typename T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

double Seconds(absl::FunctionRef<void()> work);
double Median(std::vector<double> values);
double LoadAverage();
// As many threads as asked for, or one per core for 0.
int Threads(int asked);

// A benchmark's program, which takes flags alone: prints what is measured as JSON, on one line with
// --json. Bad input (INVALID_ARGUMENT) ends it with 2, another error with 1.
int RunBenchmark(int argc, char** argv, const std::string& help,
                 absl::FunctionRef<absl::StatusOr<nlohmann::json>()> measure);

// A folder that is removed at the end. Refuses a parent that nothing can be made in.
class Scratch {
 public:
  explicit Scratch(const std::string& parent);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string File(const std::string& name) const;

 private:
  std::string path_;
};

struct MemoryRates {
  double memcpy_bytes_per_s = 0;  // Bytes copied, counted once.
  // a[i] = b[i] + s * c[i] in double: 24 bytes per i, as STREAM counts.
  double triad_bytes_per_s = 0;
  // The same over the seconds that the threads computed, all added up: on a machine that others
  // use, too, it tells more than the time that passed.
  double triad_bytes_per_cpu_s = 0;

  nlohmann::json ToJson() const;
};

// Processor time of all threads of this process together.
double ProcessCpuSeconds();

// The best of `repeats` passes on `threads` threads over three arrays of `array_bytes` each, which
// should be several times the last-level cache. They are freed again on return.
MemoryRates MeasureMemory(int threads, size_t array_bytes, int repeats);

}  // namespace causeway::bench
