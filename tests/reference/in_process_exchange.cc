#include "tests/reference/in_process_exchange.h"

#include "common/base/checksum.h"
#include "common/params/run_config.h"
#include "common/transfer/wire.h"

namespace causeway {

namespace {

PulledObject Pulled(const server::PullObject& object) {
  return {.round = object.header.round(),
          .codec = object.header.codec(),
          .published_hash = object.header.published_hash(),
          .bytes = {object.bytes.begin(), object.bytes.end()}};
}

}  // namespace

struct InProcessExchange::Waiters {
  absl::Mutex mutex;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;

  absl::Status Check() {
    absl::MutexLock lock(&mutex);
    return cancelled ? absl::CancelledError("the exchange was cancelled") : absl::OkStatus();
  }
};

InProcessExchange::InProcessExchange(server::Coordinator& coordinator, std::string worker_id)
    : coordinator_(coordinator),
      worker_id_(std::move(worker_id)),
      sink_(std::make_shared<server::RecordingSink>()),
      waiters_(std::make_shared<Waiters>()) {}

absl::StatusOr<std::unique_ptr<InProcessExchange>> InProcessExchange::Join(
    server::Coordinator& coordinator, const std::string& worker_id) {
  std::unique_ptr<InProcessExchange> exchange(new InProcessExchange(coordinator, worker_id));
  const v1::DescribeResponse description = coordinator.Describe();
  // Computed here, as a worker does.
  v1::Join join = server::JoinOf(description, worker_id, Checksum64(worker_id));
  join.set_config_hash(RunConfigHash(description.config()));
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(description.config()));
  join.set_plan_hash(plan.hash());
  ASSIGN_OR_RETURN(exchange->welcome_, coordinator.members().Join(join, exchange->sink_));
  return exchange;
}

InProcessExchange::~InProcessExchange() {
  Cancel();
  coordinator_.members().Disconnected(worker_id_, welcome_.incarnation(),
                                      absl::UnavailableError("cut"));
}

absl::Status InProcessExchange::Handle(const v1::WorkerMessage& message) {
  return coordinator_.members().Handle(worker_id_, welcome_.incarnation(), message);
}

absl::Status InProcessExchange::Ready(int64_t step) { return Handle(server::ReadyAt(step)); }

absl::Status InProcessExchange::Heartbeat(int64_t step, int64_t tokens) {
  v1::WorkerMessage message;
  message.mutable_heartbeat()->set_step(step);
  message.mutable_heartbeat()->set_tokens(tokens);
  return Handle(message);
}

absl::Status InProcessExchange::Leave(v1::Leave::Reason reason) {
  return Handle(server::LeaveFor(reason));
}

absl::Status InProcessExchange::Push(const causeway::Contribution& contribution) {
  RETURN_IF_ERROR(waiters_->Check());
  v1::PushHeader header = server::HeaderOf(
      coordinator_.run_id(), worker_id_, welcome_.incarnation(), contribution.fragment,
      contribution.round, coordinator_.config().sync().codec_up(), contribution.object);
  header.set_attempt(1);
  header.set_tokens(contribution.tokens);
  DrawsToProto(contribution.draws, header.mutable_draws());
  header.set_send_step(contribution.send_step);
  ASSIGN_OR_RETURN(const auto held, coordinator_.rounds().BeginPush(header, nullptr));
  if (held.has_value()) return absl::OkStatus();
  const absl::Status status =
      coordinator_.rounds()
          .Contribute(header,
                      std::vector<uint8_t>(contribution.object.begin(), contribution.object.end()))
          .status();
  coordinator_.rounds().MergeDue(contribution.fragment);
  return status;
}

absl::StatusOr<PulledObject> InProcessExchange::PullAnswer(int fragment, int64_t round, int64_t) {
  using Object = absl::StatusOr<std::shared_ptr<const server::PullObject>>;
  struct Arrival {
    std::optional<Object> object;  // Guarded by the waiters' mutex.
  };
  const auto arrival = std::make_shared<Arrival>();
  coordinator_.rounds().PullAnswer(fragment, round, [waiters = waiters_, arrival](Object object) {
    absl::MutexLock lock(&waiters->mutex);
    arrival->object = std::move(object);
  });
  {
    absl::MutexLock lock(&waiters_->mutex);
    const auto ready = [&]() ABSL_SHARED_LOCKS_REQUIRED(waiters_->mutex) {
      return waiters_->cancelled || arrival->object.has_value();
    };
    waiters_->mutex.Await(absl::Condition(&ready));
    if (waiters_->cancelled) return absl::CancelledError("the exchange was cancelled");
  }
  // The callback comes once: nobody else touches the arrival any more.
  if (!arrival->object->ok()) return arrival->object->status();
  return Pulled(***arrival->object);
}

absl::StatusOr<PulledObject> InProcessExchange::PullState(int fragment) {
  RETURN_IF_ERROR(waiters_->Check());
  ASSIGN_OR_RETURN(const std::shared_ptr<const server::PullObject> object,
                   coordinator_.rounds().PullState(fragment));
  return Pulled(*object);
}

void InProcessExchange::ReportApplied(int fragment, int64_t round, uint64_t published_hash) {
  const absl::Status status = Handle(server::AppliedOf(fragment, round, published_hash));
  if (!status.ok()) sink_->Close(status);
}

void InProcessExchange::Cancel() {
  absl::MutexLock lock(&waiters_->mutex);
  waiters_->cancelled = true;
}

}  // namespace causeway
