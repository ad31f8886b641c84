#include "server/standby_rpc/following.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"
#include "server/standby/delta_places.h"
#include "server/store/blob_folder.h"
#include "server/store/memory_owner.h"
#include "server/store/network_file_system.h"
#include "server/store/run_database.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

constexpr absl::Duration kPause = absl::Seconds(1);
constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);

}  // namespace

std::string MachineName() {
  char host[65] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) return "standby";
  std::string name = host;
  std::erase_if(name, [](char c) {
    return !absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-';
  });
  return name.empty() ? "standby" : name;
}

absl::Status PutAside(FileSystem& file_system, absl::string_view given, absl::string_view why) {
  const std::string folder(absl::StripSuffix(given, "/"));
  std::string aside;
  for (int i = 1; aside.empty() || file_system.Exists(aside); ++i) {
    aside = absl::StrCat(folder, ".former-", i);
  }
  RETURN_IF_ERROR(file_system.Rename(folder, aside));
  RETURN_IF_ERROR(file_system.SyncFolder(ParentFolder(folder)));
  Log().warn("{} {}: it is {} now, and a new copy begins", folder, std::string(why), aside);
  // Not before: a folder that has lost deltas must be known for one as long as it is there.
  BlobFolder blobs(file_system, aside);
  RETURN_IF_ERROR(blobs.FindMemory());
  RETURN_IF_ERROR(blobs.DropMemory());
  return absl::OkStatus();
}

void FreeMemoryOfFormer(FileSystem& file_system, absl::string_view given) {
  const std::string folder(absl::StripSuffix(given, "/"));
  const std::string formers = absl::StrCat(folder.substr(folder.rfind('/') + 1), ".former-");
  const absl::StatusOr<std::vector<std::string>> names = file_system.List(ParentFolder(folder));
  if (!names.ok()) return;  // There is no folder yet, either.
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, formers)) continue;
    const std::string aside = JoinPath(ParentFolder(folder), name);
    BlobFolder blobs(file_system, aside);
    absl::Status freed = blobs.FindMemory();
    if (blobs.memory().empty()) continue;
    // One that somebody has served by hand since is named by its own name.
    const std::string owner = OwnerOfMemory(file_system, blobs.memory());
    if (!owner.empty() && owner != TrueName(folder)) continue;
    if (freed.ok()) freed = blobs.DropMemory();
    if (!freed.ok()) Log().warn("the memory of {}: {}", aside, std::string(freed.message()));
  }
}

absl::Status CheckLeaderAnswers(const std::string& folder, const std::string& name,
                                const std::string& address, const ChannelSecurity& security) {
  ASSIGN_OR_RETURN(const std::string run_id,
                   AskForRun(MakeChannel(address, 0, security), name, kAnswerTimeout));
  ASSIGN_OR_RETURN(const auto database, RunDatabase::Open(JoinPath(folder, kDatabaseFile), {}));
  ASSIGN_OR_RETURN(const DatabaseContent content, database->Load(/*recent_rounds=*/1));
  if (content.identity.run_id == run_id) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      folder, " holds run ", content.identity.run_id, ", and the coordinator at ", address,
      " serves run ", run_id, ": give the folder of that run, or an empty one"));
}

Following::Following(std::unique_ptr<RunDirectoryStore> store, const std::string& name,
                     const std::string& address, const ChannelSecurity& security,
                     StandbyNotes& notes)
    : store_(std::move(store)),
      copy_(*store_, name),
      follower_(copy_, notes, security, address, kPause) {}

absl::StatusOr<std::unique_ptr<Following>> Following::Start(
    FileSystem& file_system, const std::string& folder, const RunDirectoryStore::Options& options,
    const std::string& name, const std::string& address, const ChannelSecurity& security,
    StandbyNotes& notes) {
  ASSIGN_OR_RETURN(std::unique_ptr<RunDirectoryStore> store,
                   RunDirectoryStore::Open(file_system, folder, options));
  if (const absl::string_view network = NetworkFileSystemOf(folder); !network.empty()) {
    Log().warn("{} is on a network file system ({}): a copy belongs on another machine's disk",
               folder, std::string(network));
  }
  RETURN_IF_ERROR(store->Recover().status());
  RETURN_IF_ERROR(store->BeginCopy());
  store->blobs().set_new_in_memory(true);
  std::unique_ptr<Following> following(
      new Following(std::move(store), name, address, security, notes));
  ASSIGN_OR_RETURN(following->thread_, StartThread([own = following.get()] {
                     own->result_ = own->follower_.Run();
                     own->ended_ = true;
                   }));
  return following;
}

absl::Status Following::Stop() {
  follower_.Stop();
  if (thread_.joinable()) thread_.join();
  return result_;
}

void Following::Rest() { BringToDisk(store_->blobs()); }

}  // namespace causeway::server
