// The coordinator's end of bulk transfers for tests: it keeps chunks, answers when an object is
// whole, deals objects out over the streams of a group, and does whatever else the test says.
#ifndef CAUSEWAY_TESTS_UNIT_WORKER_LINK_FAKE_EXCHANGE_SERVICE_H_
#define CAUSEWAY_TESTS_UNIT_WORKER_LINK_FAKE_EXCHANGE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "common/rpc/chunk_set.h"

namespace causeway::worker {

// Thread-safe. Hooks are called under its mutex, on gRPC's threads.
class FakeExchangeService final : public v1::Exchange::CallbackService {
 public:
  // What becomes of a chunk and its stream.
  struct Verdict {
    enum What {
      kTake,  // All is well.
      // Push: it is taken, and nothing more is read of the stream until Release. Pull: it is lost,
      // and nothing more is sent over the stream until Release.
      kHold,
      kDamage,  // Pull: it is sent with a wrong byte.
      kEnd,     // The stream ends with `status` instead.
    };
    What what = kTake;
    grpc::Status status;
  };
  using PushHook = std::function<Verdict(const v1::PushHeader& header, int64_t chunk)>;
  using PullHook = std::function<Verdict(const v1::PullRequest& request, int64_t chunk)>;

  // --- Push ---
  void SetPushHook(PushHook hook);
  // The next stream ends with that as soon as its header is there.
  void RefuseNextPush(const grpc::Status& status);
  // Takes refusals back that no stream has met yet.
  void AcceptPushes();
  // Objects are taken and never acknowledged.
  void DoNotAnswer();
  // Acknowledgements speak of so many bytes less than there are.
  void AcknowledgeLess(int64_t bytes);
  // A former process of the worker has sent these chunks of the object.
  void Hold(int fragment, int64_t total_bytes, const std::vector<int64_t>& chunks);
  std::vector<v1::PushHeader> headers() const;
  // (fragment, chunk) of every chunk that was taken or broke its stream, as they came.
  std::vector<std::pair<int, int64_t>> pushed() const;
  // Chunks that came although they were held.
  int held_pushed_again() const;
  std::string object(int fragment) const;
  int queries() const;

  // --- Pull ---
  void SetPullHook(PullHook hook);
  // What is pulled from now on; until then pulls wait.
  void Publish(const v1::PullHeader& header, std::string bytes);
  // The next stream ends with that instead.
  void RefuseNextPull(const grpc::Status& status);
  std::vector<v1::PullRequest> pulls() const;
  // Chunks that were sent, as they were, whether they arrived or not.
  std::vector<int64_t> pulled() const;

  // Streams on hold go on, and later ones are not held.
  void Release();
  // Wait until there are so many.
  void AwaitPushed(size_t chunks) const;
  void AwaitHeaders(size_t headers) const;
  void AwaitPulls(size_t pulls) const;
  void AwaitQueries(int queries) const;

 private:
  class PushReactor;
  class PullReactor;
  struct Object {
    ChunkSet held;
    std::string bytes;
    std::set<PushReactor*> streams;
  };

  grpc::ServerReadReactor<v1::PushRequest>* Push(grpc::CallbackServerContext* context,
                                                 v1::PushResponse* response) override;
  grpc::ServerWriteReactor<v1::PullResponse>* Pull(grpc::CallbackServerContext* context,
                                                   const v1::PullRequest* request) override;
  grpc::ServerUnaryReactor* QueryTransfer(grpc::CallbackServerContext* context,
                                          const v1::QueryTransferRequest* request,
                                          v1::QueryTransferResponse* response) override;

  void TakeHeader(PushReactor& stream);
  void TakeChunk(PushReactor& stream);
  void FinishAll(Object& object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendNext(PullReactor& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  PushHook push_hook_ ABSL_GUARDED_BY(mutex_);
  PullHook pull_hook_ ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::Status> push_refusals_ ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::Status> pull_refusals_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Object> objects_ ABSL_GUARDED_BY(mutex_);  // By fragment.
  std::vector<v1::PushHeader> headers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<int, int64_t>> pushed_ ABSL_GUARDED_BY(mutex_);
  int held_pushed_again_ ABSL_GUARDED_BY(mutex_) = 0;
  bool answers_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t acknowledge_less_ ABSL_GUARDED_BY(mutex_) = 0;
  int queries_ ABSL_GUARDED_BY(mutex_) = 0;

  std::shared_ptr<const v1::PullHeader> pull_header_ ABSL_GUARDED_BY(mutex_);
  std::string pull_bytes_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, ChunkSet> groups_ ABSL_GUARDED_BY(mutex_);  // What is dealt out already.
  std::vector<v1::PullRequest> pulls_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> pulled_ ABSL_GUARDED_BY(mutex_);
  std::set<PullReactor*> waiting_ ABSL_GUARDED_BY(mutex_);  // To be published.

  std::set<PushReactor*> push_holds_ ABSL_GUARDED_BY(mutex_);
  std::set<PullReactor*> pull_holds_ ABSL_GUARDED_BY(mutex_);
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_TESTS_UNIT_WORKER_LINK_FAKE_EXCHANGE_SERVICE_H_
