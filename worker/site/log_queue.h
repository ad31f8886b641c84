// Log lines of the library's threads, until a thread of the host's takes them. The library never
// calls its host from a thread of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace causeway::worker {

struct LogLine {
  int level = 0;  // CAUSEWAY_LOG_*
  std::string text;
};

// Thread-safe.
class LogQueue {
 public:
  // More lines than that are not kept: the oldest go, and a line says how many.
  static constexpr size_t kMaxLines = 1000;

  // The process's own, which all log lines of the library go to from the first call on: to standard
  // error at once until somebody wants them.
  static LogQueue& Get();

  // Lines are kept for Take while there is one of these, and written to standard error otherwise.
  class Wanted {
   public:
    Wanted() { Get().Want(1); }
    ~Wanted() { Get().Want(-1); }
    Wanted(const Wanted&) = delete;
    Wanted& operator=(const Wanted&) = delete;
  };
  void Add(int level, const std::string& text);
  std::vector<LogLine> Take();

 private:
  void Want(int change);

  absl::Mutex mutex_;
  int wanted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<LogLine> lines_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::worker
