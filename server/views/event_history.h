// The last events of a run, for the status page and for causewayctl.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/admin.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/telemetry/event_log.h"
#include "nlohmann/json.hpp"

namespace causeway::server {

// Hands every event on, and keeps the newest. A message ends with "..." where it was longer than
// 1 KiB. The event's own fields are a JSON object of about 2 KiB at most: those that did not fit,
// the largest first, are named in its list "left_out". Thread-safe.
class EventHistory final : public EventLog {
 public:
  // Both outlive the history.
  EventHistory(EventLog* next, Clock* clock, size_t capacity = 256);

  // Before anything else: the end of what former processes wrote to `path`; nothing if there is no
  // such file. Lines that are no events are passed over.
  absl::Status Restore(FileSystem& file_system, const std::string& path);

  void Record(absl::string_view event, const std::string& message,
              const nlohmann::json& fields) override;

  // Those after that number that are kept, oldest first: Admin.ListEvents.
  v1::ListEventsResponse List(int64_t after) const;

 private:
  void Keep(std::string time, absl::string_view name, std::string message,
            const nlohmann::json& fields);

  EventLog* const next_;
  Clock* const clock_;
  const size_t capacity_;
  const absl::Time started_;
  mutable absl::Mutex mutex_;
  std::deque<v1::RunEvent> events_ ABSL_GUARDED_BY(mutex_);
  int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::server
