// One site of a run under attack, honest or not: a session, pushes and pulls over its own channel.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/admin.grpc.pb.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/rpc/channel.h"
#include "tests/security/hostile_client/run.h"

namespace causeway::hostile {

struct Push {
  v1::PushHeader header;
  std::vector<uint8_t> object;
};

// A loaded machine takes long; only a run that is held up takes as long as this.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

class Site {
 public:
  Site(Run& run, std::string id);
  Site(Run& run, std::string id, const ChannelSecurity& security);
  ~Site();

  // Joins, takes the published state, and is ready at that step (-1: where the run stands).
  absl::Status Enter(int64_t ready_step = -1);
  absl::Status Join();
  // Waits for the channel, whose first attempts may fail on a loaded machine.
  absl::Status AwaitConnection();
  // After a death of the coordinator: a new channel, and a session as it was before.
  absl::Status Return();
  // The same at another run that this site takes for its own.
  absl::Status ReturnTo(Run& run);
  absl::Status PullStates();
  absl::Status Send(const v1::WorkerMessage& message);
  absl::Status Ready(int64_t step);
  absl::Status Heartbeat(int64_t step, int64_t tokens, double inner_step_seconds = 0);
  void Leave();
  void Disconnect();

  // This site's push to that round: `size` times an honest one's.
  Push MakePush(int64_t round, double size = 1) const;
  // The same delta, of which every value is `target`.
  Push MakePushTo(int64_t round, float target) const;
  absl::Status Deliver(const Push& push);
  // Opens a push and sends no more than its header.
  absl::Status DeliverHeader(const Push& push);
  // Waits for the round's answer, at most so long, and merges it.
  absl::Status Merge(int64_t round, absl::Duration patience = kPatience);

  const v1::Welcome& welcome() const { return welcome_; }
  const std::vector<float>& published() const { return published_; }
  int64_t honest_tokens() const;
  v1::Admin::Stub& admin() { return *admin_; }
  // Directives that came so far, of that kind.
  std::vector<v1::Directive> Directives(v1::Directive::Action action) const;
  // Waits until the coordinator has heard everything that was sent in the session before: messages
  // are handled in order, so it sends a heartbeat and waits for its answer. False: the session
  // ended.
  bool Settle(int64_t step, int64_t tokens = 0, double inner_step_seconds = 0);
  // Waits until the coordinator ends the session, at most so long. False: it goes on.
  bool AwaitEnd(absl::Duration patience) const;
  // The status with which the session ended, if it did.
  std::optional<absl::Status> ended() const;

 private:
  void Connect();
  void Listen();
  Push MakePushOf(int64_t round, const std::vector<float>& local) const;
  v1::PushHeader Header(int64_t round, const std::vector<uint8_t>& object) const;

  Run* run_;
  const std::string id_;
  const ChannelSecurity security_;
  const uint64_t nonce_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Session::Stub> session_;
  std::unique_ptr<v1::Exchange::Stub> exchange_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> stream_;
  std::thread listener_;
  v1::Welcome welcome_;
  std::vector<float> published_;
  int64_t ready_step_ = 0;
  mutable absl::Mutex mutex_;
  std::vector<v1::Directive> directives_ ABSL_GUARDED_BY(mutex_);
  int64_t renewals_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::hostile
