#include "server/store_flags.h"

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file_system.h"
#include "common/base/nonce.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "server/store/network_file_system.h"

ABSL_FLAG(std::string, durability, "full",
          "full|none|replicated: what is acknowledged outlives a power loss; none: kill -9 only; "
          "replicated: the loss of the machine, as a standby has it, too");
ABSL_FLAG(bool, retain_deltas, false, "keeps every delta, for replay");
ABSL_FLAG(std::string, deltas_in, "",
          "FOLDER: with a standby (replicated, --etcd, follow): deltas are kept in this folder in "
          "memory, as /dev/shm/causeway, in place of the disk");
ABSL_FLAG(bool, back_to_snapshots, false,
          "goes back to what is there if every machine has lost deltas that were in memory");

namespace causeway::server {
namespace {

// A folder of this run directory's own in --deltas_in.
absl::StatusOr<std::string> DeltaFolder(const std::string& run_dir) {
  const std::string parent(absl::StripSuffix(absl::GetFlag(FLAGS_deltas_in), "/"));
  if (parent.empty()) return parent;
  if (parent.front() != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("--deltas_in must be an absolute path, as /dev/shm/causeway; it is ", parent));
  }
  RETURN_IF_ERROR(Annotate(FileSystem::Real()->CreateFolders(parent), "--deltas_in"));
  if (!IsInMemory(parent)) {
    Log().warn("--deltas_in={} is not in memory (tmpfs): deltas wear that disk then", parent);
  }
  const std::string folder(absl::StripSuffix(run_dir, "/"));
  return JoinPath(parent, absl::StrCat(folder.substr(folder.rfind('/') + 1), "-", RandomSuffix()));
}

}  // namespace

bool IsReplicatedByFlag() { return absl::GetFlag(FLAGS_durability) == "replicated"; }

absl::StatusOr<RunDirectoryStore::Options> StoreOptionsFromFlags(const std::string& run_dir,
                                                                 bool shared, bool follows) {
  RunDirectoryStore::Options options;
  options.retain_deltas = absl::GetFlag(FLAGS_retain_deltas);
  options.back_to_snapshots = absl::GetFlag(FLAGS_back_to_snapshots);
  options.durable = absl::GetFlag(FLAGS_durability) != "none";
  if (options.back_to_snapshots && (shared || follows)) {
    return absl::InvalidArgumentError(
        "--back_to_snapshots is for `serve` without --etcd: one folder is chosen by hand, and the "
        "others follow it anew");
  }
  if (!absl::GetFlag(FLAGS_deltas_in).empty()) {
    if (!shared && !follows && !IsReplicatedByFlag()) {
      return absl::InvalidArgumentError(
          "--deltas_in needs a standby that has the deltas, too: --durability=replicated or "
          "--etcd");
    }
    if (options.retain_deltas) {
      return absl::InvalidArgumentError(
          "--deltas_in and --retain_deltas: deltas that are kept for ever belong on the disk");
    }
  }
  ASSIGN_OR_RETURN(options.deltas_in, DeltaFolder(run_dir));
  return options;
}

}  // namespace causeway::server
