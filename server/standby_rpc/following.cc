#include "server/standby_rpc/following.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"
#include "server/store/network_file_system.h"

namespace causeway::server {
namespace {

constexpr absl::Duration kPause = absl::Seconds(1);

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
  return absl::OkStatus();
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

}  // namespace causeway::server
