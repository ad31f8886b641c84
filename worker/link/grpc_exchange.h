// The exchange over gRPC: fragments as streams of checksummed chunks.
#ifndef CAUSEWAY_WORKER_LINK_GRPC_EXCHANGE_H_
#define CAUSEWAY_WORKER_LINK_GRPC_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "common/base/clock.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "worker/link/pull_receiver.h"
#include "worker/link/session.h"
#include "worker/sync/exchange.h"

namespace causeway::worker {

class GrpcExchange final : public Exchange {
 public:
  struct Options {
    v1::Exchange::StubInterface* stub = nullptr;  // Outlive the exchange, as does the clock.
    Session* session = nullptr;
    const FragmentPlan* plan = nullptr;
    Clock* clock = Clock::Real();  // Outlives the exchange.
    std::string run_id;
    std::string worker_id;
    v1::SyncConfig sync;  // Complete.
    // Where the counters start: what a former exchange of this process transferred.
    int64_t bytes_up = 0;
    int64_t bytes_down = 0;
  };
  explicit GrpcExchange(Options options)
      : options_(std::move(options)),
        bytes_up_(options_.bytes_up),
        bytes_down_(options_.bytes_down) {}

  absl::Status Push(const Contribution& contribution) override;
  absl::StatusOr<PulledObject> PullAnswer(int fragment, int64_t round) override;
  absl::StatusOr<PulledObject> PullState(int fragment) override;
  void ReportApplied(int fragment, int64_t round, uint64_t published_hash) override;
  void Cancel() override;
  int64_t bytes_up() const override { return bytes_up_; }
  int64_t bytes_down() const override { return bytes_down_; }

  // At which answers came in once they had begun, smoothed; 0 before the first.
  double download_bytes_per_s() const;

 private:
  // A call that Cancel can reach.
  class Call {
   public:
    explicit Call(GrpcExchange* exchange);
    ~Call();
    grpc::ClientContext* context() { return &context_; }

   private:
    GrpcExchange* const exchange_;
    grpc::ClientContext context_;
  };

  absl::Status PushOnce(const v1::PushHeader& header, std::span<const uint8_t> object);
  absl::StatusOr<PulledObject> Pull(v1::PullRequest request, int64_t expected_bytes);
  // One stream of it.
  absl::Status PullOnce(PullReceiver& receiver);
  void NoteDownload(size_t bytes, absl::Duration time);
  // Sleeps before try `attempt`; false once cancelled.
  bool BackOff(int attempt);

  const Options options_;
  std::atomic<int64_t> bytes_up_;
  std::atomic<int64_t> bytes_down_;
  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  double download_bytes_per_s_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_LINK_GRPC_EXCHANGE_H_
