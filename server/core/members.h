// The role that takes what workers say in their sessions.
#ifndef CAUSEWAY_SERVER_CORE_MEMBERS_H_
#define CAUSEWAY_SERVER_CORE_MEMBERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/core/coordinator.h"
#include "server/core/orders.h"
#include "server/core/run.h"

namespace causeway::server {

// Implausible values count as unknown.
Progress ProgressOf(const v1::Heartbeat& heartbeat);

class MembersImpl final : public Members {
 public:
  MembersImpl(Run& run, OrdersImpl& orders) : run_(run), orders_(orders) {}

  absl::StatusOr<v1::Welcome> Join(const v1::Join& join,
                                   std::shared_ptr<SessionSink> sink) override;
  absl::Status Handle(const std::string& worker_id, uint64_t incarnation,
                      const v1::WorkerMessage& message) override;
  void Disconnected(const std::string& worker_id, uint64_t incarnation,
                    const absl::Status& why) override;

 private:
  absl::Status CheckJoin(const v1::Join& join) const;
  // The first worker that shares the data says which they are; refuses those who have others.
  // `changed`: it did.
  absl::Status CheckSharedData(const v1::Join& join, bool& changed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex);
  absl::StatusOr<v1::Welcome> Admit(const v1::Join& join, std::shared_ptr<SessionSink> sink);
  absl::Status HandleReady(const std::string& worker_id, uint64_t incarnation,
                           const v1::Ready& ready);
  absl::Status HandleHeartbeat(const std::string& worker_id, uint64_t incarnation,
                               const v1::Heartbeat& heartbeat);
  absl::Status HandleApplied(const std::string& worker_id, uint64_t incarnation,
                             const v1::Applied& applied);
  absl::Status HandleLeave(const std::string& worker_id, uint64_t incarnation,
                           const v1::Leave& leave);
  absl::Status CheckStep(int64_t step) const;
  // A step that the member can have reached, too.
  absl::Status CheckReached(const std::string& worker_id, int64_t step) const;
  // The last step after which a delta was sent that is published.
  int64_t PublishedStep(const std::vector<OpenRound>& open_rounds) const;
  // The largest step that the run has come to, with those that are likely to be done since the last
  // heartbeats.
  int64_t StepByNow(const std::vector<OpenRound>& open_rounds) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex);
  // Whom the earliest open round lacks that the worker has contributed to; empty: none does.
  std::string WaitsFor(const std::string& worker_id,
                       const std::vector<OpenRound>& open_rounds) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex);

  Run& run_;
  OrdersImpl& orders_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_MEMBERS_H_
