#include "common/metrics/process_figures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace causeway {
namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

void AddProcessFigures(MetricPage& page) {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    page.Counter("process_cpu_seconds_total", "Of this process.",
                 Seconds(usage.ru_utime) + Seconds(usage.ru_stime));
  }
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident_pages = 0;
  if (statm >> pages >> resident_pages) {
    page.Gauge("process_resident_memory_bytes", "Of this process.",
               static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (!error) {
    page.Gauge("process_open_fds", "Files and connections.",
               static_cast<double>(std::distance(begin(files), end(files))));
  }
}

void AddCertificateFigures(
    MetricPage& page, const CertificateFiles& files,
    const std::function<absl::StatusOr<absl::Time>(const std::string& file)>& end_of) {
  for (const auto& [flag, file] : files) {
    if (file.empty()) continue;
    const absl::StatusOr<absl::Time> end = end_of(file);
    page.Gauge("causeway_certificate_readable",
               "1 if the certificate that this flag names can be read.", end.ok() ? 1 : 0,
               {{"flag", flag}});
    if (!end.ok()) continue;
    page.Gauge("causeway_certificate_end_timestamp_seconds", "Its end, in seconds since 1970.",
               absl::ToDoubleSeconds(*end - absl::UnixEpoch()), {{"flag", flag}});
  }
}

}  // namespace causeway
