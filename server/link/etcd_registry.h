// The registry in etcd: two keys of a run, one of them bound to the leader's lease.
//
//   /causeway/RUN/leader    "NAME ADDRESS", with the lease; its create revision is the token
//   /causeway/RUN/in_sync   "NAME,NAME", without one; its mod revision is that of the set
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "server/standby/leadership.h"

namespace causeway::server {

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

}  // namespace causeway::server
