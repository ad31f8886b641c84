#include "server/history/curve_keeper.h"

#include "common/telemetry/log.h"

namespace causeway::server {

void CurveKeeper::Restore() {
  const absl::Status status = history_->RestoreCurves(*file_system_, path_, run_id_);
  if (!status.ok()) {
    Log().warn("the curves begin anew: {}", std::string(status.message()));
  }
}

void CurveKeeper::Tick() {
  if (clock_->Monotonic() >= next_save_) Save();
}

void CurveKeeper::Save() {
  next_save_ = clock_->Monotonic() + kInterval;
  const absl::Status status = history_->SaveCurves(*file_system_, path_, run_id_);
  if (!status.ok() && !failed_) {
    Log().warn("the curves cannot be saved: {}", std::string(status.message()));
  }
  failed_ = !status.ok();
}

}  // namespace causeway::server
