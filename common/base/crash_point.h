// A hook for fault tests: places at which a program kills itself when it was told to.
//
//   CAUSEWAY_CRASH_AT=after_row_commit:3 causeway-coordinator serve ...
//
// sends SIGKILL to itself when it passes that point for the third time (without ":3": the first).
// Nothing is flushed or cleaned up, as if the process had been killed there from outside. Without
// the variable a crash point does nothing. A name or count that means nothing ends the program at
// its first crash point, so that a misspelt test cannot pass.
#pragma once

#include "absl/strings/string_view.h"

namespace causeway {

inline constexpr char kCrashVariable[] = "CAUSEWAY_CRASH_AT";

// Every crash point, for tools that go through all of them.
inline constexpr const char* kCrashPoints[] = {
    "after_database_rename",  // A run's database is there; nobody was told of the run.
    "during_array_file",      // All but the checksum of a blob or a checkpoint is written.
    "before_blob_sync",       // A blob is a delta, an answer or a snapshot.
    "after_blob_sync",
    "after_blob_rename",    // Before the folder is synced.
    "before_row_commit",    // A blob that the commit names is durable.
    "after_row_commit",     // Before anybody is told.
    "before_round_row",     // Between a round's answer and its row.
    "before_snapshot_row",  // Between a snapshot and its row.
    "before_removal",       // Before each file that a commit freed is removed.
    "during_recovery",      // The database is verified; orphans are not removed yet.
};

// `name` is one of kCrashPoints, which is all that tools may ask for.
void CrashPoint(absl::string_view name);

}  // namespace causeway
