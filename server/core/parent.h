// A coordinator under a coordinator. A region is a coordinator to its sites and a worker to its
// parent: each of its rounds, once closed, becomes one delta, which goes up; the parent's answer
// comes down to the sites as it is.
#ifndef CAUSEWAY_SERVER_CORE_PARENT_H_
#define CAUSEWAY_SERVER_CORE_PARENT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/exchange.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/byte_buffer.h"

namespace causeway::server {

// One closed round of a region, on its way up. What is in it is durable.
struct RegionDelta {
  // As its parent will see it, but for what belongs to the parent's session. The record has no
  // draws: those are in the contributions of its sites.
  v1::PushHeader header;
  // False: the parent has published the round; its answer alone is wanted.
  bool contributes = true;
  bool maybe_sent = false;  // A former process may have sent some of it.
  int64_t due_step = 0;
  SharedBytes object;            // In the run's codec_up.
  std::vector<uint64_t> leaves;  // LeafChecksums(object).
};

// The parent's answer.
struct ParentAnswer {
  bool late = false;  // The parent had closed the round without this region.
  int64_t round = 0;
  v1::Codec codec = v1::CODEC_UNSPECIFIED;
  uint64_t published_hash = 0;
  ByteBuffer bytes;
};

// A region's way to its parent, as its coordinator sees it. Thread-safe.
class Parent {
 public:
  using Callback = std::function<void(absl::StatusOr<ParentAnswer>)>;

  virtual ~Parent() = default;
  // Never blocks. Tries until the answer is there, and calls back then, on a thread of its own, or
  // with an error that is final. NOT_FOUND: the parent no longer keeps the answer. CANCELLED: it is
  // shutting down.
  virtual void Carry(RegionDelta delta, Callback done) = 0;
  // The region's published copy has that hash after the round.
  virtual void Applied(int fragment, int64_t round, uint64_t published_hash) = 0;
};

struct RegionOptions {
  Parent* parent = nullptr;        // Outlives the coordinator.
  std::string id;                  // Name of the region as a worker of its parent.
  int sites = 0;                   // Most sites that it may have.
  std::vector<std::string> above;  // The regions that its parent is in, from the hub down.
};

// Where a region is, for its parent.
struct RegionPlace {
  bool ready = false;  // Its sites are there.
  int64_t step = 0;    // Rounds sent later expect a contribution of it.
  v1::Heartbeat heartbeat;
};

// What a region's parent says, and asks.
class Region {
 public:
  virtual ~Region() = default;
  virtual RegionPlace Place() const = 0;
  // Begins training, or lets it go on. The region's sites have the parts of the data from
  // first_slot on; part first_slot + i goes on with next_draws[i].
  virtual absl::Status Begin(int first_slot, const std::vector<int64_t>& next_draws) = 0;
  virtual absl::Status NoteParentPublished(int fragment, int64_t round) = 0;
  // As Orders::StopAtStep, whatever step the sites are at.
  virtual absl::Status Stop(int64_t step) = 0;
  // The parent refuses this region, for good.
  virtual void Fail(const absl::Status& why) = 0;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_PARENT_H_
