// The system's figures of this process, under the names that Prometheus's libraries share.
#ifndef CAUSEWAY_COMMON_METRICS_PROCESS_FIGURES_H_
#define CAUSEWAY_COMMON_METRICS_PROCESS_FIGURES_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics/metric_page.h"

namespace causeway {

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

#endif  // CAUSEWAY_COMMON_METRICS_PROCESS_FIGURES_H_
