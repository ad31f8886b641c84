// A coordinator behind TLS with a worker that trains as it should, for tests in which others try to
// disturb it: it pushes and pulls round after round until it is told to end, and what it has
// published must then be what an undisturbed run of as many rounds publishes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "causeway/v1/admin.grpc.pb.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "common/rpc/security.h"
#include "server/core/coordinator.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/rpc/test_authority.h"
#include "tests/unit/common/telemetry/awaited_events.h"
#include "tests/unit/server/service/local_server.h"
#include "tests/unit/server/store/memory_store.h"

namespace causeway::server {

inline constexpr char kRunId[] = "guarded-1";
inline constexpr int64_t kAsFastAsItCan = 1'000'000;
inline constexpr char kRunName[] = "guarded";

// A coordinator of a small run, without a server.
class SmallRun {
 public:
  explicit SmallRun(const std::string& settings = "", EventLog* events = NullEventLog());
  Coordinator& coordinator() { return *coordinator_; }
  const MemoryStore& store() const { return store_; }
  const std::vector<float>& initial() const { return initial_; }

 private:
  MemoryStore store_;
  std::vector<float> initial_;
  std::unique_ptr<Coordinator> coordinator_;
};

// The three services as a client sees them.
struct Stubs {
  explicit Stubs(std::shared_ptr<grpc::Channel> through);
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Session::Stub> session;
  std::unique_ptr<v1::Exchange::Stub> exchange;
  std::unique_ptr<v1::Admin::Stub> admin;
};

v1::WorkerMessage MakeJoin(Coordinator& coordinator, const std::string& id);

struct Delta {
  v1::PushHeader header;
  std::vector<uint8_t> object;
};
// The delta of worker "a" for that round, from the parameters published before it.
Delta MakeDelta(int64_t round, const std::vector<float>& published);
absl::Status PushDelta(v1::Exchange::StubInterface& stub, const Delta& delta);
v1::Want WantOf(v1::Want::Object object, int64_t round);
// As that worker.
absl::Status PullAll(v1::Exchange::StubInterface& stub, const std::string& worker_id,
                     const v1::Want& want, std::vector<uint8_t>* object);

// Worker "a", in a thread of its own.
class HonestWorker {
 public:
  // Does so many rounds without being asked to.
  HonestWorker(Stubs stubs, SmallRun& run, int64_t rounds);
  ~HonestWorker();
  // Has so many rounds more done, and waits for them; fails at once if the worker has given up.
  void AwaitRounds(int64_t more);
  // Ends after the round under way, says good-bye, and returns the number of rounds.
  int64_t Finish();
  uint64_t incarnation() const { return session_.welcome->incarnation(); }
  const std::vector<float>& published() const { return published_; }  // After Finish.
  Delta first_delta() const { return first_delta_; }  // After the first AwaitRounds.

 private:
  void Train();
  void DoRound(int64_t round);

  Stubs stubs_;
  SmallRun& run_;
  std::vector<float> published_;
  Delta first_delta_;
  OpenSession session_;
  absl::Mutex mutex_;
  bool finish_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t wanted_ ABSL_GUARDED_BY(mutex_);
  int64_t rounds_ ABSL_GUARDED_BY(mutex_) = 0;
  bool gave_up_ ABSL_GUARDED_BY(mutex_) = false;  // A call failed.
  std::thread thread_;
};

// A run behind TLS. At the end the worker that trains has not noticed anybody.
class SecureRunTest : public ::testing::Test {
 protected:
  ~SecureRunTest() override;

  void Serve(CoordinatorServer::Options options) {
    server_.emplace(run_.coordinator(), std::move(options));
  }
  // Lets worker "a" train, and waits for its first rounds.
  void Train(Stubs stubs, int64_t rounds = kAsFastAsItCan);
  // Who shows the credentials of these files.
  Stubs With(const SecurityOptions& options, absl::Time now = absl::Now()) const;
  static absl::Status Describe(const Stubs& stubs);

  const TestAuthority authority_;
  const TestFolder folder_;
  FakeClock clock_{absl::Now()};
  AwaitedEvents events_;
  SmallRun run_;
  std::optional<LocalServer> server_;
  std::optional<HonestWorker> honest_;
};

}  // namespace causeway::server
