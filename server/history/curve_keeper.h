// Keeps the curves of a run in its folder, so that the status page of a successor begins with them.
#ifndef CAUSEWAY_SERVER_HISTORY_CURVE_KEEPER_H_
#define CAUSEWAY_SERVER_HISTORY_CURVE_KEEPER_H_

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "server/history/run_history.h"

namespace causeway::server {

// The run does not depend on them: what fails is a warning in the log, once until it works again.
// Not thread-safe.
class CurveKeeper {
 public:
  // The part of the curves that a killed process loses, at most.
  static constexpr absl::Duration kInterval = absl::Seconds(30);

  // All but the strings outlive the keeper.
  CurveKeeper(RunHistory* history, FileSystem* file_system, Clock* clock, std::string path,
              std::string run_id)
      : history_(history),
        file_system_(file_system),
        clock_(clock),
        path_(std::move(path)),
        run_id_(std::move(run_id)),
        next_save_(clock->Monotonic() + kInterval) {}

  // Reads the curves that a former process left.
  void Restore();
  // Saves if kInterval has passed. Call it every few seconds.
  void Tick();
  void Save();

 private:
  RunHistory* const history_;
  FileSystem* const file_system_;
  Clock* const clock_;
  const std::string path_;
  const std::string run_id_;
  absl::Duration next_save_;  // Monotonic.
  bool failed_ = false;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_HISTORY_CURVE_KEEPER_H_
