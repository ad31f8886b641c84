// A run's status as lines for a terminal and as JSON for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "causeway/v1/admin.pb.h"

namespace causeway::server {

// Columns wide enough for their cells, two spaces between them; the first is left-aligned, the
// others right-aligned but the last, which may be as long as it likes. `rows` begin with the
// heading and are all equally long.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

// "950", "20.9k", "1.31M", "4.20G".
std::string ShortNumber(double value);
// "12 B", "16.5 MB".
std::string ShortBytes(double bytes);
// "12 s", "4 min", "3 h 10 min", "2 d 4 h".
std::string ShortDuration(absl::Duration duration);

// "active".
std::string WorkerStateName(v1::WorkerStatus::State state);

// When the run will have done all its steps, by the speed of its slowest active worker, which
// everybody waits for. Nothing while no speed is known, or nothing is left to do.
std::optional<absl::Duration> TimeLeft(const v1::RunStatus& status);

// Several lines: what the run does and how far it is.
std::string RunText(const v1::RunStatus& status);
// One line per worker; those who left only with `all`.
std::string WorkersText(const v1::RunStatus& status, bool all);
// One line per fragment: its version and why its open round waits.
std::string FragmentsText(const v1::RunStatus& status);
// All of them.
std::string StatusText(const v1::RunStatus& status);

// The message as common/files/json.h writes it, indented or in one line.
std::string StatusJson(const v1::RunStatus& status, bool one_line);

}  // namespace causeway::server
