// Shared by everything in a simulation: time, chance, the queue of events, the trace, and the first
// violation of an invariant.
//
// Everything is drawn from one seed and runs on one thread, so a seed replays the same events.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/unit/common/base/fake_clock.h"

namespace causeway::simulation {

// The kinds by which a scenario's events are counted.
enum class Happening {
  kCall,
  kRequestLost,
  kReplyLost,
  kDuplicated,
  kCallStalled,
  kStreamOpened,
  kStreamSevered,
  kStreamStalled,
  kWorkerKilled,
  kWorkerFailed,
  kWorkerResumed,
  kWorkerStartedAnew,
  kWorkerTooFarBehind,  // Had a checkpoint, and started anew.
  kSecondProcess,
  kCoordinatorKilled,
  kCoordinatorShutDown,
  kDiedBeforeSave,
  kDiedAfterSave,
  kDiskFailed,
  kDiskFull,
  kRecovered,
  kPaused,
  kDrained,
  kStopAsked,
  kWallClockJumped,
  kLied,
  kRoundPublished,
  kRoundPublishedEmpty,
  kRoundWithoutSome,
  kContributed,
  kContributedAgain,
  kLateDelta,
  kFencedOff,
  kAnswerGone,
  kMerged,
  kMergedEarly,
  kRegionAttached,
  kRegionLate,
  kRegionAlone,
  kCount
};
inline constexpr size_t kHappenings = static_cast<size_t>(Happening::kCount);
using Counts = std::array<int64_t, kHappenings>;
const char* HappeningName(size_t happening);

struct Violation {
  std::string invariant;  // Its name in Auditor.
  std::string message;
};

class World {
 public:
  // `trace`: where every event is written; null: nowhere.
  World(uint64_t seed, std::ostream* trace) : state_(seed), trace_(trace) {}

  FakeClock& clock() { return clock_; }
  absl::Duration now() const { return clock_.Monotonic(); }

  // Runs `event` later; of events at the same time, the one added first comes first.
  void After(absl::Duration delay, std::function<void()> event);
  // Runs the next event; false if there is none.
  bool RunNext();
  int64_t events() const { return events_; }

  // Faults happen until they are stopped.
  bool faulty() const { return faulty_; }
  void set_faulty(bool faulty) { faulty_ = faulty; }

  uint64_t Bits();
  double Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }
  bool Chance(double probability) { return Uniform() < probability; }
  // Both ends included.
  int64_t Between(int64_t low, int64_t high);
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    return low + (high - low) * Uniform();
  }

  bool tracing() const { return trace_ != nullptr; }
  template <typename... Parts>
  void Trace(const Parts&... parts) {
    if (trace_ != nullptr) WriteTrace(absl::StrCat(parts...));
  }
  void Count(Happening happening) { ++counts_[static_cast<size_t>(happening)]; }
  const Counts& counts() const { return counts_; }

  // Keeps the first one.
  void Violate(const std::string& invariant, const std::string& message);
  const std::optional<Violation>& violation() const { return violation_; }

 private:
  struct Event {
    absl::Duration time;
    int64_t order;
    std::function<void()> run;
  };
  // A heap whose front is the event that comes last.
  static bool Later(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
  void WriteTrace(const std::string& line);

  uint64_t state_;
  std::ostream* const trace_;
  FakeClock clock_;
  std::vector<Event> queue_;
  int64_t order_ = 0;
  int64_t events_ = 0;
  bool faulty_ = true;
  Counts counts_ = {};
  std::optional<Violation> violation_;
};

}  // namespace causeway::simulation
