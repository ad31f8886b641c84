// Writes down what befalls a run and its workers: a sentence for people, fields for programs.
// docs/monitoring.md lists the events.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/telemetry/event_log.h"
#include "nlohmann/json.hpp"
#include "server/core/fragment_rounds.h"

namespace causeway::server {

// How many events of one kind a worker may cause in the run's record, which keeps the last so many
// of all: nobody flushes out what others did.

// Limits one kind of event of one worker: so many at once, and so many over time.
inline constexpr double kEventsAtOnce = 20;
inline constexpr double kEventsPerSecond = 0.2;

// Not thread-safe. Times are monotonic and passed in.
class EventBudget {
 public:
  // The event may be recorded: how many of its kind and worker were left out since the last one.
  // Nothing: it is left out, and counted. Beyond kMostAccounts kinds and workers, those who come
  // new share one budget for each kind.
  std::optional<int64_t> Take(absl::string_view event, const std::string& worker_id,
                              absl::Duration now);

 private:
  static constexpr size_t kMostAccounts = 4096;
  struct Account {
    double left = kEventsAtOnce;
    absl::Duration refilled;
    int64_t left_out = 0;
  };
  std::map<std::pair<std::string, std::string>, Account> accounts_;
};

// Thread-safe. Events that name a worker count against its budget.
class IncidentLog {
 public:
  // Tells a worker, if it is there, what its operator should know.
  using Tell = std::function<void(const std::string& worker_id, const std::string& text)>;

  // Both outlive the object.
  IncidentLog(
      EventLog* events, Clock* clock, Tell tell = [](const auto&, const auto&) {})
      : events_(*events), clock_(*clock), tell_(std::move(tell)) {}

  // `fields` is an object. False: the event's worker has none left, and nothing was recorded.
  bool Record(absl::string_view event, const std::string& message, const nlohmann::json& fields);

  void JoinRefused(const v1::Join& join, const absl::Status& refusal);
  // Records a round once for each worker, however often it is told.
  void Late(const v1::PushHeader& header, const absl::Status& late);
  // Takes what the disk says to each contribution. Records when its room begins to lack, and when
  // that is over.
  void NoteRoom(const absl::Status& room);
  // Records the first refusal since a snapshot of the fragment was saved.
  void SnapshotRefused(int fragment, const absl::Status& why);
  void SnapshotSaved(int fragment, int64_t version);
  // Ranges that were taken out of the header: of parts of the data that the worker never had, and
  // beyond what it can have trained.
  void DrawsIgnored(const v1::PushHeader& header, int foreign, int ahead);
  void TokensCut(int fragment, int64_t round, const CutClaim& cut);
  void Quarantined(const v1::PushHeader& header, const AddedContribution& added);
  // Records what was out of the ordinary: claims cut, deltas left out, workers missing.
  void Published(const PublishedRound& round);

 private:
  // `grounds` follow the norm.
  void RecordQuarantine(const std::string& worker_id, int fragment, int64_t round,
                        const AddedContribution& added, const std::string& grounds);

  EventLog& events_;
  Clock& clock_;
  const Tell tell_;
  std::atomic<bool> store_is_low_{false};
  absl::Mutex mutex_;
  EventBudget budget_ ABSL_GUARDED_BY(mutex_);
  std::set<int> snapshots_refused_ ABSL_GUARDED_BY(mutex_);  // Fragments.
  // The last late round that was recorded, by fragment and worker.
  std::map<std::pair<int, std::string>, int64_t> last_late_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
