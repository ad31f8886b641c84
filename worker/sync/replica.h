// The narrow seam between synchronization and a trainer: the three things that sync does to the
// local replica, always at a step boundary, always on one fragment's range of the arena.
#ifndef CAUSEWAY_WORKER_SYNC_REPLICA_H_
#define CAUSEWAY_WORKER_SYNC_REPLICA_H_

#include <span>

#include "common/params/fragment_plan.h"

namespace causeway::worker {

// Called by the training thread alone. Spans have range.size() values.
class Replica {
 public:
  virtual ~Replica() = default;
  // The fp32 master weights.
  virtual void CopyParameters(const FragmentRange& range, std::span<float> out) const = 0;
  // The gradient of the step just done, before clipping (data parallelism).
  virtual void CopyGradients(const FragmentRange& range, std::span<float> out) const = 0;
  // local = alpha * local + (1 - alpha) * published; exactly published where alpha is 0.
  virtual void Mix(const FragmentRange& range, std::span<const float> published, float alpha) = 0;
};

// A replica in ordinary memory.
class HostReplica final : public Replica {
 public:
  // Both arenas outlive the replica; `gradients` may be empty unless gradients are contributed.
  HostReplica(std::span<float> parameters, std::span<const float> gradients)
      : parameters_(parameters), gradients_(gradients) {}
  void CopyParameters(const FragmentRange& range, std::span<float> out) const override;
  void CopyGradients(const FragmentRange& range, std::span<float> out) const override;
  void Mix(const FragmentRange& range, std::span<const float> published, float alpha) override;

 private:
  const std::span<float> parameters_;
  const std::span<const float> gradients_;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_SYNC_REPLICA_H_
