// The finding of a preflight's check, for people and for scripts.
#ifndef CAUSEWAY_WORKER_PREFLIGHT_CHECK_RESULT_H_
#define CAUSEWAY_WORKER_PREFLIGHT_CHECK_RESULT_H_

#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace causeway::worker {

enum class CheckStatus {
  kOk,
  kWarning,  // It works, but not as well as it could, or not for long.
  kFailed,   // The site cannot train like this.
  kSkipped,  // Not asked for, or something that it needs has failed.
};

struct Measured {
  std::string name;  // "round_trip_min"
  double value = 0;
  std::string unit;  // "s", "bytes", "bytes/s", "1"
};

struct CheckResult {
  std::string name;  // "round trip"
  CheckStatus status = CheckStatus::kOk;
  std::string finding;
  std::string remedy;  // Says what to do, for warnings and failures.
  std::vector<Measured> values = {};
};

CheckResult Passed(absl::string_view name, absl::string_view finding);
CheckResult Warned(absl::string_view name, absl::string_view finding, absl::string_view remedy);
CheckResult Failed(absl::string_view name, absl::string_view finding, absl::string_view remedy);
CheckResult Skipped(absl::string_view name, absl::string_view reason);

// "ok    round trip     101 ms ..." and, below it, "-> what to do". No newline at the end.
std::string FormatCheck(const CheckResult& result);

// "This site can join: 14 checks passed, 2 with a warning." Says what keeps it from joining.
std::string FormatVerdict(std::span<const CheckResult> results);

// {"passed": true, "checks": [{"name", "status", "finding", "remedy", "values": {NAME: {"value",
// "unit"}}}]}; status is "ok", "warning", "failed" or "skipped".
nlohmann::json ToJson(std::span<const CheckResult> results);

bool AnyFailed(std::span<const CheckResult> results);

// For findings: "812 Mbit/s", "1.4 GB", "101 ms".
std::string FormatRate(double bytes_per_second);
std::string FormatBytes(double bytes);
std::string FormatTime(absl::Duration time);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_PREFLIGHT_CHECK_RESULT_H_
