// Keeps the events that were recorded, for tests that look at them or wait for them.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/telemetry/event_log.h"
#include "nlohmann/json.hpp"

namespace causeway {

// Thread-safe.
class AwaitedEvents final : public EventLog {
 public:
  using Event = std::pair<std::string, nlohmann::json>;  // Its name, its fields and the message.
  void Record(absl::string_view event, const std::string& message,
              const nlohmann::json& fields) override {
    absl::MutexLock lock(&mutex_);
    events_.emplace_back(std::string(event), fields);
    events_.back().second["message"] = message;
  }
  // Waits for the first one of that name; returns its fields.
  nlohmann::json Await(const std::string& event) const {
    absl::MutexLock lock(&mutex_);
    const auto find = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::ranges::find(events_, event, &Event::first);
    };
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return find() != events_.end();
    };
    mutex_.Await(absl::Condition(&there));
    return find()->second;
  }
  int Count(const std::string& event) const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int>(std::ranges::count(events_, event, &Event::first));
  }
  // Those of that name, or all, in their order.
  std::vector<std::string> Messages(const std::string& event = "") const {
    std::vector<std::string> messages;
    for (const auto& [name, fields] : all()) {
      if (event.empty() || name == event) messages.push_back(fields["message"]);
    }
    return messages;
  }
  // In their order.
  std::vector<Event> all() const {
    absl::MutexLock lock(&mutex_);
    return events_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway
