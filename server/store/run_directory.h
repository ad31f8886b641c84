// The files of a run directory, and what must be true of them before anything is changed.
//
//   LOCK              held by the owner; its process id
//   run.db            everything that is small (run_database.h); run.db-wal beside it while it is
//                     open and after a death
//   COMMITS           how many commits run.db had (CommitWitness)
//   deltas/, answers/, snapshots/    everything that is large (blob_folder.h)
//   config.textproto  the configuration, for people
//   rounds.jsonl      the rounds, for people (run_ledger.cc)
//   summary.json      what the run did
//   report.html       the status page when the coordinator stopped (views/status_page.h)
//   COPY              there while a follower owns the folder, and after its death
//   curves            of the status page (views/run_curves.h)
//
// docs/formats.md describes them byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "server/store/blob_folder.h"
#include "server/store/run_database.h"

namespace causeway::server {

inline constexpr char kDatabaseFile[] = "run.db";
inline constexpr char kDatabaseLogFile[] = "run.db-wal";
inline constexpr char kWitnessFile[] = "COMMITS";
inline constexpr char kConfigFile[] = "config.textproto";
inline constexpr char kRoundsFile[] = "rounds.jsonl";
inline constexpr char kSummaryFile[] = "summary.json";
inline constexpr char kReportFile[] = "report.html";
inline constexpr char kCurvesFile[] = "curves";
// A follower's folder: files of commits that it does not have yet are on their way, not lost.
inline constexpr char kCopyFile[] = "COPY";
// The parameters that were given, in the run's own plan. Without it, the seed makes them.
inline constexpr char kInitialFile[] = "initial.parameters";
// What rests beside memory (core/fragment_arrays.h), for the moment in which it has a name.
inline constexpr char kScratchFile[] = "scratch.tmp";
// Of former releases, which kept deltas in memory there.
inline constexpr char kDeltasInFile[] = "DELTAS_IN";

// FAILED_PRECONDITION if the folder holds a run in the layout of former versions or in a newer
// format, or one whose deltas a former version kept in memory; DATA_LOSS if its database is not
// recognizable. OK if it holds a run, or none.
absl::Status CheckRunFolder(FileSystem& file_system, const std::string& folder);

// As CheckRunFolder; NOT_FOUND if it holds none.
absl::Status CheckHoldsRun(FileSystem& file_system, const std::string& folder);

// DATA_LOSS if the folder has traces of a run, but not its database.
absl::Status CheckNoTraces(FileSystem& file_system, const std::string& folder);

// The word of the files beside the database.
struct FolderTraces {
  int64_t commits = 0;  // By the witness.
  std::vector<BlobFolder::Entry> blobs;
};
absl::StatusOr<FolderTraces> ReadTraces(FileSystem& file_system, const std::string& folder);

// DATA_LOSS if the database, which has `commits`, has lost some (by the witness and by the blobs'
// names), or if a blob that its rows name is missing or of another size. ABORTED if deltas are
// missing that may have been in memory: it is gone, and nothing else is wrong. Blobs that no row
// names are appended to `orphans`: what a crash left between a blob and its row, or between a row
// and the removal of a blob.
//
// `traces` must have been read before the database: then they cannot know of more than it, even if
// an owner goes on. `in_use`: one does, and may have removed blobs since, which are not missed
// then; and there are no orphans, as a row may follow.
absl::Status CheckBlobs(FileSystem& file_system, const std::string& folder,
                        const FolderTraces& traces, const RecoveredRun& run, int64_t commits,
                        bool in_use, std::vector<std::string>& orphans);

// Removes `orphans` and the files that this program was writing when it died: those of its own
// names with .tmp, never others and no folder.
absl::Status RemoveOrphans(FileSystem& file_system, const std::string& folder,
                           const std::vector<std::string>& orphans);

// Whether a path is on a file system on which the lock of a run directory may hold on one machine
// only.

// Names a type as statfs gives it (f_type): "NFS", say; empty for a file system of this machine, or
// one that is not known.
absl::string_view NetworkFileSystemName(int64_t type);
// Names that of an existing path; empty also where the system does not say.
absl::string_view NetworkFileSystemOf(const std::string& path);

}  // namespace causeway::server
