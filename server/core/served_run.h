// The run that a coordinator's process serves: one that has begun, or one that awaits its model,
// which the first site brings. Then the run begins, and the process goes on with the same port.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/session.pb.h"
#include "common/base/checksum.h"
#include "server/core/coordinator.h"

namespace causeway::server {

// A model that a site brings to a run that awaits one (Session.BringModel).
struct BroughtModel {
  std::string worker_id;  // Who brings it.
  v1::RunConfig config;   // Complete.
  FragmentPlan plan;      // The plan of `config`.
};

// The values of a model that a site brings, chunk by chunk. Checks every byte before it keeps it,
// and holds no more than has come. For one thread at a time.
class ModelAssembly {
 public:
  // Takes a model and a header that ServedRun has admitted.
  ModelAssembly(const BroughtModel& model, const v1::ModelHeader& header)
      : config_(model.config), total_bytes_(header.total_bytes()), tree_hash_(header.tree_hash()) {}

  // Takes the chunk's data. INVALID_ARGUMENT for another offset or length than the next chunk has,
  // and for a value that is not finite: it names the tensor.
  absl::Status Add(v1::ModelChunk chunk);
  int64_t received_bytes() const { return received_bytes_; }

  // The values in the plan's arena order; the assembly is empty afterwards. INVALID_ARGUMENT if
  // some are missing, DATA_LOSS if they do not hash to what the header said.
  absl::StatusOr<std::vector<float>> Finish(const FragmentPlan& plan);

 private:
  // "h.0.weight, index 3".
  std::string PlaceOf(int64_t value) const;

  const v1::RunConfig config_;
  const int64_t total_bytes_;
  const uint64_t tree_hash_;
  int64_t received_bytes_ = 0;
  TreeHasher hasher_;
  std::deque<std::string> chunks_;
};

// Thread-safe.
class ServedRun {
 public:
  // Keeps the model durably and makes the run's coordinator of it. Called by one thread at a time,
  // until it succeeds once.
  using Begin = std::function<absl::StatusOr<std::unique_ptr<Coordinator>>(
      const BroughtModel& model, std::vector<float> values)>;

  // One that has begun. The coordinator outlives it, or is its own.
  explicit ServedRun(Coordinator& coordinator) : begun_(&coordinator) {}
  explicit ServedRun(std::unique_ptr<Coordinator> coordinator)
      : coordinator_(std::move(coordinator)), begun_(coordinator_.get()) {}
  // One that awaits its model. `config` is complete (CompleteRunConfig), but may leave out what is
  // trained.
  ServedRun(v1::RunConfig config, std::string run_id, Begin begin)
      : config_(std::move(config)), run_id_(std::move(run_id)), begin_(std::move(begin)) {}

  // Null until the run has begun.
  Coordinator* coordinator() const { return begun_.load(std::memory_order_acquire); }
  // FAILED_PRECONDITION until then: whoever asks needs a model.
  absl::StatusOr<Coordinator*> Begun() const;

  // These know a run that awaits its model, too.
  const v1::RunConfig& config() const;
  const std::string& run_id() const;
  v1::DescribeResponse Describe() const;
  v1::RunStatus GetStatus() const;
  absl::Status Health() const;
  absl::Status Shutdown();

  // Says what the run would be with that model. Changes nothing. Errors are BringModel's:
  // ALREADY_EXISTS once the run has begun.
  absl::StatusOr<BroughtModel> AdmitModel(const v1::ModelHeader& header) const;
  // Begins the run with these values, in the arena order of model.plan. Calls `ready` before
  // anybody sees the coordinator. Writes the values: call it on a thread that may take its time.
  absl::Status BeginWith(
      BroughtModel model, std::vector<float> values,
      const std::function<void(Coordinator&)>& ready = [](Coordinator&) {});

 private:
  absl::Status HasItsModel() const;

  const v1::RunConfig config_;
  const std::string run_id_;
  const Begin begin_;
  absl::Mutex mutex_;  // Held while a run begins.
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Coordinator> coordinator_;
  std::atomic<Coordinator*> begun_ = nullptr;
};

}  // namespace causeway::server
