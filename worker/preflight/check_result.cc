#include "worker/preflight/preflight.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace causeway::worker {
namespace {

const char* StatusWord(CheckStatus status) {
  switch (status) {
    case CheckStatus::kOk:
      return "ok";
    case CheckStatus::kWarning:
      return "warning";
    case CheckStatus::kFailed:
      return "failed";
    case CheckStatus::kSkipped:
      return "skipped";
  }
  return "";
}

const char* StatusMark(CheckStatus status) {
  switch (status) {
    case CheckStatus::kOk:
      return "ok";
    case CheckStatus::kWarning:
      return "warn";
    case CheckStatus::kFailed:
      return "FAIL";
    case CheckStatus::kSkipped:
      return "-";
  }
  return "";
}

CheckResult Make(absl::string_view name, CheckStatus status, absl::string_view finding,
                 absl::string_view remedy) {
  return {std::string(name), status, std::string(finding), std::string(remedy)};
}

auto Count(std::span<const CheckResult> results, CheckStatus status) {
  return std::ranges::count(results, status, &CheckResult::status);
}

// Three significant digits and the prefix of the unit.
std::string WithPrefix(double value, std::span<const std::pair<double, const char*>> units) {
  const auto* unit = &units[0];
  for (const auto& candidate : units) {
    if (value >= candidate.first) unit = &candidate;
  }
  const double scaled = value / unit->first;
  return absl::StrFormat("%.*f %s",
                         scaled >= 99.95   ? 0
                         : scaled >= 9.995 ? 1
                                           : 2,
                         scaled, unit->second);
}

}  // namespace

CheckResult Passed(absl::string_view name, absl::string_view finding) {
  return Make(name, CheckStatus::kOk, finding, "");
}

CheckResult Warned(absl::string_view name, absl::string_view finding, absl::string_view remedy) {
  return Make(name, CheckStatus::kWarning, finding, remedy);
}

CheckResult Failed(absl::string_view name, absl::string_view finding, absl::string_view remedy) {
  return Make(name, CheckStatus::kFailed, finding, remedy);
}

CheckResult Skipped(absl::string_view name, absl::string_view reason) {
  return Make(name, CheckStatus::kSkipped, reason, "");
}

std::string FormatCheck(const CheckResult& result) {
  std::string line =
      absl::StrFormat("%-5s %-14s %s", StatusMark(result.status), result.name, result.finding);
  if (!result.remedy.empty()) absl::StrAppendFormat(&line, "\n%21s-> %s", "", result.remedy);
  return line;
}

bool AnyFailed(std::span<const CheckResult> results) {
  return Count(results, CheckStatus::kFailed) > 0;
}

std::string FormatVerdict(std::span<const CheckResult> results) {
  const auto passed = Count(results, CheckStatus::kOk);
  const auto warned = Count(results, CheckStatus::kWarning);
  const auto failed = Count(results, CheckStatus::kFailed);
  const auto skipped = Count(results, CheckStatus::kSkipped);
  std::string verdict = failed == 0 ? "This site can join: " : "This site cannot join yet: ";
  if (failed > 0) absl::StrAppend(&verdict, failed, " failed, ");
  absl::StrAppend(&verdict, passed, " ok");
  if (warned > 0) absl::StrAppend(&verdict, ", ", warned, warned == 1 ? " warning" : " warnings");
  if (skipped > 0) absl::StrAppend(&verdict, ", ", skipped, " not checked");
  absl::StrAppend(&verdict, ".");
  if (failed > 0) {
    const auto first = std::ranges::find(results, CheckStatus::kFailed, &CheckResult::status);
    absl::StrAppend(&verdict, " Begin with \"", first->name, "\".");
  }
  return verdict;
}

nlohmann::json ToJson(std::span<const CheckResult> results) {
  nlohmann::json checks = nlohmann::json::array();
  for (const CheckResult& result : results) {
    nlohmann::json values = nlohmann::json::object();
    for (const Measured& measured : result.values) {
      values[measured.name] = {{"value", measured.value}, {"unit", measured.unit}};
    }
    checks.push_back({{"name", result.name},
                      {"status", StatusWord(result.status)},
                      {"finding", result.finding},
                      {"remedy", result.remedy},
                      {"values", std::move(values)}});
  }
  return {{"passed", !AnyFailed(results)}, {"checks", std::move(checks)}};
}

std::string FormatRate(double bytes_per_second) {
  constexpr std::array<std::pair<double, const char*>, 3> kUnits = {
      {{1e3, "kbit/s"}, {1e6, "Mbit/s"}, {1e9, "Gbit/s"}}};
  return WithPrefix(8 * bytes_per_second, kUnits);
}

std::string FormatBytes(double bytes) {
  constexpr std::array<std::pair<double, const char*>, 5> kUnits = {
      {{1, "B"}, {1e3, "kB"}, {1e6, "MB"}, {1e9, "GB"}, {1e12, "TB"}}};
  return WithPrefix(bytes, kUnits);
}

std::string FormatTime(absl::Duration time) {
  constexpr std::array<std::pair<double, const char*>, 5> kUnits = {
      {{1e-6, "us"}, {1e-3, "ms"}, {1, "s"}, {60, "min"}, {3600, "h"}}};
  // Minutes and hours only from two of them on.
  const double seconds = absl::ToDoubleSeconds(time);
  return WithPrefix(seconds, std::span(kUnits).first(seconds < 120 ? 3 : seconds < 7200 ? 4 : 5));
}

}  // namespace causeway::worker
