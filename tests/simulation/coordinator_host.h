// The machine that the coordinator runs on: starts it from what its store holds, lets it die, and
// serves it to a network that loses, repeats, delays and cuts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/coordinator.h"
#include "tests/simulation/auditor.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/world.h"
#include "tests/unit/server/store/memory_store.h"

namespace causeway::simulation {

class CoordinatorHost;

// The worker's end of a session's stream.
class StreamClient {
 public:
  virtual ~StreamClient() = default;
  virtual void OnMessage(int64_t stream, const v1::CoordinatorMessage& message) = 0;
  // Nothing comes any more. OK: the coordinator ended it in peace.
  virtual void OnStreamEnd(int64_t stream, const absl::Status& status) = 0;
};

// A session's stream: messages arrive in order, or not at all once it is cut.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(CoordinatorHost& host, int64_t id, std::weak_ptr<StreamClient> client);

  int64_t id() const { return id_; }
  void SendFromWorker(const v1::WorkerMessage& message);
  // The worker's process is gone. Silently: the coordinator does not learn of it.
  void AbandonByWorker(bool silently);
  // Nothing passes any more; both sides learn of it, each in its own time.
  void Sever();
  void Stall(absl::Duration time);

 private:
  friend class CoordinatorHost;
  class Sink;

  void SendToWorker(const v1::CoordinatorMessage& message);
  void EndToWorker(const absl::Status& status);
  void DeliverToWorker(std::function<void(StreamClient&)> deliver);
  // When a message sent now arrives: not before those sent earlier.
  absl::Duration Arrival(absl::Duration& last);
  void Receive(const v1::WorkerMessage& message);
  void Join(const v1::Join& join);
  void NoticeBreak();

  CoordinatorHost& host_;
  const int64_t id_;
  const std::weak_ptr<StreamClient> client_;
  int64_t generation_ = 0;  // Generation of the coordinator that received the join.
  std::string worker_;
  uint64_t incarnation_ = 0;
  bool severed_ = false;
  bool ended_by_coordinator_ = false;
  bool noticed_ = false;
  absl::Duration up_arrival_, down_arrival_;
};

// The calls of a coordinator's process: tests plant bugs and failures in them. One per process.
class Calls {
 public:
  virtual ~Calls() = default;
  virtual absl::StatusOr<v1::Welcome> Join(server::Coordinator& own, const v1::Join& join,
                                           std::shared_ptr<server::SessionSink> sink) {
    return own.members().Join(join, std::move(sink));
  }
  virtual absl::Status Handle(server::Coordinator& own, const std::string& worker_id,
                              uint64_t incarnation, const v1::WorkerMessage& message) {
    return own.members().Handle(worker_id, incarnation, message);
  }
  virtual absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(server::Coordinator& own,
                                                                    const v1::PushHeader& header) {
    return own.rounds().BeginPush(header, nullptr);
  }
  virtual absl::Status Contribute(server::Coordinator& own, const v1::PushHeader& header,
                                  const SharedBytes& object) {
    return own.rounds().Contribute(header, object).status();
  }
  virtual void MergeDue(server::Coordinator& own, int fragment) { own.rounds().MergeDue(fragment); }
  virtual void Tick(server::Coordinator& own) { own.Tick(); }
  virtual absl::Status Health(const server::Coordinator& own) { return own.Health(); }
};

// Outlives the processes, with what it keeps, and writing to it is when a process likes to die.
class MortalStore final : public server::MemoryStore {
 public:
  // `on_death` is called when the process dies in the middle of a call; `on_disk_failure` when it
  // lives on, but no later call succeeds until the next process (FailWith).
  struct Options {
    World* world = nullptr;
    Auditor* auditor = nullptr;
    double death_rate = 0;  // Per write.
    std::function<void()> on_death;
    std::function<void()> on_disk_failure;
  };
  explicit MortalStore(Options options) : options_(std::move(options)) {}

