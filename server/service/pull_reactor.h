// One Exchange.Pull: sends what PullTable gives it.
#ifndef CAUSEWAY_SERVER_SERVICE_PULL_REACTOR_H_
#define CAUSEWAY_SERVER_SERVICE_PULL_REACTOR_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.pb.h"
#include "server/service/pull_table.h"
#include "server/service/self_owned.h"

namespace causeway::server {

class PullReactor final : public SelfOwned<PullReactor, grpc::ServerWriteReactor<grpc::ByteBuffer>>,
                          public PullStream {
 public:
  // The table outlives the reactor; the context is the call's.
  PullReactor(PullTable& table, grpc::CallbackServerContext* context, v1::PullRequest request)
      : table_(table), context_(context), request_(std::move(request)) {}

  void Start() { table_.Open(request_, shared_from_this()); }
  void OnWriteDone(bool ok) override;
  void OnCancel() override { End(absl::CancelledError("the worker went away")); }

  void SendHeader(const v1::PullHeader& header) override;
  void SendChunk(const OutgoingChunk& chunk) override;
  void End(const absl::Status& status) override;

 private:
  void Write(grpc::ByteBuffer buffer);
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  PullTable& table_;
  grpc::CallbackServerContext* const context_;
  const v1::PullRequest request_;

  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // Once ended_.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelling_ ABSL_GUARDED_BY(mutex_) = false;  // The context is still needed.
  grpc::ByteBuffer buffer_ ABSL_GUARDED_BY(mutex_);  // What is being written.
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_PULL_REACTOR_H_
