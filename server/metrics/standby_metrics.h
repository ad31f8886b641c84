// A standby's answer to GET /metrics.
#ifndef CAUSEWAY_SERVER_METRICS_STANDBY_METRICS_H_
#define CAUSEWAY_SERVER_METRICS_STANDBY_METRICS_H_

#include <string>

#include "common/base/file_system.h"
#include "common/metrics/process_figures.h"
#include "server/standby/standby_notes.h"

namespace causeway::server {

// `run_dir`: the copy.
std::string StandbyMetricsText(const StandbyNotes& notes, FileSystem& file_system,
                               const std::string& run_dir, const CertificateFiles& certificates);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_METRICS_STANDBY_METRICS_H_
