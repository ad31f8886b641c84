// Counts events by name, for /metrics, and hands them on.
#ifndef CAUSEWAY_COMMON_TELEMETRY_COUNTING_EVENT_LOG_H_
#define CAUSEWAY_COMMON_TELEMETRY_COUNTING_EVENT_LOG_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/telemetry/event_log.h"

namespace causeway {

// Thread-safe.
class CountingEventLog final : public EventLog {
 public:
  // `next` outlives the object.
  explicit CountingEventLog(EventLog* next) : next_(next) {}

  void Record(absl::string_view event, const std::string& message,
              const nlohmann::json& fields) override {
    {
      absl::MutexLock lock(&mutex_);
      ++counts_[std::string(event)];
    }
    next_->Record(event, message, fields);
  }

  // Since this process started; names are those of the source code, so there are few.
  std::map<std::string, int64_t> counts() const {
    absl::MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  EventLog* const next_;
  mutable absl::Mutex mutex_;
  std::map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_TELEMETRY_COUNTING_EVENT_LOG_H_
