#include "server/views/status_text.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "common/files/json.h"
#include "server/core/coordinator.h"

namespace causeway::server {
namespace {

constexpr char kUnknown[] = "-";

// Three digits.
std::string Digits(double value) {
  if (value < 9.995) return absl::StrFormat("%.2f", value);
  if (value < 99.95) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.0f", value);
}

std::string Known(double value, const std::string& text) { return value > 0 ? text : kUnknown; }

std::string Activity(const v1::RunStatus& status) {
  if (status.finished()) return "finished";
  if (!status.started()) {
    return absl::StrCat("waits for ", status.config().membership().start_workers(), " workers");
  }
  return status.paused() ? "paused" : "training";
}

}  // namespace

std::string WorkerStateName(v1::WorkerStatus::State state) {
  const bool known = v1::WorkerStatus::State_IsValid(state) && state != 0;
  return known ? absl::AsciiStrToLower(v1::WorkerStatus::State_Name(state)) : "unknown";
}

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      if (i > 0) line += "  ";
      line += i == 0 || i + 1 == row.size() ? row[i] + padding : padding + row[i];
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

std::string ShortNumber(double value) {
  if (value < 999.5) return absl::StrFormat("%.0f", value);
  constexpr std::array<const char*, 4> kUnits = {"k", "M", "G", "T"};
  size_t unit = 0;
  value /= 1000;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return absl::StrCat(Digits(value), kUnits[unit]);
}

std::string ShortBytes(double bytes) {
  const std::string number = ShortNumber(bytes);
  const char last = number.back();
  if (last >= '0' && last <= '9') return absl::StrCat(number, " B");
  return absl::StrCat(number.substr(0, number.size() - 1), " ", std::string(1, last), "B");
}

std::string ShortDuration(absl::Duration duration) {
  const int64_t seconds = std::llround(absl::ToDoubleSeconds(duration));
  const int64_t minutes = (seconds + 30) / 60;
  if (seconds < 100) return absl::StrCat(seconds, " s");
  if (minutes < 100) return absl::StrCat(minutes, " min");
  if (minutes < 48 * 60) return absl::StrCat(minutes / 60, " h ", minutes % 60, " min");
  return absl::StrCat(minutes / 1440, " d ", minutes % 1440 / 60, " h");
}

std::optional<absl::Duration> TimeLeft(const v1::RunStatus& status) {
  const v1::RunConfig& config = status.config();
  const double tokens_per_step = static_cast<double>(config.train().batch_sequences()) *
                                 static_cast<double>(config.model().sequence_length());
  double steps_per_second = 0;
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.state() != v1::WorkerStatus::ACTIVE || worker.tokens_per_second() <= 0) continue;
    const double speed = worker.tokens_per_second() / tokens_per_step *
                         std::max(1.0, worker.pace()) / std::max(1, worker.sites_size());
    steps_per_second = steps_per_second == 0 ? speed : std::min(steps_per_second, speed);
  }
  const int64_t left = config.train().steps() - status.run_step();
  if (!status.started() || status.paused() || status.finished() || left <= 0 ||
      !(steps_per_second > 0) || !std::isfinite(steps_per_second)) {
    return std::nullopt;
  }
  return absl::Seconds(static_cast<double>(left) / steps_per_second);
}

std::string RunText(const v1::RunStatus& status) {
  const int64_t steps = status.config().train().steps();
  std::string text = absl::StrFormat("run %s: %s, step %d of %d", status.run_id(), Activity(status),
                                     status.run_step(), steps);
  if (steps > 0) {
    absl::StrAppendFormat(
        &text, " (%.0f %%)",
        100.0 * static_cast<double>(status.run_step()) / static_cast<double>(steps));
  }
  if (const std::optional<absl::Duration> left = TimeLeft(status); left.has_value()) {
    absl::StrAppend(&text, ", about ", ShortDuration(*left), " left");
  }
  int live = 0;
  double tokens_per_second = 0;
  double up = 0;
  double down = 0;
  for (const v1::WorkerStatus& worker : status.workers()) {
    up += static_cast<double>(worker.bytes_up());
    down += static_cast<double>(worker.bytes_down());
    if (!IsLive(worker)) continue;
    live += std::max(1, worker.sites_size());
    tokens_per_second += worker.tokens_per_second();
  }
  int64_t rounds = 0;
  for (const v1::FragmentStatus& fragment : status.fragments()) {
    rounds += fragment.published_version();
  }
  absl::StrAppendFormat(&text, "\n%d of %d workers, %s tokens/s together, %s tokens trained\n",
                        live, status.config().membership().max_workers(),
                        ShortNumber(tokens_per_second),
                        ShortNumber(static_cast<double>(status.tokens())));
  absl::StrAppendFormat(&text, "%d rounds of %d fragments; exchanged %s up, %s down\n", rounds,
                        status.fragments_size(), ShortBytes(up), ShortBytes(down));
  return text;
}

