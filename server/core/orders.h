// The role that takes an operator's orders, and gives those that follow from the members' speeds.
#ifndef CAUSEWAY_SERVER_CORE_ORDERS_H_
#define CAUSEWAY_SERVER_CORE_ORDERS_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "server/core/coordinator.h"
#include "server/core/run.h"

namespace causeway::server {

class OrdersImpl final : public Orders {
 public:
  explicit OrdersImpl(Run& run) : run_(run) {}

  absl::Status Pause(const std::string& reason) override;
  absl::Status Resume() override;
  absl::Status Drain(const std::string& worker_id) override;
  absl::Status Reject(const v1::RejectRequest& order) override;
  absl::Status StopAtStep(int64_t step) override;
  absl::Status StopAtTokens(int64_t tokens) override;

  // Acts on the speeds that were just reported: other paces, or the end of the token budget. Call
  // it without a lock; sends and records.
  absl::Status ActOnProgress();

 private:
  int64_t TokenBudget() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex);

  Run& run_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_ORDERS_H_
