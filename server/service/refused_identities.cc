#include "server/service/refused_identities.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/rpc/certificate.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

std::string Key(absl::string_view role, absl::string_view name) {
  return absl::StrCat(role, "/", name);
}

}  // namespace

absl::StatusOr<std::set<std::string>> ParseRefused(absl::string_view text,
                                                   const std::string& file) {
  std::set<std::string> refused;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    const bool is_role = words[0] == RoleName(Role::kWorker) ||
                         words[0] == RoleName(Role::kOperator) ||
                         words[0] == RoleName(Role::kObserver);
    if (words.size() != 2 || !is_role) {
      return absl::InvalidArgumentError(absl::StrCat(
          file, ", line ", number, ": expected a role and a name, such as \"worker site-a\""));
    }
    refused.insert(Key(words[0], words[1]));
  }
  return refused;
}

absl::StatusOr<std::unique_ptr<RefusedIdentities>> RefusedIdentities::Open(
    const std::string& file) {
  std::unique_ptr<RefusedIdentities> refused(new RefusedIdentities(file));
  absl::MutexLock lock(&refused->mutex_);
  RETURN_IF_ERROR(refused->Load());
  return refused;
}

absl::Status RefusedIdentities::Load() {
  // Before the file is read: what is written in between is read again.
  version_ = FileVersion::Of(file_);
  ASSIGN_OR_RETURN(const std::string text, ReadTrustedFile(file_, /*secret=*/false));
  ASSIGN_OR_RETURN(refused_, ParseRefused(text, file_));
  return absl::OkStatus();
}

absl::Status RefusedIdentities::Check(const Identity& identity) {
  absl::MutexLock lock(&mutex_);
  if (FileVersion::Of(file_) != version_) {
    readable_ = Load();
    if (readable_.ok()) {
      Log().info("{} has changed: {} identities are refused now", file_, refused_.size());
    } else {
      Log().error("{}; nobody is let in until it can be read", std::string(readable_.message()));
    }
  }
  if (!readable_.ok()) {
    return absl::UnauthenticatedError(
        "the coordinator cannot read its list of refused identities, and lets nobody in: tell its "
        "operator");
  }
  if (!refused_.contains(Key(RoleName(identity.role), identity.name))) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat(
      RoleName(identity.role), " ", identity.name,
      " is refused by the coordinator's operator (--refused_identities): ask for another name"));
}

}  // namespace causeway::server
