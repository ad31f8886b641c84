// The lead's end of the streams to its shards.
#ifndef CAUSEWAY_SERVER_SHARDS_SHARD_HUB_H_
#define CAUSEWAY_SERVER_SHARDS_SHARD_HUB_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/shards.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/telemetry/event_log.h"
#include "server/core/coordinator.h"
#include "server/core/shards.h"
#include "server/shards/deal.h"

namespace causeway::server {

// Thread-safe. Knows no gRPC: a stream takes orders from it and gives it reports.
class ShardHub final : public Shards {
 public:
  struct Options {
    FileSystem* file_system = nullptr;  // This and `events` outlive the hub.
    std::string folder;                 // Folder of the lead's run.
    // The lead among them, if it has fragments. Without fragments where the run awaits its model.
    std::vector<DealtShard> deal;
    // Hands on the values that these fragments began with, one after the other. Asked where the
    // run's folder has them.
    std::function<absl::Status(
        std::span<const int> fragments,
        const std::function<absl::Status(int fragment, std::span<const float>)>& take)>
        initial = nullptr;
    EventLog* events = NullEventLog();
    uint64_t process_nonce = 0;  // Random for each process of the lead.
    // A shard that has not heard a roster after so long is taken for gone. More than kLeadSilence:
    // it has stopped closing rounds by then.
    absl::Duration patience = absl::Seconds(5);
    // A shard that leaves a roster unheard for `silence` has its stream ended, by that clock: its
    // machine may be gone without a word. Null: nobody looks.
    Clock* clock = nullptr;
    absl::Duration silence = absl::InfiniteDuration();
    // Nobody attaches before it is OK: what the lead's folder holds may be told. Null: always.
    std::function<absl::Status()> may_tell = nullptr;
  };
  explicit ShardHub(Options options);

  // One attached shard.
  class Line {
   public:
    explicit Line(v1::ShardHello hello) : hello_(std::move(hello)) {}

   private:
    friend class ShardHub;
    const v1::ShardHello hello_;
    std::deque<v1::ShardCall> calls_;  // These, and all below, are the hub's mutex's.
    std::optional<v1::ShardRoster> roster_;
    int64_t given_ = 0;  // The number of the newest roster that was ever in roster_.
    int64_t heard_ = 0;
    absl::Duration silent_since_ = absl::InfiniteDuration();  // Rosters are unheard since then.
    bool closed_ = false;
    std::string why_;               // The hub has given it up, for this reason.
    std::function<void()> cancel_;  // Ends the stream. Null once it is over.
    std::map<int64_t, std::function<void(const absl::Status&)>> answers_;
  };

  // Before any shard is admitted. The coordinator outlives all streams.
  void Begin(Coordinator& coordinator);
  // The fragments are dealt, before the coordinator has them.
  void Deal(std::vector<DealtShard> deal);

  // Checks a shard that introduces itself; the errors of Shards.Serve.
  absl::StatusOr<v1::ShardWelcome> Admit(const v1::ShardHello& hello) const;
  // Sends the shard what its fragments begin with; the errors of Shards.Initial, and of `send`.
  absl::Status SendInitial(const v1::ShardHello& hello,
                           const std::function<absl::Status(const v1::ShardValues&)>& send) const;
  // From now on it is told what there is. Errors as Admit, and what the folder's disk says.
  // `cancel` ends its stream, whatever that waits for: called at most until Detach, never blocks.
  absl::StatusOr<std::shared_ptr<Line>> Attach(const v1::ShardHello& hello,
                                               std::function<void()> cancel = nullptr);
  // Waits for the next order; nothing once the line is closed.
  std::optional<v1::ShardOrder> NextOrder(Line& line);
  // The same without waiting: nothing if there is none now.
  std::optional<v1::ShardOrder> TryNextOrder(Line& line);
  // An error ends the stream.
  absl::Status Take(Line& line, const v1::ShardReport& report);
  // NextOrder ends.
  void Close(Line& line);
  // The stream is over.
  void Detach(const std::shared_ptr<Line>& line, const absl::Status& why);
  // Every shard has heard that the run is finished, this process or a former one.
  bool AllHaveEnded() const;
  // The lead stops: all lines are closed.
  void Stop();

  absl::Status Complete() const override;
  std::vector<v1::Shard> Where() const override;
  void Tell(const v1::ShardRoster& roster, bool wait) override;
  void Call(int fragment, v1::ShardCall call,
            std::function<void(const absl::Status&)> done) override;

 private:
  // A shard of the deal.
  struct Place {
    DealtShard dealt;
    std::string address;  // Where it was last; empty: it has not attached.
    bool told = false;    // It has said what it had when it attached, draws included.
    std::shared_ptr<Line> line;
  };
  absl::Status Check(const v1::ShardHello& hello) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool HasInitial() const;
  static void GiveUp(Line& line, const std::string& why);
  static std::optional<v1::ShardOrder> TakeOrder(Line& line);
  // Makes what is known of the shards durable.
  absl::Status Note() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Coordinator* coordinator_ = nullptr;
  mutable absl::Mutex mutex_;
  std::vector<DealtShard> deal_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Place> places_ ABSL_GUARDED_BY(mutex_);  // Without the lead.
  int64_t last_call_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t newest_ ABSL_GUARDED_BY(mutex_) = 0;  // The number of the newest roster.
  // The first roster that says that the run is finished; 0: it is not.
  int64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SHARDS_SHARD_HUB_H_
