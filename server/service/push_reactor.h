// One Exchange.Push: reads the header and the chunks, verifies each, and hands the whole object to
// the coordinator on a thread of the work queue.
#ifndef CAUSEWAY_SERVER_SERVICE_PUSH_REACTOR_H_
#define CAUSEWAY_SERVER_SERVICE_PUSH_REACTOR_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.pb.h"
#include "server/core/coordinator.h"
#include "server/service/self_owned.h"
#include "server/service/work_queue.h"

namespace causeway::server {

class PushReactor final : public SelfOwned<PushReactor, grpc::ServerReadReactor<v1::PushRequest>> {
 public:
  // All but `response` outlive the reactor; `response` lives until Finish.
  PushReactor(Coordinator& coordinator, WorkQueue& work, ByteBudget& memory,
              v1::PushResponse* response)
      : coordinator_(coordinator), work_(work), memory_(memory), response_(response) {}
  ~PushReactor() override { memory_.Return(taken_bytes_); }

  void Start() { StartRead(&request_); }
  void OnReadDone(bool ok) override;

 private:
  // Of one message. Sets complete_ when nothing more need be read.
  absl::Status Receive();
  absl::Status ReceiveHeader(const v1::PushHeader& header);
  absl::Status ReceiveChunk(const v1::Chunk& chunk);
  void End(const absl::Status& status);

  Coordinator& coordinator_;
  WorkQueue& work_;
  ByteBudget& memory_;
  v1::PushResponse* const response_;
  // Touched by one callback or task at a time.
  v1::PushRequest request_;
  v1::PushHeader header_;
  bool has_header_ = false;
  bool complete_ = false;
  bool duplicate_ = false;
  int64_t taken_bytes_ = 0;
  std::vector<uint8_t> object_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_PUSH_REACTOR_H_
