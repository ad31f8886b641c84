#include "common/telemetry/metric_page.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "prometheus/text_serializer.h"

namespace causeway {
namespace {

constexpr size_t kMaxLabelBytes = 64;

}  // namespace

prometheus::ClientMetric& MetricPage::Add(const std::string& name, const std::string& help,
                                          prometheus::MetricType type, const MetricLabels& labels) {
  const auto [place, is_new] = places_.emplace(name, families_.size());
  if (is_new) {
    prometheus::MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    families_.push_back(std::move(family));
  }
  prometheus::ClientMetric& metric = families_[place->second].metric.emplace_back();
  for (const auto& [label, value] : labels) metric.label.push_back({label, value});
  return metric;
}

void MetricPage::Histogram(const std::string& name, const std::string& help,
                           const prometheus::ClientMetric::Histogram& value,
                           const MetricLabels& labels) {
  Add(name, help, prometheus::MetricType::Histogram, labels).histogram = value;
}

std::string MetricPage::Text() const { return prometheus::TextSerializer().Serialize(families_); }

std::string LabelText(absl::string_view text) {
  size_t bytes = std::min(text.size(), kMaxLabelBytes);
  if (bytes < text.size()) {
    // Not in the middle of a character.
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  }
  return std::string(text.substr(0, bytes));
}

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
               std::distance(begin(files), end(files)));
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
