#include "common/base/crash_point.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>

#include "absl/strings/numbers.h"

namespace causeway {
namespace {

// The one point of this process, read from the environment once.
class ArmedPoint {
 public:
  ArmedPoint() {
    const char* const value = std::getenv(kCrashVariable);
    if (value == nullptr || *value == '\0') return;
    name_ = value;
    int64_t count = 1;
    const size_t colon = name_.find(':');
    const bool counted =
        colon == std::string::npos || absl::SimpleAtoi(name_.substr(colon + 1), &count);
    name_.resize(std::min(colon, name_.size()));
    const bool known = std::any_of(std::begin(kCrashPoints), std::end(kCrashPoints),
                                   [&](const char* point) { return name_ == point; });
    if (!counted || count < 1 || !known) {
      std::fprintf(stderr,
                   "%s=%s: expected NAME or NAME:COUNT; common/base/crash_point.h names "
                   "the crash points\n",
                   kCrashVariable, value);
      _exit(2);
    }
    left_ = count;
  }

  void Pass(absl::string_view name) {
    if (name_.empty() || name != name_) return;
    if (left_.fetch_sub(1) == 1) kill(getpid(), SIGKILL);
  }

 private:
  std::string name_;
  std::atomic<int64_t> left_ = 0;
};

}  // namespace

void CrashPoint(absl::string_view name) {
  static ArmedPoint armed;
  armed.Pass(name);
}

}  // namespace causeway