std::string WorkersText(const v1::RunStatus& status, bool all) {
  std::vector<std::vector<std::string>> rows = {
      {"WORKER", "STATE", "STEP", "TOKENS/S", "BUSY", "LOSS", "UP", "DOWN", "RTT", "  DEVICE"}};
  int left = 0;
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.state() == v1::WorkerStatus::LEFT && !all) {
      ++left;
      continue;
    }
    const double rtt = worker.link().rtt_seconds();
    rows.push_back({worker.worker_id(), WorkerStateName(worker.state()),
                    absl::StrCat(worker.step()),
                    Known(worker.tokens_per_second(), ShortNumber(worker.tokens_per_second())),
                    Known(worker.compute_utilization(),
                          absl::StrFormat("%.1f %%", 100 * worker.compute_utilization())),
                    Known(worker.train_loss(), absl::StrFormat("%.3f", worker.train_loss())),
                    ShortBytes(static_cast<double>(worker.bytes_up())),
                    ShortBytes(static_cast<double>(worker.bytes_down())),
                    Known(rtt, absl::StrFormat("%.1f ms", 1000 * rtt)),
                    absl::StrCat("  ", Printable(worker.device()))});
    if (!IsLive(worker)) continue;
    for (const v1::SiteReport& site : worker.sites()) {
      rows.push_back(
          {absl::StrCat("  ", Printable(site.worker_id())), "below", absl::StrCat(site.step()),
           Known(site.tokens_per_second(), ShortNumber(site.tokens_per_second())),
           Known(site.compute_utilization(),
                 absl::StrFormat("%.1f %%", 100 * site.compute_utilization())),
           Known(site.train_loss(), absl::StrFormat("%.3f", site.train_loss())), "", "", "", ""});
    }
  }
  std::string late;
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (!IsLive(worker) || worker.late_answers() == 0) continue;
    absl::StrAppend(&late, worker.worker_id(), ": ", worker.late_answers(),
                    worker.late_answers() == 1 ? " answer is late" : " answers are late");
    if (worker.has_steps_before_wait()) {
      const int64_t steps = worker.steps_before_wait();
      absl::StrAppend(&late, steps == 0
                                 ? ", and it waits"
                                 : absl::StrCat("; it trains on, ", steps, " more ",
                                                steps == 1 ? "step" : "steps", " before it waits"));
    }
    absl::StrAppend(&late, "\n");
  }
  const bool somebody = rows.size() > 1;
  if (!somebody && left == 0) return "no workers have joined yet\n";
  std::string text = somebody ? FormatTable(rows) : "";
  if (left > 0) {
    absl::StrAppend(&text, left, somebody ? " more" : "", left == 1 ? " has" : " have",
                    " left (--all shows who)\n");
  }
  return text + late;
}

std::string FragmentsText(const v1::RunStatus& status) {
  std::vector<std::vector<std::string>> rows = {
      {"FRAGMENT", "VALUES", "VERSION", "ARRIVED", "  OPEN ROUND"}};
  for (const v1::FragmentStatus& fragment : status.fragments()) {
    std::string waiting = fragment.waiting_for();
    if (fragment.quarantined_size() > 0) {
      absl::StrAppend(&waiting, waiting.empty() ? "" : "; ",
                      "quarantined: ", absl::StrJoin(fragment.quarantined(), ", "));
    }
    rows.push_back(
        {absl::StrCat(fragment.fragment()), ShortNumber(static_cast<double>(fragment.values())),
         absl::StrCat(fragment.published_version()), absl::StrCat(fragment.contributed_size()),
         absl::StrCat("  ", Printable(waiting))});
  }
  return FormatTable(rows);
}

std::string StatusText(const v1::RunStatus& status) {
  return absl::StrCat(RunText(status), "\n", WorkersText(status, /*all=*/false), "\n",
                      FragmentsText(status));
}

std::string StatusJson(const v1::RunStatus& status, bool one_line) {
  return absl::StrCat(JsonText(MessageToJson(status), one_line ? -1 : 2), "\n");
}

}  // namespace causeway::server
