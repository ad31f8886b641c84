#include "server/core/waiting_coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "common/params/tensor_table.h"
#include "common/transfer/wire.h"

namespace causeway::server {
namespace {

absl::Status StillWaits() {
  return absl::FailedPreconditionError(
      "the run waits for the first site to bring its model: a site that joins with the Python "
      "package does (docs/pytorch.md)");
}

// INVALID_ARGUMENT, naming the first difference, unless both are the same table.
absl::Status CheckSameTable(const v1::TensorTable& run, const v1::TensorTable& brought) {
  const auto text = [](const v1::TensorTable& table, int i) {
    return i < table.tensor_size() ? table.tensor(i).ShortDebugString() : std::string("nothing");
  };
  for (int i = 0; i < std::max(run.tensor_size(), brought.tensor_size()); ++i) {
    if (text(run, i) == text(brought, i)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", i, " must be as in the run's configuration, ", text(run, i),
                     "; it is ", text(brought, i).substr(0, 600)));
  }
  return absl::OkStatus();
}

}  // namespace

WaitingCoordinator::WaitingCoordinator(v1::RunConfig config, std::string run_id, Begin begin)
    : config_(std::move(config)), run_id_(std::move(run_id)), begin_(std::move(begin)) {}

const v1::RunConfig& WaitingCoordinator::config() const {
  return begun() != nullptr ? begun()->config() : config_;
}

const FragmentPlan& WaitingCoordinator::plan() const {
  return begun() != nullptr ? begun()->plan() : no_plan_;
}

v1::DescribeResponse WaitingCoordinator::Describe() const {
  if (begun() != nullptr) return begun()->Describe();
  v1::DescribeResponse response;
  response.set_run_id(run_id_);
  *response.mutable_config() = config_;
  response.set_wire_version(kWireVersion);
  response.set_software_version(kSoftwareVersion);
  response.set_awaits_model(true);
  return response;
}

absl::StatusOr<BroughtModel> WaitingCoordinator::AdmitModel(const v1::ModelHeader& header) const {
  if (begun() != nullptr) return begun()->AdmitModel(header);
  RETURN_IF_ERROR(CheckName("worker_id", header.worker_id()));
  RETURN_IF_ERROR(CheckRunId("model", header.run_id(), run_id_));
  RETURN_IF_ERROR(CheckTensorTable(header.tensors()));
  BroughtModel model;
  model.worker_id = header.worker_id();
  model.config = config_;
  if (config_.has_model() || config_.has_tensors()) {
    RETURN_IF_ERROR(CheckSameTable(MakeTensorTable(RunTensors(config_)), header.tensors()));
  } else {
    *model.config.mutable_tensors() = header.tensors();
  }
  RETURN_IF_ERROR(CompleteRunConfig(model.config).status());
  ASSIGN_OR_RETURN(model.plan, FragmentPlan::Create(model.config));
  const int64_t bytes = model.plan.parameters() * int64_t{sizeof(float)};
  if (header.total_bytes() != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("total_bytes must be 4 times the ", model.plan.parameters(),
                     " values of the tensors, ", bytes, "; it is ", header.total_bytes()));
  }
  return model;
}

