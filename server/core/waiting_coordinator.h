// The coordinator of a run that awaits its model: the first site brings it, and the run begins.
//
// Until then it describes the run, counts no members, and refuses whatever needs a model, saying
// so. From then on every call goes to the coordinator that `begin` made. Callers keep one object
// all the while, and so one port.
#ifndef CAUSEWAY_SERVER_CORE_WAITING_COORDINATOR_H_
#define CAUSEWAY_SERVER_CORE_WAITING_COORDINATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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

  absl::StatusOr<BroughtModel> AdmitModel(const v1::ModelHeader& header) const override;
  absl::Status BeginWith(BroughtModel model, std::vector<float> values) override;

  absl::StatusOr<v1::Welcome> Join(const v1::Join& join,
                                   std::shared_ptr<SessionSink> sink) override;
  absl::Status Handle(const std::string& worker_id, uint64_t incarnation,
                      const v1::WorkerMessage& message) override;
  void Disconnected(const std::string& worker_id, uint64_t incarnation,
                    const absl::Status& why) override;
  absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(const v1::PushHeader& header,
                                                            RoundClosed closed) override;
  std::vector<double> MeasureLeaf(int fragment, int64_t round, int64_t leaf,
                                  std::span<const uint8_t> bytes) const override;
  absl::StatusOr<v1::PushResponse> Contribute(const v1::PushHeader& header,
                                              ReceivedObject object) override;
  void MergeDue(int fragment) override;
  void PullAnswer(int fragment, int64_t round, PullCallback callback) override;
  absl::StatusOr<std::shared_ptr<const PullObject>> PullState(int fragment) override;
  void RecordPulled(const std::string& worker_id, v1::Want::Object object, int64_t bytes) override;
  void Tick() override;
  bool Maintain() override;
  v1::RunStatus GetStatus() const override;
  absl::Status Pause(const std::string& reason) override;
  absl::Status Resume() override;
  absl::Status Drain(const std::string& worker_id) override;
  absl::Status Reject(const v1::RejectRequest& order) override;
  absl::Status StopAtStep(int64_t step) override;
  absl::Status StopAtTokens(int64_t tokens) override;
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
