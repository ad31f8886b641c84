#include "server/store/run_parts.h"

#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/store/memory_owner.h"
#include "server/store/run_directory.h"

namespace causeway::server {

absl::StatusOr<std::vector<std::string>> RunFolders(FileSystem& file_system,
                                                    const std::string& list) {
  if (file_system.IsFolder(list)) return std::vector<std::string>{list};
  std::vector<std::string> folders = absl::StrSplit(list, ',');
  std::map<std::string, std::string> seen;
  for (const std::string& folder : folders) {
    if (folder.empty() && folders.size() > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--run_dir=", list, " has an empty name: give the folders with one comma between two"));
    }
    const auto [former, is_new] = seen.emplace(TrueName(folder), folder);
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--run_dir has ", folder, " twice",
        former->second == folder ? "" : absl::StrCat(", as ", former->second, " first"),
        ": give the folder of each coordinator once"));
  }
  return folders;
}

std::vector<int> FragmentsOf(const RunIdentity& identity) {
  std::vector<int> held;
  for (size_t i = 0; i < identity.initial_hashes.size(); ++i) {
    if (identity.initial_hashes[i] != 0) held.push_back(static_cast<int>(i));
  }
  return held;
}

absl::StatusOr<size_t> CheckWholeRun(FileSystem& file_system, std::span<const RunPart> parts) {
  const RunPart& first = parts.front();
  std::map<int, std::string> owners;
  std::optional<size_t> lead;
  std::vector<std::string> folders;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [folder, identity] = parts[i];
    folders.push_back(folder);
    if (identity->run_id != first.identity->run_id ||
        identity->config_hash != first.identity->config_hash ||
        identity->plan_hash != first.identity->plan_hash) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, " holds run ", identity->run_id, ", ", first.folder, " holds ",
                       first.identity->run_id, ": give the folders of one run"));
    }
    for (const int fragment : FragmentsOf(*identity)) {
      const auto [owner, is_new] = owners.emplace(fragment, folder);
      if (is_new) continue;
      return absl::InvalidArgumentError(absl::StrCat("fragment ", fragment, " is in ",
                                                     owner->second, " and in ", folder,
                                                     ": give the folder of each coordinator once"));
    }
    if (!file_system.Exists(JoinPath(folder, kDealFile))) continue;
    if (lead.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(parts[*lead].folder, " and ", folder,
                                                     " are both a lead's (", kDealFile,
                                                     "): give the folder of each coordinator "
                                                     "once"));
    }
    lead = i;
  }
  if (!lead.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("none of ", absl::StrJoin(folders, ", "),
                                                   " is the lead's, which has ", kDealFile,
                                                   ": give that one, too"));
  }
  std::vector<int> missing;
  for (int i = 0; i < std::ssize(first.identity->initial_hashes); ++i) {
    if (!owners.contains(i)) missing.push_back(i);
  }
  if (missing.empty()) return *lead;
  return absl::InvalidArgumentError(absl::StrCat(
      "fragments ", absl::StrJoin(missing, ","), " of run ", first.identity->run_id,
      " are in none of ", absl::StrJoin(folders, ", "), ": give the folders of all shards; ",
      JoinPath(parts[*lead].folder, kDealFile), " says who has which"));
}

}  // namespace causeway::server
