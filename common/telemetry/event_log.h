// Events for people and for programs: each is one log line, a sentence, and one line of JSON in a
// file:
//   {"time": "...", "event": "worker_joined", "level": "info", "message": "...", ...fields}
// Event names are stable; event_names.h has them with their levels, docs/monitoring.md says when
// they come and with which fields.
#ifndef CAUSEWAY_COMMON_TELEMETRY_EVENT_LOG_H_
#define CAUSEWAY_COMMON_TELEMETRY_EVENT_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "nlohmann/json.hpp"

namespace causeway {

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

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_TELEMETRY_EVENT_LOG_H_
