#include "worker/site/log_queue.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "spdlog/sinks/base_sink.h"
#include "worker/site/causeway_site.h"

namespace causeway::worker {
namespace {

class QueueSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit QueueSink(LogQueue& queue) : queue_(queue) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    int level = CAUSEWAY_LOG_INFO;
    if (message.level == spdlog::level::warn) level = CAUSEWAY_LOG_WARNING;
    if (message.level > spdlog::level::warn) level = CAUSEWAY_LOG_ERROR;
    queue_.Add(level, std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

 private:
  LogQueue& queue_;
};

}  // namespace

LogQueue& LogQueue::Get() {
  static LogQueue* const queue = [] {
    auto* made = new LogQueue;
    SendLogTo(std::make_shared<QueueSink>(*made));
    return made;
  }();
  return *queue;
}

void LogQueue::Want(int change) {
  absl::MutexLock lock(&mutex_);
  wanted_ += change;
}

void LogQueue::Add(int level, const std::string& text) {
  absl::MutexLock lock(&mutex_);
  if (wanted_ == 0) {
    const std::string line = absl::StrCat("causeway: ", text, "\n");
    std::fwrite(line.data(), 1, line.size(), stderr);
    return;
  }
  if (lines_.size() >= kMaxLines) {
    lines_.pop_front();
    ++dropped_;
  }
  lines_.push_back({level, text});
}

std::vector<LogLine> LogQueue::Take() {
  absl::MutexLock lock(&mutex_);
  std::vector<LogLine> lines;
  if (dropped_ > 0) {
    lines.push_back(
        {CAUSEWAY_LOG_WARNING, absl::StrCat(dropped_, " older log lines were dropped")});
    dropped_ = 0;
  }
  for (LogLine& line : lines_) lines.push_back(std::move(line));
  lines_.clear();
  return lines;
}

}  // namespace causeway::worker
