// A shard's end of the stream to its lead.
#ifndef CAUSEWAY_SERVER_SHARDS_RPC_LEAD_LINK_H_
#define CAUSEWAY_SERVER_SHARDS_RPC_LEAD_LINK_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/shards.grpc.pb.h"
#include "common/base/file_system.h"
#include "common/params/fragment_plan.h"
#include "common/rpc/security.h"
#include "common/telemetry/event_log.h"
#include "server/core/coordinator.h"
#include "server/core/run_observer.h"

namespace causeway::server {

// Follows the lead's rosters, and reports: as an observer what becomes of rounds, as an event log
// what happens. Thread-safe.
class LeadLink final : public RunObserver, public EventLog {
 public:
  // `hello`: without its address. Events are recorded in `events`, too, which may be set before
  // Start and outlives the link.
  LeadLink(std::string lead, const ChannelSecurity& security, v1::ShardHello hello);
  ~LeadLink() override { Stop(); }

  // Waits for so long; true: the process is to end.
  using Waiter = std::function<bool(absl::Duration)>;
  // Asks what this shard is to have, as long as the run awaits its model. UNAVAILABLE if no lead
  // answers within `timeout`; ALREADY_EXISTS if it takes another process for this shard for
  // `served`, as it may for a while after one has died; CANCELLED if `wait` says so.
  absl::StatusOr<v1::ShardWelcome> Ask(absl::Duration timeout, absl::Duration served,
                                       const Waiter& wait);
  // The values that these fragments begin with, one after the other (ShardWelcome.given_values).
  // DATA_LOSS if they are not what the lead has; UNAVAILABLE if it is gone; CANCELLED if `wait`
  // says so.
  absl::StatusOr<std::vector<float>> Initial(const FragmentPlan& plan,
                                             std::span<const int> fragments, const Waiter& wait);

  void set_events(EventLog* events) { events_ = events; }
  // It does not attach before this is OK.
  void set_may_tell(std::function<absl::Status()> may_tell) { may_tell_ = std::move(may_tell); }
  // Keeps what this process hears of the run's end (end_note.h) there. Before Start.
  void set_end_note(FileSystem* file_system, std::string folder) {
    file_system_ = file_system;
    folder_ = std::move(folder);
  }
  // Attaches, again and again, until Stop. The coordinator outlives that. `hello` as it is now. A
  // lead without a roster for `silence` is connected to anew: its machine may be another one.
  absl::Status Start(Coordinator& coordinator, v1::ShardHello hello, absl::Duration silence);
  // Not OK once the lead has refused this shard for good, or another process serves the shard.
  absl::Status status() const;
  // A shard whose run is finished: its lead has noted that it knows, or has not been heard for half
  // a minute.
  bool MayEnd() const;
  void Stop();

  void OnContributed(const v1::PushHeader& header, bool quarantined) override;
  void OnPublished(const RoundRecord& round, const std::vector<std::string>& missing) override;
  void Record(absl::string_view event, const std::string& message,
              const nlohmann::json& fields) override;

 private:
  using Stream = grpc::ClientReaderWriter<v1::ShardReport, v1::ShardOrder>;

  absl::StatusOr<v1::ShardWelcome> AskOnce(absl::Time deadline);
  absl::StatusOr<std::vector<float>> ReadInitial(const FragmentPlan& plan,
                                                 std::span<const int> fragments,
                                                 grpc::ClientContext& context);
  void Run();
  absl::Status Follow(grpc::ClientContext& context);
  // Writes what is queued until the stream is over, or its lead silent.
  void Write(grpc::ClientContext& context, Stream& stream);
  // Before the lead is told that the roster was heard.
  absl::Status RememberEnd(const v1::ShardRoster& roster);
  absl::Status Obey(const v1::ShardOrder& order);
  // Tells the lead what it has to know of a shard that attaches.
  void QueueAll();
  void Queue(v1::ShardReport report, bool fragments_changed = false);

  const std::string lead_;
  const ChannelSecurity security_;
  int connection_ = 0;  // The number of the stub's.
  std::unique_ptr<v1::Shards::Stub> stub_;
  absl::Duration silence_ = absl::InfiniteDuration();
  v1::ShardHello hello_;
  EventLog* events_ = NullEventLog();
  std::function<absl::Status()> may_tell_;  // Null: always.
  FileSystem* file_system_ = nullptr;
  std::string folder_;
  Coordinator* coordinator_ = nullptr;
  mutable absl::Mutex mutex_;
  std::deque<v1::ShardReport> reports_ ABSL_GUARDED_BY(mutex_);  // While a stream stands.
  bool streams_ ABSL_GUARDED_BY(mutex_) = false;                 // Follow has a stream.
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;                // The lead has welcomed it there.
  bool fragments_changed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;                           // As the last roster said.
  absl::Time lost_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // The lead.
  absl::Time heard_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool was_silent_ ABSL_GUARDED_BY(mutex_) = false;  // The stream was ended for it.
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SHARDS_RPC_LEAD_LINK_H_
