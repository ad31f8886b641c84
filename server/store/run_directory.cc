#include "server/store/run_directory.h"

#include <sys/vfs.h>

#include "absl/strings/strip.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

// The layout before there was a database has this file.
constexpr char kFormerRunFile[] = "run.json";

std::string FormerRunId(FileSystem& file_system, const std::string& path) {
  const absl::StatusOr<std::string> text = file_system.ReadFile(path);
  if (!text.ok()) return "unreadable";
  const nlohmann::json run = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!run.is_object() || !run.contains("run_id") || !run["run_id"].is_string()) {
    return "unreadable";
  }
  return run["run_id"].get<std::string>();
}

// Includes SQLite's own files of an unfinished run.db.tmp.
bool IsOwnTemporary(absl::string_view name) {
  if (name == kScratchFile) return true;
  if (!absl::ConsumeSuffix(&name, ".tmp")) {
    return name == "run.db.tmp-wal" || name == "run.db.tmp-journal" || name == "run.db.tmp-shm";
  }
  return name == kDatabaseFile || name == kWitnessFile || name == kConfigFile ||
         name == kRoundsFile || name == kSummaryFile || name == kReportFile ||
         name == kCurvesFile || name == kInitialFile || name == kCopyFile || name == kDeltasInFile;
}

absl::Status LostCommits(const std::string& folder, int64_t commits, absl::string_view witness,
                         int64_t known) {
  return absl::DataLossError(absl::StrCat(
      JoinPath(folder, kDatabaseFile), " has lost commits: it ends with commit ", commits, ", but ",
      witness, " knows of ", known, " (", JoinPath(folder, kDatabaseLogFile),
      " is probably damaged or was removed); restore the run directory from a copy "
      "(docs/formats.md, Repair)"));
}

}  // namespace

absl::Status CheckRunFolder(FileSystem& file_system, const std::string& folder) {
  if (const absl::StatusOr<std::string> memory =
          file_system.ReadFile(JoinPath(folder, kDeltasInFile));
      !absl::IsNotFound(memory.status())) {
    RETURN_IF_ERROR(memory.status());
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " has ", kDeltasInFile,
                     ": a former release has kept deltas of this run in memory, in ",
                     absl::StripAsciiWhitespace(*memory),
                     ". End it in order with that release (serve, then SIGTERM), which brings all "
                     "of them to the "
                     "disk; or copy what is in the deltas of that folder into ",
                     JoinPath(folder, "deltas"), ", and remove ", kDeltasInFile));
  }
  const std::string database = JoinPath(folder, kDatabaseFile);
  if (file_system.Exists(database)) return CheckRunFormat(file_system, database);
  const std::string former = JoinPath(folder, kFormerRunFile);
  if (!file_system.Exists(former)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(folder, " holds the run ", FormerRunId(file_system, former),
                   " in the layout of a former version, which cannot be continued; choose another "
                   "folder or remove it"));
}

absl::Status CheckHoldsRun(FileSystem& file_system, const std::string& folder) {
  RETURN_IF_ERROR(CheckRunFolder(file_system, folder));
  if (file_system.Exists(JoinPath(folder, kDatabaseFile))) return absl::OkStatus();
  RETURN_IF_ERROR(CheckNoTraces(file_system, folder));
  return absl::NotFoundError(absl::StrCat(folder, " holds no run: there is no ", kDatabaseFile));
}

absl::Status CheckNoTraces(FileSystem& file_system, const std::string& folder) {
  ASSIGN_OR_RETURN(const FolderTraces traces, ReadTraces(file_system, folder));
  std::string trace = traces.commits > 0 ? kWitnessFile : "";
  for (const BlobFolder::Entry& blob : traces.blobs) {
    if (blob.commits >= 0 && !blob.temporary) trace = blob.file;
  }
  if (trace.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      JoinPath(folder, kDatabaseFile), " is missing, but ", JoinPath(folder, trace),
      " belongs to a run; restore the run directory from a copy (docs/formats.md, Repair), or "
      "choose another folder"));
}

absl::StatusOr<FolderTraces> ReadTraces(FileSystem& file_system, const std::string& folder) {
  FolderTraces traces;
  ASSIGN_OR_RETURN(traces.commits,
                   CommitWitness::Read(file_system, JoinPath(folder, kWitnessFile)));
  ASSIGN_OR_RETURN(traces.blobs, BlobFolder(file_system, folder).List());
  return traces;
}

