// Figures of a process in Prometheus's text format, gathered anew for every scrape: what is not
// added is not there, so the series of a worker that has left are gone with it.
//
// Names follow Prometheus's rules: causeway_, the thing, the unit in its base (seconds, bytes), and
// _total for what only grows. docs/monitoring.md lists all of them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "prometheus/metric_family.h"

namespace causeway {

// {{"worker", "a"}, {"direction", "up"}}
using MetricLabels = std::map<std::string, std::string>;

// Not thread-safe.
class MetricPage {
 public:
  // The first call of a name decides on its help text and its place on the page.
  template <typename Value>
  void Gauge(const std::string& name, const std::string& help, Value value,
             const MetricLabels& labels = {}) {
    Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = static_cast<double>(value);
  }
  // For a value that only grows, or begins anew at 0.
  template <typename Value>
  void Counter(const std::string& name, const std::string& help, Value value,
               const MetricLabels& labels = {}) {
    Add(name, help, prometheus::MetricType::Counter, labels).counter.value =
        static_cast<double>(value);
  }
  // As prometheus::Histogram::Collect gives it.
  void Histogram(const std::string& name, const std::string& help,
                 const prometheus::ClientMetric::Histogram& value, const MetricLabels& labels = {});

  std::string Text() const;
  static constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

 private:
  prometheus::ClientMetric& Add(const std::string& name, const std::string& help,
                                prometheus::MetricType type, const MetricLabels& labels);

  std::vector<prometheus::MetricFamily> families_;
  std::map<std::string, size_t> places_;  // In families_.
};

// A text of somebody else's as the value of a label: at most 64 bytes, whole UTF-8 characters.
std::string LabelText(absl::string_view text);

// The system's figures of this process, under the names that Prometheus's libraries share.

// process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds. What /proc does not
// tell is left out.
void AddProcessFigures(MetricPage& page);

// Files of certificates that this process shows its peers, by the flag that gave them, as
// {{"tls_cert", "cert.pem"}}. Empty names count for none.
using CertificateFiles = std::map<std::string, std::string>;

// causeway_certificate_readable of each and, if it is, causeway_certificate_end_timestamp_seconds.
// `end_of` reads a file now, so that a renewed one counts at once.
void AddCertificateFigures(
    MetricPage& page, const CertificateFiles& files,
    const std::function<absl::StatusOr<absl::Time>(const std::string& file)>& end_of);

}  // namespace causeway
