// A site of several processes, its ranks, with a trainer of its own: each owns a share of every
// fragment. Rank 0 is a member of the run and has the others encode, merge and hash what is theirs;
// codes alone cross. How messages travel is the program's affair.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/config.pb.h"
#include "causeway/v1/site.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/sync/process_link.h"
#include "worker/sync/remote_part.h"
#include "worker/sync/replica.h"
#include "worker/sync/shard_plan.h"

namespace causeway::worker {

// The ends of a rank's links as streams of SiteFrames, which somebody else carries. Thread-safe.
class SiteLinks {
 public:
  struct Message {
    int rank = 0;       // Goes there, or came from there.
    std::string bytes;  // Empty: the sender says no more.
  };

  // Rank 0 has a link to every other one, others to rank 0.
  SiteLinks(int rank, int ranks);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // The link to that rank, once; the links outlive it.
  std::unique_ptr<SiteStream> Stream(int rank);

  // Waits. Nothing once no stream says any more.
  std::optional<Message> NextOutgoing();
  // INVALID_ARGUMENT: there is no link to that rank, or these bytes are no frame.
  absl::Status TakeIncoming(Message message);
  // As if every stream had been closed, and every peer were gone.
  void Close();

 private:
  class QueueStream;
  struct Link {
    std::deque<v1::SiteFrame> frames;  // That came.
    bool ended = false;                // Nothing more comes,
    bool closed = false;               // or goes.
  };

  void CloseWrites(Link& link, int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Link& link(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return links_[static_cast<size_t>(rank)];
  }

  const int rank_;
  const int ranks_;
  absl::Mutex mutex_;
  std::vector<Link> links_ ABSL_GUARDED_BY(mutex_);  // By rank.
  int open_ ABSL_GUARDED_BY(mutex_) = 0;             // Links that may have something to say.
  std::deque<Message> outgoing_ ABSL_GUARDED_BY(mutex_);
};

// Makes a rank's own part anew, of nothing. Local values stay.
using MakePart = std::function<absl::StatusOr<std::unique_ptr<ReplicaPart>>()>;
MakeParts OfOnePart(MakePart make);

// Rank 0's view of its site's ranks. One thread at a time, as a Replica.
class LeadingRank {
 public:
  // The arguments outlive it; plans are the same in all ranks.
  LeadingRank(SiteLinks& links, const FragmentPlan& plan, const ShardPlan& shards,
              const v1::SyncConfig& sync, MakePart make_part);
  ~LeadingRank();

  // Tells the others good-bye, and wakes whoever waits for one of them. Any thread.
  void Leave();

  // As TrainingBackend::MakeReplica.
  absl::StatusOr<std::unique_ptr<Replica>> MakeReplica();
  // Returns when the others have done all that they were asked for.
  absl::Status Settle();
  // To be called time and again, on one thread of any: ends the ranks if an answer is waited for
  // and the one that owes it has said nothing for `patience`. ABORTED with its name, once.
  absl::Status EndSilence(absl::Duration now, absl::Duration patience);

 private:
  struct Heard {
    uint64_t frames = 0;
    std::optional<absl::Duration> since;  // It was waited for, and had said as much.
  };

  const FragmentPlan& plan_;
  const v1::SyncConfig sync_;
  const MakeParts make_own_;
  const std::shared_ptr<SharedCause> cause_ = std::make_shared<SharedCause>();
  std::vector<std::unique_ptr<SiteLink>> links_;  // To rank 1, 2, ...
  std::vector<RemoteRanks> others_;
  std::vector<Heard> heard_;  // Of each, by EndSilence.
  absl::Duration last_look_;  // Of EndSilence.
};

// Another rank: does what rank 0 asks for, on a thread of its own.
class FollowingRank {
 public:
  // As LeadingRank's; `make_part` is called on that thread, too. Errors: its own.
  static absl::StatusOr<std::unique_ptr<FollowingRank>> Open(SiteLinks& links,
                                                             const FragmentPlan& plan,
                                                             const ShardPlan& shards,
                                                             const v1::SyncConfig& sync,
                                                             MakePart make_part);
  ~FollowingRank();

 private:
  FollowingRank(std::unique_ptr<SiteLink> link, const PieceBytes& pieces, MakePart make_part)
      : link_(std::move(link)), server_(*link_, pieces, OfOnePart(std::move(make_part))) {}

  std::unique_ptr<SiteLink> link_;
  PartServer server_;
  std::thread thread_;
};

}  // namespace causeway::worker
