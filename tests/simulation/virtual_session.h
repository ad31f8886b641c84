// One process's session with a coordinator, as worker/member and server/link have it over gRPC:
// attaches, attaches again when its stream breaks, keeps what is to be said meanwhile, and beats.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "common/client/session.h"
#include "common/params/fragment_plan.h"
#include "tests/simulation/auditor.h"
#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/world.h"

namespace causeway::simulation {

class VirtualSession : public StreamClient, public std::enable_shared_from_this<VirtualSession> {
 public:
  struct Options {
    World* world = nullptr;
    const Scenario* scenario = nullptr;
    const FragmentPlan* plan = nullptr;
    CoordinatorHost* host = nullptr;  // To which it attaches.
    Auditor* auditor = nullptr;       // That coordinator's.
    std::string id;
    uint64_t config_hash = 0;
    uint64_t nonce = 0;
  };

  // The process is gone at once. Silently: as when its machine is.
  void Kill(bool silently);
  bool dead() const { return dead_; }
  Stream* stream() { return stream_.get(); }
  uint64_t incarnation() const { return incarnation_; }

  void OnMessage(int64_t stream, const v1::CoordinatorMessage& message) final;
  void OnStreamEnd(int64_t stream, const absl::Status& status) final;

 protected:
  struct Patience {
    absl::Duration welcome;
    absl::Duration first_pause;  // Twice as long after each failure.
    absl::Duration longest_pause;
  };
  VirtualSession(Options options, const Patience& patience)
      : session_(std::move(options)), patience_(patience) {}

  // From now on it is a member, whatever its stream goes through.
  void OpenStream();
  void Send(v1::WorkerMessage message);
  // Runs `event` later if the process is still there.
  void After(absl::Duration delay, std::function<void()> event);
  absl::Duration BackOff(int attempt) const;
  // kLater: looks again in a while. kNever: `done` is never called.
  enum class When { kNow, kLater, kNever };
  virtual When may_call() const = 0;
  // Push and pull again and again, until what comes of it does not pass.
  void Push(const v1::PushHeader& header, const std::shared_ptr<const std::vector<uint8_t>>& object,
            const CoordinatorHost::OnReply& done);
  void Pull(int fragment, int64_t round, const CoordinatorHost::OnReply& done);
  bool connected() const { return stream_ != nullptr && stream_welcomed_; }
  World& world() const { return *session_.world; }

  // Adds what only this kind of member says.
  virtual void Complete(v1::Join& join) const = 0;
  virtual v1::Heartbeat Progress() const = 0;
  virtual bool beats() const { return connected(); }
  // After what was kept was said. `first`: as this member.
  virtual void OnWelcome(const v1::Welcome& welcome, bool first) = 0;
  // Directives are among orders_ by then.
  virtual void OnTold(const v1::CoordinatorMessage& message) = 0;
  // The stream is over. True: it attaches again.
  virtual bool OnBroken(const absl::Status& status) = 0;

  bool dead_ = false;
  bool member_ = false;
  bool welcomed_ = false;  // As that member.
  std::shared_ptr<Stream> stream_;
  bool stream_welcomed_ = false;
  uint64_t incarnation_ = 0;
  int64_t epoch_ = 0;
  int tries_ = 0;
  bool ready_ = false;  // Said at every attaching, with the next two.
  int64_t ready_step_ = 0;
  bool anew_ = false;
  Session::Orders orders_;
  std::deque<v1::WorkerMessage> outbox_;

 private:
  void Beat(int64_t beat);
  using MakeCall = std::function<void(int attempt, CoordinatorHost::OnReply)>;
  void Call(int attempt, const MakeCall& make, const CoordinatorHost::OnReply& done);

  const Options session_;
  const Patience patience_;
  int64_t beats_ = 0;
};

}  // namespace causeway::simulation
