// Which chunks of an object that is pushed still have to be sent, and over which connection the
// others went.
//
// A chunk waits, is given to a lane (a connection), and stays with it: that it was written says
// nothing about its arrival. When the lane's stream breaks, its chunks are doubtful until the
// coordinator has said what it holds; what it lacks waits again, for any lane.
//
// Not thread-safe.
#ifndef CAUSEWAY_WORKER_LINK_CHUNK_LEDGER_H_
#define CAUSEWAY_WORKER_LINK_CHUNK_LEDGER_H_

#include <cstdint>
#include <vector>

#include "common/rpc/chunk_set.h"

namespace causeway::worker {

class ChunkLedger {
 public:
  // All chunks wait; with `maybe_held` all are doubtful: the coordinator may have some already.
  ChunkLedger(int64_t object_bytes, bool maybe_held);

  bool waiting() const { return !taken_.complete(); }
  // The first chunk that waits, which does not wait any more; -1 if there is none.
  int64_t Take();
  // Says where a chunk that was taken goes. False if it has been sent before.
  bool Give(int64_t chunk, int lane);

  // The lane's stream ended. Returns how many chunks it leaves doubtful.
  int64_t Doubt(int lane);
  bool doubtful() const { return doubtful_ > 0; }
  // True if the lane was given a chunk that the coordinator does not hold.
  bool Lacks(int lane, const ChunkSet& held) const;
  // Of the doubtful chunks, those that the coordinator does not hold wait again.
  void Resolve(const ChunkSet& held);

 private:
  static constexpr int kNobody = -1;
  static constexpr int kDoubtful = -2;

  ChunkSet taken_;          // All that do not wait.
  ChunkSet sent_;           // At least once.
  std::vector<int> lanes_;  // Of each chunk.
  int64_t doubtful_ = 0;
  int64_t first_ = 0;  // No chunk before it waits.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_LINK_CHUNK_LEDGER_H_
