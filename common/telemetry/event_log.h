// Events for people and for programs: each is one log line, a sentence, and one line of JSON in a
// file:
//   {"time": "...", "event": "worker_joined", "level": "info", "message": "...", ...fields}
// Event names are stable; EventName has them with their levels, docs/monitoring.md says when
// they come and with which fields.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "nlohmann/json.hpp"

namespace causeway {

struct EventName {
  const char* name;
  // How much it matters to whoever runs the program: "info" is as it should be; "warn": the run
  // goes on, but something is out of order; "error": something has ended that should not have.
  const char* level;
};

// Every event that the programs record (event_names.cc): docs/monitoring.md is made of these tables
// and of the calls of EventLog::Record.
std::span<const EventName> CoordinatorEvents();
std::span<const EventName> WorkerEvents();

// The level of an event; "info" for a name that is in neither list.
const char* LevelOf(absl::string_view event);

// Thread-safe.
class EventLog {
 public:
  virtual ~EventLog() = default;
  // `fields` is an object; its keys stand beside time, event, level and message.
  virtual void Record(absl::string_view event, const std::string& message,
                      const nlohmann::json& fields) = 0;
};

// The line for people: `message` at the event's level, whatever peers have put into it.
void LogEvent(absl::string_view event, const std::string& message);

// Drops everything.
EventLog* NullEventLog();

// Lines of JSON appended to a file (an events file, a metrics file). A line is written as a whole
// and flushed to the system at once; it is not synced. Thread-safe.
class JsonLinesFile {
 public:
  // Goes on after the lines that the file holds; a last one that was cut off is ended first. Once
  // the file is larger than `rotate_at` it becomes PATH.1, in place of a former one, and an empty
  // one takes its place: both together stay below twice the size. 0: never.
  static absl::StatusOr<std::unique_ptr<JsonLinesFile>> Continue(FileSystem& file_system,
                                                                 const std::string& path,
                                                                 uint64_t rotate_at = 0);
  absl::Status Append(const nlohmann::json& object);

 private:
  JsonLinesFile(FileSystem& file_system, std::string path, std::unique_ptr<WritableFile> file,
                uint64_t bytes, uint64_t rotate_at)
      : file_system_(file_system),
        path_(std::move(path)),
        rotate_at_(rotate_at),
        file_(std::move(file)),
        bytes_(bytes) {}
  absl::Status Rotate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FileSystem& file_system_;
  const std::string path_;
  const uint64_t rotate_at_;
  absl::Mutex mutex_;
  std::unique_ptr<WritableFile> file_ ABSL_GUARDED_BY(mutex_);  // Null after a failed rotation.
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_);
};

// Largest size of one file of events, before it is put aside (JsonLinesFile::Continue).
inline constexpr uint64_t kMaxEventFileBytes = uint64_t{16} << 20;

// A process's events: counted for /metrics, logged (log.h) at their level and, once there is a
// file, appended to it. Thread-safe.
class EventFile final : public EventLog {
 public:
  // The clock outlives the object.
  explicit EventFile(Clock* clock) : clock_(clock) {}

  // Appends to `path` from now on, after what former processes wrote there. Once. The file system
  // outlives the object.
  absl::Status Open(FileSystem& file_system, const std::string& path,
                    uint64_t rotate_at = kMaxEventFileBytes);

  void Record(absl::string_view event, const std::string& message,
              const nlohmann::json& fields) override;

  // By name, since this process started; names are those of the source code, so there are few.
  std::map<std::string, int64_t> counts() const {
    absl::MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  Clock* const clock_;
  mutable absl::Mutex mutex_;
  std::unique_ptr<JsonLinesFile> file_ ABSL_GUARDED_BY(mutex_);  // Stays once it is there.
  std::map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mutex_);
};

// Hands on to a log that may be another one later. Thread-safe.
class LateEventLog final : public EventLog {
 public:
  // Logs outlive the object or the next Begin.
  explicit LateEventLog(EventLog* log) : log_(log) {}
  void Begin(EventLog* log) {
    absl::MutexLock lock(&mutex_);
    log_ = log;
  }
  void Record(absl::string_view event, const std::string& message,
              const nlohmann::json& fields) override {
    absl::MutexLock lock(&mutex_);
    log_->Record(event, message, fields);
  }

 private:
  absl::Mutex mutex_;
  EventLog* log_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway
