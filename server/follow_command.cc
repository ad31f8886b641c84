#include "server/follow_command.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/params/run_config.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"
#include "server/standby/follower.h"
#include "server/standby/run_copy.h"
#include "server/store/network_file_system.h"

namespace causeway::server {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(200);
constexpr absl::Duration kPause = absl::Seconds(1);
constexpr absl::Duration kProgressInterval = absl::Seconds(5);

// The machine's, in letters that a name may have.
std::string MachineName() {
  char host[65] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) return "standby";
  std::string name = host;
  std::erase_if(name, [](char c) {
    return !absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-';
  });
  return name.empty() ? "standby" : name;
}

}  // namespace

absl::Status FollowCommand(const FollowFlags& flags,
                           const std::function<bool(absl::Duration)>& stop_requested,
                           bool& refused) {
  refused = true;
  if (flags.run_dir.empty()) {
    return absl::InvalidArgumentError("give a folder for the copy: --run_dir=FOLDER");
  }
  if (flags.of.empty()) {
    return absl::InvalidArgumentError("give the coordinator to follow: --of=HOST:PORT");
  }
  RETURN_IF_ERROR(Annotate(CheckAddress(flags.of, /*allow_any_port=*/false), "--of"));
  const std::string name = flags.name.empty() ? MachineName() : flags.name;
  RETURN_IF_ERROR(CheckName("--standby_name", name));
  ASSIGN_OR_RETURN(const ChannelSecurity security,
                   MakeChannelSecurity(flags.security, flags.of, Clock::Real()->Now()));
  for (const std::string& warning : security.warnings) Log().warn("{}", warning);
  ASSIGN_OR_RETURN(const std::unique_ptr<RunDirectoryStore> store,
                   RunDirectoryStore::Open(*FileSystem::Real(), flags.run_dir, flags.store));
  if (const absl::string_view network = NetworkFileSystemOf(flags.run_dir); !network.empty()) {
    Log().warn("{} is on a network file system ({}): a copy belongs on another machine's disk",
               flags.run_dir, std::string(network));
  }
  RETURN_IF_ERROR(store->Recover().status());
  RETURN_IF_ERROR(store->BeginCopy());
  RunCopy copy(*store, name);
  Follower follower(copy, MakeChannel(flags.of, 0, security), flags.of, kPause);
  absl::Status result;
  std::atomic<bool> ended = false;
  ASSIGN_OR_RETURN(std::thread thread, StartThread([&] {
                     result = follower.Run();
                     ended = true;
                   }));
  int64_t shown = store->Position().commits;
  absl::Duration next_line = Clock::Real()->Monotonic() + kProgressInterval;
  while (!ended) {
    if (stop_requested(kPoll)) {
      Log().info("stopping on a signal");
      follower.Stop();
      break;
    }
    if (Clock::Real()->Monotonic() < next_line) continue;
    next_line = Clock::Real()->Monotonic() + kProgressInterval;
    const int64_t commits = store->Position().commits;
    if (commits != shown) Log().info("has commit {}", commits);
    shown = commits;
  }
  thread.join();
  refused = !follower.has_followed();
  if (result.ok()) {
    Log().info(
        "{} has commit {}; serve it in place of the coordinator only once that is gone: "
        "causeway-coordinator serve --run_dir={}",
        flags.run_dir, store->Position().commits, flags.run_dir);
  }
  return result;
}

}  // namespace causeway::server
