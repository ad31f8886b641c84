// One Exchange.Push: reads messages and has them put where they belong (push_receiver.h), until its
// object's fate is known.
#ifndef CAUSEWAY_SERVER_SERVICE_PUSH_REACTOR_H_
#define CAUSEWAY_SERVER_SERVICE_PUSH_REACTOR_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/service/push_receiver.h"
#include "server/service/push_table.h"
#include "server/service/self_owned.h"
#include "common/base/work_queue.h"

namespace causeway::server {

class PushReactor final : public SelfOwned<PushReactor, grpc::ServerReadReactor<grpc::ByteBuffer>>,
                          public PushStream {
 public:
  // Table and runner outlive the reactor; `response` lives until Finish.
  PushReactor(PushTable& table, const Runner& run_long, std::string sender,
              PushReceiver::Admit admit, grpc::ByteBuffer* response)
      : table_(table),
        run_long_(run_long),
        sender_(std::move(sender)),
        response_(response),
        receiver_(table, this, std::move(admit)) {}

  void Start();
  void OnReadDone(bool ok) override;
  void OnCancel() override { End(absl::CancelledError("the worker's stream broke")); }
  void End(const absl::StatusOr<PushAccepted>& result) override;

 private:
  void Read();

  PushTable& table_;
  const Runner& run_long_;
  const std::string sender_;
  grpc::ByteBuffer* const response_;
  // Touched by one callback or task at a time.
  grpc::ByteBuffer buffer_;
  PushReceiver receiver_;

  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_PUSH_REACTOR_H_
