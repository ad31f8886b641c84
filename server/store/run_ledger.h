// The small part of an open run directory: its records, and where it stands by them.
//
// It decides which deltas, snapshots and answers have become superfluous, and what a copy of the
// directory lacks (server/standby). A copy says at which commit it stands; the changes since then
// bring it to a later one, in one step. There is no log of changes: records carry the number of
// their commit, or the book below has it; deltas and answers go, per fragment, up to a round. So a
// copy is served alike after a moment and after a week away, and a slow one costs its original
// nothing. The digest of each commit proves that a copy has the same records.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "causeway/v1/record.pb.h"
#include "causeway/v1/standby.pb.h"
#include "common/base/file_system.h"
#include "server/store/run_database.h"
#include "server/store/sqlite_database.h"
#include "server/store/store.h"

namespace causeway::server {

// What a copy lacks.
struct RunChanges {
  v1::CopyAdvance advance;
  // New, or in place of others, byte for byte as they lie in the database.
  std::vector<v1::Record> records;
  std::vector<v1::Blob> blobs;  // Files that new records name.

  bool empty() const { return advance.from() == advance.to(); }
};

// Not thread-safe.
class RunLedger {
 public:
  // Puts files that are not needed any more, once the commit is durable, where they are removed.
  using Freed = std::vector<v1::Blob>;
  using Edit = absl::FunctionRef<absl::Status(DatabaseEdit&, Freed&)>;

  // `run` is what the database has loaded. `snapshots_kept`, `retain_deltas`:
  // RunDirectoryStore::Options.
  RunLedger(std::unique_ptr<RunDatabase> database, const RecoveredRun& run, int snapshots_kept,
            bool retain_deltas);

  RunDatabase& database() { return *database_; }
  const v1::RunIdentity& identity() const { return identity_; }
  v1::CopyPosition Position() const;

  // Comes before the first change: opens the witness of commits, and the rounds for people.
  absl::Status AllowChanges(FileSystem& file_system, const std::string& folder,
                            const std::vector<v1::Round>& rounds);
  // `edit` and the answers to be forgotten, in one commit; `freed` is empty before. Errors of
  // RunDatabase::Commit.
  absl::Status Commit(Edit edit, Freed& freed);
  // Within an edit: drops snapshots and deltas of the fragment that have become superfluous.
  absl::Status Retain(int fragment, DatabaseEdit& edit, Freed& freed);
  // The last round that was saved; 0: none was.
  int64_t last_round(int fragment) const;
  // A commit has saved it.
  void NoteRound(const v1::Round& round);
  // Answers before that round go with the next commit, and are not to be read any more.
  void Forget(int fragment, int64_t before_round);
  bool forgotten(int fragment, int64_t round) const;

  // Returns what a copy at `position`, which has begun, lacks: all of it, as of one commit.
  // FAILED_PRECONDITION: it is of another run; OUT_OF_RANGE: it has records that are not here.
  absl::StatusOr<RunChanges> ChangesSince(const v1::CopyPosition& position);
  // Becomes what the original was at its commit `to`. `check` sees every file that a record names.
  // Errors as RunDirectoryStore::Advance.
  absl::Status Advance(const RunChanges& changes,
                       absl::FunctionRef<absl::Status(const v1::Blob&)> check, Freed& freed);

 private:
  // By fragment: rounds.
  using Rounds = std::map<int, int64_t>;

  // Those that are `wanted`, of the range.
  template <typename Record>
  absl::Status AddRecords(const KeyRange& range, absl::FunctionRef<bool(const Record&)> wanted,
                          RunChanges& changes);
  absl::Status AddFragment(int fragment, int64_t last_round, RunChanges& changes);
  absl::Status Apply(const RunChanges& changes,
                     absl::FunctionRef<absl::Status(const v1::Blob&)> check, DatabaseEdit& edit,
                     Freed& freed, std::vector<v1::Round>& rounds);
  // Notes in the book what a commit has changed.
  void NoteChanged(const std::vector<std::string>& keys);
  // True if it may have changed after that commit.
  bool ChangedSince(const std::string& what, int64_t commit) const;

  const std::unique_ptr<RunDatabase> database_;
  const v1::RunIdentity identity_;
  const int snapshots_kept_;
  const bool retain_deltas_;
  std::unique_ptr<CommitWitness> witness_;
  std::unique_ptr<WritableFile> round_log_;  // rounds.jsonl; null after a failure.
  // By fragment: the last round; up to which round deltas are gone, and will be with this commit;
  // before which round answers were asked to be forgotten, and are.
  Rounds last_round_;
  Rounds deltas_gone_;
  Rounds deltas_going_;
  Rounds forget_before_;
  Rounds forgotten_before_;
  // The book: the last commit that changed a thing. Of changes up to `known_from_` it knows
  // nothing.
  std::map<std::string, int64_t> changed_;
  int64_t known_from_ = 0;
};

}  // namespace causeway::server