  absl::Status SaveContribution(const v1::Contribution& record,
                                std::span<const uint8_t> object) override;
  absl::Status SaveMembers(std::span<const v1::Member> members) override;

 private:
  absl::Status Write(absl::string_view call, absl::FunctionRef<void(Kept&)> change) override;
  void Holds(const v1::Contribution& record, std::span<const uint8_t> object) override {
    options_.auditor->Stored(record, object);
  }
  void Holds(const v1::Round& record, std::span<const uint8_t> answer) override {
    options_.auditor->RoundStored(record, answer);
  }
  bool Strikes() const {
    World& world = *options_.world;
    return failure().ok() && world.faulty() && world.Chance(options_.death_rate);
  }

  const Options options_;
};

// Parts of a coordinator's process: a region's way to its parent.
struct HostHooks {
  std::function<void(server::Coordinator::Options&)> begin;  // A process is about to begin.
  std::function<void()> started;                             // It serves.
  std::function<void()> died;
};

class CoordinatorHost {
 public:
  // Null where there is nothing but OK to tell.
  using Reply = absl::StatusOr<std::shared_ptr<const server::PullObject>>;
  using OnReply = std::function<void(Reply)>;
  using CallsMaker = std::function<std::unique_ptr<Calls>()>;

  CoordinatorHost(World& world, const Scenario& scenario, Auditor& auditor,
                  server::InitialValues initial, CallsMaker make_calls,
                  std::string name = "the coordinator", HostHooks hooks = {});

  void Start();
  // Kills the process. It starts again after a while.
  void Kill();
  void ShutDown();
  // Kills it in a while, and starts another one: whoever looks after it has seen that it failed.
  void Replace();
  // Null while it is dead.
  server::Coordinator* coordinator() { return coordinator_.get(); }
  // Runs an operator's command; false if there is nobody to take it.
  bool Command(const std::function<void(server::Coordinator&)>& command);

  std::shared_ptr<Stream> Attach(std::weak_ptr<StreamClient> client, const v1::Join& join);
  // Calls over the network. `caller`: whose death makes the reply superfluous.
  void Push(std::weak_ptr<void> caller, const v1::PushHeader& header, std::vector<uint8_t> object,
            OnReply done);
  void PullAnswer(std::weak_ptr<void> caller, int fragment, int64_t round, OnReply done);
  void PullState(std::weak_ptr<void> caller, int fragment, OnReply done);

 private:
  friend class Stream;
  struct Call {
    std::weak_ptr<void> caller;
    OnReply done;
    bool finished = false;
  };

  absl::Duration Delay();
  // `serve` is run by a live coordinator, and given what to call with the reply.
  void Send(std::weak_ptr<void> caller, absl::Duration patience, std::function<void(OnReply)> serve,
            OnReply done);
  void Deliver(const std::shared_ptr<Call>& call, const std::function<void(OnReply)>& serve,
               bool lose_reply);
  static void Finish(const std::shared_ptr<Call>& call, Reply reply);
  // Nothing that the process says passes any more once it is dying.
  bool serving(int64_t generation) const {
    return coordinator_ != nullptr && !dying_ && generation == generation_;
  }
  // After every call into the coordinator: false if it died in it.
  bool Survived();
  void Die(absl::Duration downtime);
  void Tick(int64_t generation);
  void Maintain(int64_t generation);

  World& world_;
  const Scenario& scenario_;
  Auditor& auditor_;
  const server::InitialValues initial_;
  const CallsMaker make_calls_;
  const std::string name_;
  const HostHooks hooks_;
  MortalStore store_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::unique_ptr<Calls> calls_;
  int64_t generation_ = 0;
  bool dying_ = false;
  int64_t streams_ = 0;
  std::vector<std::weak_ptr<Stream>> open_streams_;
  std::vector<std::weak_ptr<Call>> open_calls_;
};

}  // namespace causeway::simulation
