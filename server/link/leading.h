// A coordinator that shares its run with others by etcd: it follows until it leads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_system.h"
#include "common/base/thread_pool.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/telemetry/event_log.h"
#include "server/standby/leadership.h"
#include "server/standby/standbys.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {

// The registry in etcd: two keys of a run, one of them bound to the leader's lease.
//
//   /causeway/RUN/leader    "NAME ADDRESS", with the lease; its create revision is the token
//   /causeway/RUN/in_sync   "NAME,NAME", without one; its mod revision is that of the set

// A user of etcd. Without a name etcd is asked as nobody.
struct EtcdUser {
  std::string name;
  std::string password;
};

// Each channel goes to a member of the cluster. A call ends after `timeout`; the one after a call
// without an answer goes to the next member. FAILED_PRECONDITION of any call: another cluster
// answers than before. PERMISSION_DENIED: etcd does not let this user do it.
std::unique_ptr<Registry> MakeEtcdRegistry(std::vector<std::shared_ptr<RenewedChannels>> members,
                                           const std::string& run, absl::Duration timeout,
                                           EtcdUser user = {});

// The lead of a run, and the thread that keeps its lease and its set.
class Leading {
 public:
  struct Options {
    std::string etcd;  // HOST:PORT,HOST:PORT
    ChannelSecurity etcd_security;
    EtcdUser etcd_user;
    std::string run;      // The run's name: all who share it give the same.
    std::string address;  // Where this coordinator serves once it leads.
    std::string name;     // Name of the machine, for people.
    std::string folder;
    RunDirectoryStore::Options store;
    ChannelSecurity security;  // Security of this one as a follower.
    FileSystem* file_system = nullptr;
    EventLog* events = NullEventLog();
    StandbyNotes* notes = nullptr;  // Notes what it does until it leads.
  };

  // Takes the lead once this folder may have it. Until then it follows whoever leads, in that
  // folder, which is free again when the call returns. The result keeps the lead until it is
  // destroyed, and closes the standbys when the lead is lost. `stop_requested` waits for that long:
  // true ends the call with CANCELLED. `refused` is set if an error came before anything was done:
  // etcd does not answer or is another cluster, or the folder is not one of this run's. Standbys,
  // notes and logs outlive the result.
  static absl::StatusOr<std::unique_ptr<Leading>> StandBy(
      const Options& options, Standbys& standbys,
      const std::function<bool(absl::Duration)>& stop_requested, bool& refused);
  ~Leading();
  Leading(const Leading&) = delete;
  Leading& operator=(const Leading&) = delete;

 private:
  Leading(std::unique_ptr<Registry> registry, Standbys& standbys,
          const Leadership::Options& options)
      : registry_(std::move(registry)), leadership_(*registry_, standbys, options) {}
  absl::Status Wait(const Options& options, const std::string& name,
                    const std::function<bool(absl::Duration)>& stop_requested, bool& refused);

  const std::unique_ptr<Registry> registry_;
  Leadership leadership_;
  PeriodicThread ticker_;
};

}  // namespace causeway::server
