#include "tests/bench/measure.h"

#include <errno.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <system_error>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/thread_pool.h"
#include "common/cli/command_line.h"

ABSL_FLAG(bool, json, false, "Print the report on one line");
ABSL_FLAG(bool, quick, false, "A run of a second that only shows that everything works");

namespace causeway::bench {
namespace {

constexpr size_t kTaskValues = size_t{1} << 17;  // 1 MiB, as the merge's tasks.

void Triad(double* a, const double* b, const double* c, size_t size) {
  for (size_t i = 0; i < size; ++i) a[i] = b[i] + 3.0 * c[i];
}

}  // namespace

void Check(const absl::Status& status) {
  if (!status.ok()) std::exit(Fail(program_invocation_short_name, status));
}

double Seconds(absl::FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double LoadAverage() {
  double load = 0;
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

int Threads(int asked) {
  return asked != 0 ? asked : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

int RunBenchmark(int argc, char** argv, const std::string& help,
                 absl::FunctionRef<absl::StatusOr<nlohmann::json>()> measure) {
  const char* const program = program_invocation_short_name;
  if (!ParseCommandLine(argc, argv, help).empty()) {
    return Refuse(program, absl::InvalidArgumentError("takes flags only; see --help"));
  }
  const absl::StatusOr<nlohmann::json> report = measure();
  if (absl::IsInvalidArgument(report.status())) return Refuse(program, report.status());
  if (!report.ok()) return Fail(program, report.status());
  std::cout << report->dump(absl::GetFlag(FLAGS_json) ? -1 : 2) << "\n";
  return 0;
}

Scratch::Scratch(const std::string& parent) : path_(JoinPath(parent, "bench_XXXXXX")) {
  if (mkdtemp(path_.data()) != nullptr) return;
  std::exit(Refuse(program_invocation_short_name, absl::InvalidArgumentError(absl::StrCat(
                                                      "cannot write below --folder ", parent))));
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Scratch::File(const std::string& name) const { return JoinPath(path_, name); }

nlohmann::json MemoryRates::ToJson() const {
  return {{"memcpy_gb_per_s", memcpy_bytes_per_s * 1e-9},
          {"triad_gb_per_s", triad_bytes_per_s * 1e-9},
          {"triad_gb_per_cpu_s", triad_bytes_per_cpu_s * 1e-9}};
}

double ProcessCpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

MemoryRates MeasureMemory(int threads, size_t array_bytes, int repeats) {
  const size_t tasks = std::max(size_t{1}, array_bytes / sizeof(double) / kTaskValues);
  const size_t size = tasks * kTaskValues;
  std::vector<double> a(size, 1.0);
  std::vector<double> b(size, 2.0);
  std::vector<double> c(size, 0.5);
  ThreadPool pool(threads);
  const auto seconds = [&](const std::function<void(size_t)>& task) {
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(static_cast<int64_t>(tasks),
                     [&](int64_t i) { task(static_cast<size_t>(i) * kTaskValues); });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto bytes = static_cast<double>(size * sizeof(double));
  MemoryRates rates;
  for (int i = 0; i < repeats; ++i) {
    const double copy = seconds([&](size_t at) {
      std::memcpy(a.data() + at, b.data() + at, kTaskValues * sizeof(double));
    });
    const double cpu = ProcessCpuSeconds();
    const double triad = seconds(
        [&](size_t at) { Triad(a.data() + at, b.data() + at, c.data() + at, kTaskValues); });
    const double triad_cpu = ProcessCpuSeconds() - cpu;
    rates.memcpy_bytes_per_s = std::max(rates.memcpy_bytes_per_s, bytes / copy);
    rates.triad_bytes_per_s = std::max(rates.triad_bytes_per_s, 3 * bytes / triad);
    rates.triad_bytes_per_cpu_s = std::max(rates.triad_bytes_per_cpu_s, 3 * bytes / triad_cpu);
  }
  return rates;
}

}  // namespace causeway::bench
