// What the lead of shards knows of their fragments: each as its shard last reported it.
#ifndef CAUSEWAY_SERVER_CORE_SHARD_REPORTS_H_
#define CAUSEWAY_SERVER_CORE_SHARD_REPORTS_H_

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/admin.pb.h"
#include "causeway/v1/shards.pb.h"
#include "common/params/fragment_plan.h"
#include "common/params/sync_schedule.h"
#include "server/core/run_summary.h"
#include "server/round/round_policy.h"
#include "server/store/store.h"

namespace causeway::server {

// Thread-safe, with a lock that is held while nothing else is called. Fragments are such as the
// plan has and a shard has.
class ShardReports {
 public:
  // Both outlive the object.
  ShardReports(const FragmentPlan& plan, const SyncSchedule& schedule)
      : plan_(plan), schedule_(schedule) {}

  // Takes where a fragment stands. FAILED_PRECONDITION if a later version of it was published.
  absl::Status TakeStatus(const std::string& shard, const v1::FragmentStatus& status);
  // Takes a published round; a status may have been faster.
  void TakeRound(const RoundRecord& round);
  // Takes the sums over all fragments of the shard, in place of its last ones.
  void TakeAccounts(const std::string& shard, const v1::ShardAccounts& accounts);

  // The fragment's open round; the first one, if nothing was reported.
  OpenRound open_round(int fragment) const;
  v1::FragmentStatus status(int fragment) const;
  // Adds the bytes that shards have had of that worker, and sent to it.
  void AddTo(const std::string& worker_id, WorkerAccount& account) const;
  // Adds the shards' rounds, comparisons, and bytes of the workers that are there.
  void AddTo(RunSummary& summary) const;

 private:
  const FragmentPlan& plan_;
  const SyncSchedule& schedule_;
  mutable absl::Mutex mutex_;
  std::map<int, v1::FragmentStatus> fragments_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::ShardAccounts> accounts_ ABSL_GUARDED_BY(mutex_);  // By shard.
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_SHARD_REPORTS_H_
