#include "server/standby/delta_places.h"

#include <limits>
#include <string>

#include "absl/status/statusor.h"
#include "common/telemetry/log.h"

namespace causeway::server {

void DeltaPlaces::Tick() {
  copies_ = false;
  if (blobs_.memory().empty()) return;
  if (!standbys_.Alone()) {
    if (!blobs_.new_in_memory()) {
      Log().info("a standby has everything: deltas are kept in memory, in {}", blobs_.memory());
    }
    blobs_.set_new_in_memory(true);
    on_disk_ = false;
    return;
  }
  if (blobs_.new_in_memory()) {
    blobs_.set_new_in_memory(false);
    Log().warn("no standby has everything: deltas are written to the disk");
  }
  if (on_disk_) return;
  const absl::StatusOr<bool> all = blobs_.CopyToDisk(bytes_per_tick_);
  if (!all.ok()) {
    if (said_ != all.status()) {
      Log().warn("deltas stay in memory alone: {}", std::string(all.status().message()));
    }
    said_ = all.status();
    return;
  }
  on_disk_ = *all;
  copies_ = !on_disk_ && !blobs_.writing();
  if (on_disk_) Log().info("all deltas are on the disk: a restart of this machine loses nothing");
}

void BringToDisk(BlobFolder& blobs) {
  blobs.set_new_in_memory(false);
  absl::StatusOr<bool> all = false;
  while (all.ok() && !*all) all = blobs.CopyToDisk(std::numeric_limits<int64_t>::max());
  const absl::Status status = all.ok() ? blobs.DropMemory() : all.status();
  if (!status.ok()) Log().warn("deltas stay in memory: {}", std::string(status.message()));
}

}  // namespace causeway::server
