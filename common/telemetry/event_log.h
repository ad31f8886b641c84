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

// How much an event matters to whoever runs the program.
enum class EventLevel {
  kInfo,   // As it should be.
  kWarn,   // The run goes on, but something is out of order.
  kError,  // Something has ended that should not have.
};

struct EventName {
  const char* name;
  EventLevel level;
};

// Every event that the programs record (event_names.cc): docs/monitoring.md is made of these tables
// and of the calls of EventLog::Record.
std::span<const EventName> CoordinatorEvents();
std::span<const EventName> WorkerEvents();

// kInfo for a name that is in neither list.
EventLevel LevelOf(absl::string_view event);
// "info", "warn" or "error".
const char* LevelName(EventLevel level);

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
// LogEvent, of every event.
EventLog* LogLinesAlone();

// Lines of JSON appended to a file (an events file, a metrics file). A line is written as a whole
// and flushed to the system at once; it is not synced. Thread-safe.
class JsonLinesFile {
 public:
  static absl::StatusOr<std::unique_ptr<JsonLinesFile>> Create(FileSystem& file_system,
                                                               const std::string& path);
  // Goes on after the lines that the file holds; a last one that was cut off is ended first.
  static absl::StatusOr<std::unique_ptr<JsonLinesFile>> Continue(FileSystem& file_system,
                                                                 const std::string& path);
  // Once the file is larger than that it becomes PATH.1, in place of a former one, and an empty one
  // takes its place: both together stay below twice the size. 0: never.
  void RotateAt(uint64_t bytes);
  absl::Status Append(const nlohmann::json& object);

 private:
  JsonLinesFile(FileSystem& file_system, std::string path, std::unique_ptr<WritableFile> file,
                uint64_t bytes)
      : file_system_(file_system), path_(std::move(path)), file_(std::move(file)), bytes_(bytes) {}
  absl::Status Rotate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FileSystem& file_system_;
  const std::string path_;
  absl::Mutex mutex_;
  std::unique_ptr<WritableFile> file_ ABSL_GUARDED_BY(mutex_);  // Null after a failed rotation.
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_);
  uint64_t rotate_at_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Largest size of one file of events, before it is put aside (JsonLinesFile::RotateAt).
inline constexpr uint64_t kMaxEventFileBytes = uint64_t{16} << 20;

// Logs each event (log.h) with its level and appends it to `path`, after what former processes
// wrote there. The file system and the clock outlive the result.
absl::StatusOr<std::unique_ptr<EventLog>> OpenEventLog(FileSystem& file_system,
                                                       const std::string& path, Clock* clock,
                                                       uint64_t rotate_at = kMaxEventFileBytes);

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

// Counts events by name, for /metrics, and hands them on. Thread-safe.
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
