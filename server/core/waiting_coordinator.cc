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

// The roles of a run that has not begun.
class NotBegun final : public Members, public Rounds, public Orders {
 public:
  absl::StatusOr<v1::Welcome> Join(const v1::Join&, std::shared_ptr<SessionSink>) override {
    return StillWaits();
  }
  absl::Status Handle(const std::string&, uint64_t, const v1::WorkerMessage&) override {
    return StillWaits();
  }
  void Disconnected(const std::string&, uint64_t, const absl::Status&) override {}
  absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(const v1::PushHeader&,
                                                            RoundClosed) override {
    return StillWaits();
  }
  std::vector<double> MeasureLeaf(int, int64_t, int64_t, std::span<const uint8_t>) const override {
    return {};
  }
  absl::StatusOr<v1::PushResponse> Contribute(const v1::PushHeader&, ReceivedObject) override {
    return StillWaits();
  }
  void MergeDue(int) override {}
  void PullAnswer(int, int64_t, PullCallback callback) override { callback(StillWaits()); }
  absl::StatusOr<std::shared_ptr<const PullObject>> PullState(int) override { return StillWaits(); }
  void RecordPulled(const std::string&, v1::Want::Object, int64_t) override {}
  absl::Status Pause(const std::string&) override { return StillWaits(); }
  absl::Status Resume() override { return StillWaits(); }
  absl::Status Drain(const std::string&) override { return StillWaits(); }
  absl::Status Reject(const v1::RejectRequest&) override { return StillWaits(); }
  absl::Status StopAtStep(int64_t) override { return StillWaits(); }
  absl::Status StopAtTokens(int64_t) override { return StillWaits(); }
};

NotBegun& TheRoles() {
  static NotBegun roles;  // Without state.
  return roles;
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

Members& WaitingCoordinator::members() {
  return begun() != nullptr ? begun()->members() : TheRoles();
}

Rounds& WaitingCoordinator::rounds() { return begun() != nullptr ? begun()->rounds() : TheRoles(); }

Orders& WaitingCoordinator::orders() { return begun() != nullptr ? begun()->orders() : TheRoles(); }

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
