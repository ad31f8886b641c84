#include "server/link/leading.h"

#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "common/base/text.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"
#include "server/link/copy_link.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

constexpr char kIdFile[] = "STANDBY";       // The folder's number in the set.
constexpr char kClusterFile[] = "CLUSTER";  // The etcd cluster that it was led by.
constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kTry = absl::Milliseconds(100);
// So long without a first answer from etcd, ever, are an error.
constexpr absl::Duration kFirstAnswer = absl::Seconds(10);

absl::StatusOr<std::unique_ptr<Registry>> OpenEtcd(const Leading::Options& options,
                                                   absl::Duration timeout) {
  ASSIGN_OR_RETURN(const std::vector<std::string> list, SplitAddresses(options.etcd));
  std::vector<std::shared_ptr<RenewedChannels>> members;
  for (const std::string& address : list) {
    members.push_back(std::make_shared<RenewedChannels>(address, options.etcd_security));
  }
  return MakeEtcdRegistry(std::move(members), options.run, timeout, options.etcd_user);
}

// The content of a small file, which is made with what `make` gives where it is missing.
absl::StatusOr<std::string> ReadOrWrite(FileSystem& file_system, const std::string& path,
                                        const std::function<std::string()>& make) {
  absl::StatusOr<std::string> content = file_system.ReadFile(path);
  if (!absl::IsNotFound(content.status())) return content;
  content = make();
  RETURN_IF_ERROR(WriteFileAtomically(file_system, path, absl::string_view(*content)));
  return content;
}

// Names a copy in the set: the machine, and the folder's number. A folder that was made anew is
// another copy, whatever machine it is on.
absl::StatusOr<std::string> CopyName(FileSystem& file_system, const std::string& folder,
                                     const std::string& name) {
  const std::string path = JoinPath(folder, kIdFile);
  RETURN_IF_ERROR(file_system.CreateFolders(folder));
  ASSIGN_OR_RETURN(const std::string id, ReadOrWrite(file_system, path, RandomSuffix));
  std::string copy = absl::StrCat(name.empty() ? MachineName() : name, "-", id);
  RETURN_IF_ERROR(Annotate(CheckName("a copy", copy), path));
  return copy;
}

absl::Status CheckCluster(const Leading::Options& options, const std::string& cluster) {
  const std::string path = JoinPath(options.folder, kClusterFile);
  ASSIGN_OR_RETURN(const std::string own,
                   ReadOrWrite(*options.file_system, path, [&] { return cluster; }));
  if (own == cluster) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("etcd at ", options.etcd, " is cluster ", cluster, ", the run in ",
                   options.folder, " was led by cluster ", own,
                   ": check --etcd; if the cluster was made anew, and no "
                   "coordinator of this run serves, remove ",
                   path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Leading>> Leading::StandBy(
    const Options& options, Standbys& standbys,
    const std::function<bool(absl::Duration)>& stop_requested, bool& refused) {
  refused = true;
  RETURN_IF_ERROR(CheckRunFolder(*options.file_system, options.folder));
  for (;;) {
    ASSIGN_OR_RETURN(const std::string name,
                     CopyName(*options.file_system, options.folder, options.name));
    Leadership::Options own = {
        .name = name, .address = options.address, .clock = Clock::Real(), .events = options.events};
    ASSIGN_OR_RETURN(std::unique_ptr<Registry> registry, OpenEtcd(options, own.ttl / 6));
    std::unique_ptr<Leading> leading(new Leading(std::move(registry), standbys, own));
    const absl::Status led = leading->Wait(options, name, stop_requested, refused);
    if (absl::IsAborted(led)) {
      RETURN_IF_ERROR(PutAside(*options.file_system, options.folder, led.message()));
      continue;
    }
    RETURN_IF_ERROR(led);
    RETURN_IF_ERROR(leading->ticker_.Start(kTick, [&leadership = leading->leadership_] {
      leadership.Tick();
      return kTick;
    }));
    Log().info("{} leads run {}", name, options.run);
    return leading;
  }
}

// OK: it leads. ABORTED: the folder is of no use, and is to be put aside.
absl::Status Leading::Wait(const Options& options, const std::string& name,
                           const std::function<bool(absl::Duration)>& stop_requested,
                           bool& refused) {
  std::unique_ptr<CopyLink> following;
  std::string address;  // Whom it follows.
  std::string said;
  const auto say = [&](const std::string& line) {
    if (said != line) Log().info("{}", line);
    said = line;
    if (following == nullptr) options.notes->Doing(line);
  };
  // A folder that etcd has led waits for it: it may be away as this machine starts again.
  const absl::Duration give_up = options.file_system->Exists(JoinPath(options.folder, kClusterFile))
                                     ? absl::InfiniteDuration()
                                     : Clock::Real()->Monotonic() + kFirstAnswer;
  bool answered = false;
  do {
    const absl::StatusOr<RegistryView> view = registry_->Read();
    if (!view.ok()) {
      // Who was let in once waits on, as for a leader: a user may be given another password.
      if (!answered && !absl::IsUnavailable(view.status())) return view.status();
      if (!answered && Clock::Real()->Monotonic() > give_up) {
        return absl::UnavailableError(
            absl::StrCat("no answer from etcd at ", options.etcd, ": ", view.status().message(),
                         "; check --etcd, and that a majority of its members runs"));
      }
      say(absl::StrCat(view.status().message(), "; trying on"));
      continue;
    }
    if (!answered) RETURN_IF_ERROR(CheckCluster(options, view->cluster));
    answered = true;
    options.notes->Set(&StandbyNotes::View::in_sync, view->in_sync.contains(name));
    if (!view->leader.empty() && view->leader != name) {
      if (following != nullptr && following->ended()) {
        const absl::Status why = following->Stop();
        following = nullptr;
        const bool other_history = absl::IsOutOfRange(why) || absl::IsDataLoss(why);
        if (other_history && !view->in_sync.contains(name)) {
          // It died leading: whatever was told is in the set, which this folder is not in.
          return absl::AbortedError("had commits that nobody was told of");
        }
        RETURN_IF_ERROR(why);
      }
      if (following == nullptr || address != view->address) {
        following = nullptr;
        address = view->address;
        ASSIGN_OR_RETURN(following,
                         CopyLink::Start(*options.file_system, options.folder, options.store, name,
                                         address, options.security, *options.notes));
        refused = false;
        say(absl::StrCat(view->leader, " at ", address, " leads: ", name, " follows it"));
      }
      continue;
    }
    // Whatever comes from a former leader any more would be of no use.
    following = nullptr;
    if (!view->in_sync.empty() && !view->in_sync.contains(name)) {
      say(absl::StrCat("nobody leads, and ", name, " may lack what workers were told: only ",
                       absl::StrJoin(view->in_sync, ", "),
                       " may lead. Start one of them; until then it waits"));
      continue;
    }
    const absl::Status taken = leadership_.Take();
    if (taken.ok()) {
      options.notes->SetLeads();
      return absl::OkStatus();
    }
    say(absl::StrCat(taken.message(), "; trying on"));
  } while (!stop_requested(kTry));
  return absl::CancelledError("stopped before it led");
}

Leading::~Leading() {
  ticker_.Stop();
  registry_->Resign();
}

}  // namespace causeway::server
