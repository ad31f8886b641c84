#include "worker/link/chunk_ledger.h"

#include <algorithm>

namespace causeway::worker {

ChunkLedger::ChunkLedger(int64_t object_bytes, bool maybe_held)
    : taken_(object_bytes),
      sent_(object_bytes),
      lanes_(static_cast<size_t>(taken_.chunks()), maybe_held ? kDoubtful : kNobody) {
  if (!maybe_held) return;
  doubtful_ = taken_.chunks();
  for (int64_t chunk = 0; chunk < taken_.chunks(); ++chunk) taken_.Add(chunk);
}

int64_t ChunkLedger::Take() {
  const int64_t chunk = taken_.FirstMissing(first_);
  first_ = chunk;
  if (chunk == taken_.chunks()) return -1;
  taken_.Add(chunk);
  return chunk;
}

bool ChunkLedger::Give(int64_t chunk, int lane) {
  lanes_[static_cast<size_t>(chunk)] = lane;
  return sent_.Add(chunk);
}

int64_t ChunkLedger::Doubt(int lane) {
  const int64_t before = doubtful_;
  for (int& owner : lanes_) {
    if (owner != lane) continue;
    owner = kDoubtful;
    ++doubtful_;
  }
  return doubtful_ - before;
}

bool ChunkLedger::Lacks(int lane, const ChunkSet& held) const {
  for (int64_t chunk = 0; chunk < taken_.chunks(); ++chunk) {
    if (lanes_[static_cast<size_t>(chunk)] == lane && !held.Holds(chunk)) return true;
  }
  return false;
}

void ChunkLedger::Resolve(const ChunkSet& held) {
  for (int64_t chunk = 0; chunk < taken_.chunks(); ++chunk) {
    int& owner = lanes_[static_cast<size_t>(chunk)];
    if (owner != kDoubtful) continue;
    owner = kNobody;
    if (held.Holds(chunk)) continue;
    taken_.Remove(chunk);
    first_ = std::min(first_, chunk);
  }
  doubtful_ = 0;
}

}  // namespace causeway::worker
