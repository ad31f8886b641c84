#include "common/telemetry/log.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

namespace causeway {
namespace {

// Standard error, for which nobody waits long: lines that a full pipe or a terminal that stands
// still does not take are left out, and counted.
class StandardError final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  static constexpr int kPatienceMs = 1000;

  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (left_out_ > 0 && IsReady(0)) {
      const int64_t count = std::exchange(left_out_, 0);
      Write(absl::StrCat("(", count, " lines are left out: nobody took them)\n"));
    }
    if (!Write({line.data(), line.size()})) ++left_out_;
  }
  void flush_() override {}

  // Whether a pipe takes PIPE_BUF bytes at once. What has no reader or is closed takes them, too.
  static bool IsReady(int patience_ms) {
    pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    return poll(&ready, 1, patience_ms) != 0;
  }
  // False if it was not taken whole. Once that has happened nothing is waited for until it is.
  bool Write(absl::string_view text) {
    const std::string line = absl::StrCat(cut_ ? "\n" : "", text);
    absl::string_view left = line;
    const auto begin = std::chrono::steady_clock::now();
    while (!left.empty()) {
      const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
          std::chrono::steady_clock::now() - begin);
      const int64_t patience = left_out_ > 0 ? 0 : kPatienceMs - waited.count();
      if (!IsReady(static_cast<int>(std::max<int64_t>(0, patience)))) break;
      const ssize_t written =
          write(STDERR_FILENO, left.data(), std::min(left.size(), size_t{PIPE_BUF}));
      if (written < 0 && errno != EINTR && errno != EAGAIN) return true;  // Nobody is left to tell.
      if (written > 0) left.remove_prefix(static_cast<size_t>(written));
    }
    if (left.size() < line.size()) cut_ = !left.empty();
    return left.empty();
  }

  bool cut_ = false;  // What was written last does not end its line.
  int64_t left_out_ = 0;
};

std::shared_ptr<spdlog::logger> MakeLogger(const std::string& program) {
  auto logger = std::make_shared<spdlog::logger>(program, std::make_shared<StandardError>());
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