absl::Status CheckBlobs(FileSystem& file_system, const std::string& folder,
                        const FolderTraces& traces, const RecoveredRun& run, int64_t commits,
                        bool in_use, std::vector<std::string>& orphans) {
  if (traces.commits > commits) {
    return LostCommits(folder, commits, kWitnessFile, traces.commits);
  }
  const bool is_copy = file_system.Exists(JoinPath(folder, kCopyFile));
  BlobFolder blobs(file_system, folder);
  std::set<std::string> named;
  const auto check = [&](const v1::Blob& blob) {
    if (blob.file().empty()) return absl::OkStatus();
    named.insert(blob.file());
    const absl::Status present = blobs.CheckPresent(blob);
    if (in_use && !file_system.Exists(blobs.Path(blob.file()))) return absl::OkStatus();
    return present;
  };
  // Without these the run may go on all the same: answers are fetched as states, and a snapshot
  // follows from the one before it. Whoever needs one that is damaged says so by its name.
  const auto note = [&](const v1::Blob& blob) {
    const absl::Status present = check(blob);
    if (!present.ok()) Log().error("{}", std::string(present.message()));
  };
  std::map<int, int64_t> newest;
  for (const v1::Snapshot& snapshot : run.snapshots) {
    note(snapshot.state());
    int64_t& version = newest[snapshot.fragment()];
    version = std::max(version, snapshot.version());
  }
  for (const v1::Round& round : run.rounds) note(round.answer());
  for (const v1::Contribution& contribution : run.contributions) {
    if (contribution.header().round() > newest[contribution.header().fragment()]) {
      RETURN_IF_ERROR(check(contribution.delta()));
    } else {
      note(contribution.delta());
    }
  }
  for (const BlobFolder::Entry& entry : traces.blobs) {
    if (entry.commits < 0 || entry.temporary || named.count(entry.file) != 0) continue;
    if (entry.commits > commits && !is_copy) {
      return LostCommits(folder, commits, entry.file, entry.commits);
    }
    if (!in_use) orphans.push_back(entry.file);
  }
  return absl::OkStatus();
}

absl::Status RemoveOrphans(FileSystem& file_system, const std::string& folder,
                           const std::vector<std::string>& orphans) {
  BlobFolder blobs(file_system, folder);
  for (const std::string& orphan : orphans) RETURN_IF_ERROR(blobs.RemoveFile(orphan));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(folder));
  for (const std::string& name : names) {
    const std::string path = JoinPath(folder, name);
    if (!IsOwnTemporary(name) || file_system.IsFolder(path)) continue;
    RETURN_IF_ERROR(file_system.Remove(path));
  }
  ASSIGN_OR_RETURN(const std::vector<BlobFolder::Entry> entries, blobs.List());
  for (const BlobFolder::Entry& entry : entries) {
    if (entry.temporary) RETURN_IF_ERROR(blobs.RemoveFile(entry.file));
  }
  return absl::OkStatus();
}

absl::string_view NetworkFileSystemName(int64_t type) {
  // As 32 bits: some systems extend the sign. The numbers of linux/magic.h, and of those that are
  // no part of Linux.
  switch (static_cast<uint32_t>(type)) {
    case 0x6969:
      return "NFS";
    case 0x517B:
    case 0xFE534D42:
    case 0xFF534D42:
      return "SMB";
    case 0x00C36400:
      return "Ceph";
    case 0x5346414F:
    case 0x6B414653:
      return "AFS";
    case 0x01021997:
      return "9P";
    case 0x0BD00BD0:
      return "Lustre";
    case 0x47504653:
      return "GPFS";
    case 0x19830326:
      return "BeeGFS";
    case 0x7461636F:
      return "OCFS2";
    case 0x01161970:
      return "GFS2";
    default:
      return "";
  }
}

absl::string_view NetworkFileSystemOf(const std::string& path) {
  struct statfs facts {};
  return statfs(path.c_str(), &facts) == 0 ? NetworkFileSystemName(facts.f_type) : "";
}

}  // namespace causeway::server