absl::Status WaitingCoordinator::BeginWith(BroughtModel model, std::vector<float> values) {
  absl::MutexLock lock(&mutex_);
  if (coordinator_ != nullptr) return coordinator_->BeginWith(std::move(model), {});
  if (shut_down_) return absl::UnavailableError("the coordinator is shutting down");
  absl::StatusOr<std::unique_ptr<Coordinator>> begun = begin_(model, std::move(values));
  // A disk can be mended, and the site tries again.
  if (IsFatal(begun.status())) {
    return absl::UnavailableError(
        absl::StrCat("the coordinator could not begin the run: ", begun.status().message()));
  }
  ASSIGN_OR_RETURN(coordinator_, std::move(begun));
  begun_.store(coordinator_.get(), std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<v1::Welcome> WaitingCoordinator::Join(const v1::Join& join,
                                                     std::shared_ptr<SessionSink> sink) {
  return begun() == nullptr ? StillWaits() : begun()->Join(join, std::move(sink));
}

absl::Status WaitingCoordinator::Handle(const std::string& worker_id, uint64_t incarnation,
                                        const v1::WorkerMessage& message) {
  return begun() == nullptr ? StillWaits() : begun()->Handle(worker_id, incarnation, message);
}

void WaitingCoordinator::Disconnected(const std::string& worker_id, uint64_t incarnation,
                                      const absl::Status& why) {
  if (begun() != nullptr) begun()->Disconnected(worker_id, incarnation, why);
}

absl::StatusOr<std::optional<v1::PushResponse>> WaitingCoordinator::BeginPush(
    const v1::PushHeader& header, RoundClosed closed) {
  if (begun() == nullptr) return StillWaits();
  return begun()->BeginPush(header, std::move(closed));
}

std::vector<double> WaitingCoordinator::MeasureLeaf(int fragment, int64_t round, int64_t leaf,
                                                    std::span<const uint8_t> bytes) const {
  if (begun() == nullptr) return {};
  return begun()->MeasureLeaf(fragment, round, leaf, bytes);
}

absl::StatusOr<v1::PushResponse> WaitingCoordinator::Contribute(const v1::PushHeader& header,
                                                                ReceivedObject object) {
  if (begun() == nullptr) return StillWaits();
  return begun()->Contribute(header, std::move(object));
}

void WaitingCoordinator::MergeDue(int fragment) {
  if (begun() != nullptr) begun()->MergeDue(fragment);
}

void WaitingCoordinator::PullAnswer(int fragment, int64_t round, PullCallback callback) {
  if (begun() == nullptr) return callback(StillWaits());
  begun()->PullAnswer(fragment, round, std::move(callback));
}

absl::StatusOr<std::shared_ptr<const PullObject>> WaitingCoordinator::PullState(int fragment) {
  return begun() == nullptr ? StillWaits() : begun()->PullState(fragment);
}

void WaitingCoordinator::RecordPulled(const std::string& worker_id, v1::Want::Object object,
                                      int64_t bytes) {
  if (begun() != nullptr) begun()->RecordPulled(worker_id, object, bytes);
}

void WaitingCoordinator::Tick() {
  if (begun() != nullptr) begun()->Tick();
}

bool WaitingCoordinator::Maintain() { return begun() != nullptr && begun()->Maintain(); }

v1::RunStatus WaitingCoordinator::GetStatus() const {
  if (begun() != nullptr) return begun()->GetStatus();
  v1::RunStatus status;
  status.set_run_id(run_id_);
  *status.mutable_config() = config_;
  return status;
}

absl::Status WaitingCoordinator::Pause(const std::string& reason) {
  return begun() == nullptr ? StillWaits() : begun()->Pause(reason);
}

absl::Status WaitingCoordinator::Resume() {
  return begun() == nullptr ? StillWaits() : begun()->Resume();
}

absl::Status WaitingCoordinator::Drain(const std::string& worker_id) {
  return begun() == nullptr ? StillWaits() : begun()->Drain(worker_id);
}

absl::Status WaitingCoordinator::Reject(const v1::RejectRequest& order) {
  return begun() == nullptr ? StillWaits() : begun()->Reject(order);
}

absl::Status WaitingCoordinator::StopAtStep(int64_t step) {
  return begun() == nullptr ? StillWaits() : begun()->StopAtStep(step);
}

absl::Status WaitingCoordinator::StopAtTokens(int64_t tokens) {
  return begun() == nullptr ? StillWaits() : begun()->StopAtTokens(tokens);
}

bool WaitingCoordinator::ReachedItsEnd() const {
  return begun() != nullptr && begun()->ReachedItsEnd();
}

bool WaitingCoordinator::Finished() const { return begun() != nullptr && begun()->Finished(); }

absl::Status WaitingCoordinator::Health() const {
  return begun() == nullptr ? absl::OkStatus() : begun()->Health();
}

absl::Status WaitingCoordinator::Shutdown() {
  {
    absl::MutexLock lock(&mutex_);
    shut_down_ = true;
  }
  return begun() == nullptr ? absl::OkStatus() : begun()->Shutdown();
}

std::vector<float> WaitingCoordinator::PublishedParameters() const {
  return begun() == nullptr ? std::vector<float>() : begun()->PublishedParameters();
}

}  // namespace causeway::server
