// Reads a run directory for people and programs, without changing it.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "common/base/file_system.h"
#include "nlohmann/json.hpp"
#include "server/store/store.h"

namespace causeway::server {

// Reads a copy of the database, so it works while a coordinator owns the folder, too, and writes
// nothing into it (the copy is in the system's folder for temporary files). Everything small is
// verified; of blobs, that they are there with their sizes.
//
//   {"folder", "format_version", "in_use_by" (a pid; empty: nobody), "commits",
//    "run": {"run_id", "run_name", "config_hash", "plan_hash"},
//    "state": State (record.proto, as the next ones), without the certificates of invitations,
//    "fragments": [{"fragment", "version", "published_hash", "last_round" (null: none yet): Round,
//                   "waiting": [{"round", "worker_id", "bytes", "object_hash"}],
//                   "snapshots": [Snapshot with "file", "bytes"],
//                   "contributions", "deltas_kept", "delta_bytes", "answers_kept", "answer_bytes",
//                   "quarantined"}],
//    "members": [Member, its state in small letters],
//    "data": what ReportDraws makes of all contributions,
//    "bytes": {"database", "deltas", "answers", "snapshots"},
//   "orphans": [file]}          // The next start removes them; null, not known, while in use.
//
// `pause` is called between tries to copy a database that its owner is changing.
//
// NOT_FOUND if the folder holds no run; UNAVAILABLE if its owner changed it during every try;
// otherwise the errors of RunDirectoryStore::Recover.
absl::StatusOr<nlohmann::json> InspectRun(
    FileSystem& file_system, const std::string& folder,
    absl::FunctionRef<void(absl::Duration)> pause = absl::SleepFor);

// The same as lines for a terminal.
std::string InspectionText(const nlohmann::json& inspection);

// Who trained what, from the record of contributions.

// One entry for every part of the data that was drawn (a worker's own data are a part, too), sorted
// by data_slot, then worker:
//   {"data_slot" (-1: own data), "worker_id" (null: the part is shared),
//    "trained_by": [{"worker_id", "draws" (common/params/draws.h), "count"}],
//    "next_draw",   // Beyond the last one.
//    "skipped",     // Draws before it that no delta was trained on.
//    "repeated"}    // The most draws that any one fragment got more than once.
// Draws of several fragments count once, quarantined deltas as any other: they were trained, if in
// vain.
nlohmann::json ReportDraws(const std::vector<v1::Contribution>& contributions);

}  // namespace causeway::server
