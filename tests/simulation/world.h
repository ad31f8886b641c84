// Shared by everything in a simulation: time, chance, the queue of events, the trace, and the first
// violation of an invariant.
//
// Everything is drawn from one seed and runs on one thread, so a seed replays the same events.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/unit/common/base/fake_clock.h"

namespace causeway::simulation {

// How often each kind of event happened, by the names of world.cc.
using Counts = std::map<std::string, int64_t>;

struct Violation {
  std::string invariant;  // Its name in Auditor.
  std::string message;
};

class World {
 public:
  // `trace`: where every event is written; null: nowhere.
  World(uint64_t seed, std::ostream* trace);

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

  template <typename... Parts>
  void Trace(const Parts&... parts) {
    if (trace_ != nullptr) WriteTrace(absl::StrCat(parts...));
  }
  void Count(const std::string& happening) { ++counts_.at(happening); }
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
  Counts counts_;
  std::optional<Violation> violation_;
};

}  // namespace causeway::simulation
