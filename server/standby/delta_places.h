// Keeps deltas in memory while a copy has them in its own, and on the disk while none does.
//
// With one machine gone the other one is alone with what was told: from then on its deltas are
// written to its disk, and those in memory are copied there. A restart of it loses nothing then.
#ifndef CAUSEWAY_SERVER_STANDBY_DELTA_PLACES_H_
#define CAUSEWAY_SERVER_STANDBY_DELTA_PLACES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/standby/standbys.h"
#include "server/store/blob_folder.h"

namespace causeway::server {

// Serves one leader. Not thread-safe.
class DeltaPlaces {
 public:
  // Both outlive the object.
  DeltaPlaces(BlobFolder& blobs, const Standbys& standbys, int64_t bytes_per_tick = 64 << 20)
      : blobs_(blobs), standbys_(standbys), bytes_per_tick_(bytes_per_tick) {}

  // Call it a few times a second, and again at once while it `copies`: a call copies so much that
  // others have their turn.
  void Tick();
  // Whether the last call left more to copy, and no delta was being written: those come first.
  bool copies() const { return copies_; }

 private:
  BlobFolder& blobs_;
  const Standbys& standbys_;
  const int64_t bytes_per_tick_;
  bool on_disk_ = false;  // All of them.
  bool copies_ = false;
  absl::Status said_;  // Why the last copy failed.
};

// For an orderly end: the folder has all deltas then, and the memory is free.
void BringToDisk(BlobFolder& blobs);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STANDBY_DELTA_PLACES_H_
