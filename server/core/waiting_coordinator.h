// The coordinator of a run that awaits its model: the first site brings it, and the run begins.
//
// Until then it describes the run, counts no members, and its roles refuse whatever needs a model,
// saying so. From then on its roles are those of the coordinator that `begin` made: ask for them at
// every call. Callers keep one object all the while, and so one port.
#ifndef CAUSEWAY_SERVER_CORE_WAITING_COORDINATOR_H_
#define CAUSEWAY_SERVER_CORE_WAITING_COORDINATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/core/coordinator.h"

namespace causeway::server {

// Thread-safe, as every Coordinator.
class WaitingCoordinator final : public Coordinator {
 public:
  // Keeps the model durably and makes the run's coordinator of it. Called by one thread at a time,
  // until it succeeds once.
  using Begin = std::function<absl::StatusOr<std::unique_ptr<Coordinator>>(
      const BroughtModel& model, std::vector<float> values)>;

  // `config` is complete (CompleteRunConfig), but may leave out what is trained.
  WaitingCoordinator(v1::RunConfig config, std::string run_id, Begin begin);

  const v1::RunConfig& config() const override;
  const FragmentPlan& plan() const override;  // Without fragments, until the run begins.
  const std::string& run_id() const override { return run_id_; }
  v1::DescribeResponse Describe() const override;
  Members& members() override;
  Rounds& rounds() override;
  Orders& orders() override;
  Region* region() override { return nullptr; }  // A region's parent has the model.

  absl::StatusOr<BroughtModel> AdmitModel(const v1::ModelHeader& header) const override;
  absl::Status BeginWith(BroughtModel model, std::vector<float> values) override;

  void Tick() override;
  bool Maintain() override;
  v1::RunStatus GetStatus() const override;
  bool ReachedItsEnd() const override;
  bool Finished() const override;
  absl::Status Health() const override;
  absl::Status Shutdown() override;
  std::vector<float> PublishedParameters() const override;

 private:
  // Null until the run has begun.
  Coordinator* begun() const { return begun_.load(std::memory_order_acquire); }

  const v1::RunConfig config_;
  const std::string run_id_;
  const FragmentPlan no_plan_;
  const Begin begin_;
  absl::Mutex mutex_;  // Held while a run begins.
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Coordinator> coordinator_ ABSL_GUARDED_BY(mutex_);
  std::atomic<Coordinator*> begun_ = nullptr;  // The same, without the lock.
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_WAITING_COORDINATOR_H_
