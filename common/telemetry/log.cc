#include "common/telemetry/log.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace causeway {
namespace {

std::shared_ptr<spdlog::logger> MakeLogger(const std::string& program) {
  auto logger =
      std::make_shared<spdlog::logger>(program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %n %l: %v");
  logger->flush_on(spdlog::level::trace);
  return logger;
}

std::shared_ptr<spdlog::logger>& Current() {
  static std::shared_ptr<spdlog::logger> logger = [] {
    auto first = MakeLogger("causeway");
    first->set_level(spdlog::level::warn);
    return first;
  }();
  return logger;
}

}  // namespace

spdlog::logger& Log() { return *Current(); }

absl::Status InitializeLog(const std::string& program, const std::string& level) {
  constexpr const char* kLevels[] = {"debug", "info", "warn", "error"};
  if (std::ranges::find(kLevels, level) == std::end(kLevels)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log_level must be debug, info, warn or error; it is \"", level, "\""));
  }
  auto logger = MakeLogger(program);
  logger->set_level(spdlog::level::from_str(level));
  Current() = std::move(logger);
  return absl::OkStatus();
}

void SendLogTo(std::shared_ptr<spdlog::sinks::sink> sink) {
  auto logger = std::make_shared<spdlog::logger>("causeway", std::move(sink));
  logger->set_level(spdlog::level::info);
  Current() = std::move(logger);
}

}  // namespace causeway
