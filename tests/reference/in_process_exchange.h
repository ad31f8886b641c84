// A worker's exchange with a coordinator in the same process: no sockets, no copies of the
// protocol. For tests that run the real worker code against the real coordinator.
//
//   ASSIGN_OR_RETURN(auto exchange, InProcessExchange::Join(coordinator, "worker-0"));
//   RETURN_IF_ERROR(exchange->Ready(0));
//   ... worker::SyncEngine over *exchange ...
//   RETURN_IF_ERROR(exchange->Leave(v1::Leave::FINISHED));
//   RETURN_IF_ERROR(exchange->session_status());
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/client/exchange.h"
#include "server/core/coordinator.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway {

// Thread-safe.
class InProcessExchange final : public Exchange {
 public:
  // Makes `worker_id` a member, as a worker does that computed the same configuration and plan.
  // The coordinator outlives the exchange. Errors are those of Coordinator::Join.
  static absl::StatusOr<std::unique_ptr<InProcessExchange>> Join(server::Coordinator& coordinator,
                                                                 const std::string& worker_id);
  ~InProcessExchange() override;

  const v1::Welcome& welcome() const { return welcome_; }

  // The session's messages.
  absl::Status Ready(int64_t step);
  absl::Status Heartbeat(int64_t step, int64_t tokens);
  absl::Status Leave(v1::Leave::Reason reason);
  // The error that ended the session, or that a report of a merge met (DATA_LOSS: the published
  // copies differ). OK before.
  absl::Status session_status() const { return sink_->end(); }

  absl::Status Push(const causeway::Contribution& contribution) override;
  absl::StatusOr<PulledObject> PullAnswer(int fragment, int64_t round, int64_t due_step) override;
  absl::StatusOr<PulledObject> PullState(int fragment) override;
  void ReportApplied(int fragment, int64_t round, uint64_t published_hash) override;
  void Cancel() override;
  int64_t bytes_up() const override { return 0; }
  int64_t bytes_down() const override { return 0; }

 private:
  struct Waiters;

  InProcessExchange(server::Coordinator& coordinator, std::string worker_id);
  absl::Status Handle(const v1::WorkerMessage& message);

  server::Coordinator& coordinator_;
  const std::string worker_id_;
  v1::Welcome welcome_;
  const std::shared_ptr<server::RecordingSink> sink_;
  // Shared with callbacks that the coordinator may call after this object is gone.
  const std::shared_ptr<Waiters> waiters_;
};

}  // namespace causeway
