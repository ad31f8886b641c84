#include "server/follow_command.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"
#include "server/standby_rpc/following.h"

namespace causeway::server {
namespace {

constexpr absl::Duration kStopPoll = absl::Milliseconds(200);
constexpr absl::Duration kFollowingLineEvery = absl::Seconds(5);

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
  const auto start = [&] {
    return Following::Start(*FileSystem::Real(), flags.run_dir, flags.store, name, flags.of,
                            security);
  };
  absl::StatusOr<std::unique_ptr<Following>> following = start();
  if (absl::IsAborted(following.status())) {
    RETURN_IF_ERROR(
        PutAside(*FileSystem::Real(), flags.run_dir, "has lost deltas that were in memory"));
    following = start();
  }
  RETURN_IF_ERROR(following.status());
  int64_t shown = (*following)->commits();
  absl::Duration next_line = Clock::Real()->Monotonic() + kFollowingLineEvery;
  while (!(*following)->ended()) {
    if (stop_requested(kStopPoll)) {
      Log().info("stopping on a signal");
      break;
    }
    if (Clock::Real()->Monotonic() < next_line) continue;
    next_line = Clock::Real()->Monotonic() + kFollowingLineEvery;
    const int64_t commits = (*following)->commits();
    if (commits != shown) Log().info("has commit {}", commits);
    shown = commits;
  }
  const absl::Status result = (*following)->Stop();
  refused = !(*following)->has_followed();
  if (result.ok()) {
    (*following)->Rest();
    Log().info(
        "{} has commit {}; serve it in place of the coordinator only once that is gone: "
        "causeway-coordinator serve --run_dir={}",
        flags.run_dir, (*following)->commits(), flags.run_dir);
  }
  return result;
}

}  // namespace causeway::server
