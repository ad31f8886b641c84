#include <functional>

#include <memory>
#include <optional>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/client/reach.h"
#include "common/params/run_config.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"
#include "server/commands.h"
#include "server/link/copy_link.h"
#include "server/opened_run.h"
#include "server/run_views.h"
#include "server/standby/standby_notes.h"
#include "server/views/status_page.h"

ABSL_FLAG(std::string, of, "", "HOST:PORT: the coordinator to follow");
ABSL_FLAG(
    std::string, standby_name, "",
    "NAME: who follows, for people (serve --etcd: this coordinator); else the machine's name");

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
  const std::string of = absl::GetFlag(FLAGS_of);
  if (of.empty()) {
    return absl::InvalidArgumentError("give the coordinator to follow: --of=HOST:PORT");
  }
  RETURN_IF_ERROR(Annotate(CheckAddress(of, /*allow_any_port=*/false), "--of"));
  std::string name = absl::GetFlag(FLAGS_standby_name);
  if (name.empty()) name = MachineName();
  RETURN_IF_ERROR(CheckName("--standby_name", name));
  ASSIGN_OR_RETURN(const ChannelSecurity security,
                   MakeChannelSecurity(flags.security, of, Clock::Real()->Now()));
  LogSecurity(security);
  ASSIGN_OR_RETURN(std::optional<HttpListener> port,
                   OpenHttpPort(flags.http, flags.security.UsesTls()));
  StandbyNotes notes;
  notes.Doing(absl::StrCat("asks ", of, " for the run"));
  ASSIGN_OR_RETURN(const auto http,
                   ServeStandbyHttp(std::move(port), flags.http_address_file, notes, flags.run_dir,
                                    {{"tls_cert", flags.security.cert_file}}));
  ASSIGN_OR_RETURN(const std::unique_ptr<CopyLink> following,
                   CopyLink::Start(*FileSystem::Real(), flags.run_dir, StoreOptionsFromFlags(),
                                   name, of, security, notes));
  int64_t shown = following->commits();
  absl::Duration next_line = Clock::Real()->Monotonic() + kFollowingLineEvery;
  while (!following->ended()) {
    if (stop_requested(kStopPoll)) {
      Log().info("stopping on a signal");
      break;
    }
    if (Clock::Real()->Monotonic() < next_line) continue;
    next_line = Clock::Real()->Monotonic() + kFollowingLineEvery;
    const int64_t commits = following->commits();
    if (commits != shown) Log().info("has commit {}", commits);
    shown = commits;
  }
  const absl::Status result = following->Stop();
  refused = !following->has_followed();
  if (result.ok()) {
    Log().info(
        "{} has commit {}; serve it in place of the coordinator only once that is gone: "
        "causeway-coordinator serve --run_dir={}",
        flags.run_dir, following->commits(), flags.run_dir);
  }
  return result;
}

}  // namespace causeway::server
