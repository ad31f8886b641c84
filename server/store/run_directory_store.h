// The store of a run directory: what was acknowledged outlives kill -9 and power loss.
//
//   ASSIGN_OR_RETURN(auto store, RunDirectoryStore::Open(*FileSystem::Real(), "runs/a", {}));
//   ASSIGN_OR_RETURN(std::optional<RecoveredRun> run, store->Recover());
//   if (!run) RETURN_IF_ERROR(store->BeginRun(identity));
//
// Everything small is a record in a database, everything large a file that a record names
// (run_directory.h). A contribution is: write the delta, sync it, rename it, sync its folder, then
// commit the record. What a crash leaves between two of these steps is removed by the next Recover.
//
// Kept are the last `snapshots_kept` snapshots of each fragment, the deltas of the rounds after
// the oldest of these (all, with `retain_deltas`), the answers that
// were not forgotten, and every record.
//
// An error other than RESOURCE_EXHAUSTED, ALREADY_EXISTS, INVALID_ARGUMENT and those of the Read
// methods is final: every later call returns it again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/record.pb.h"
#include "causeway/v1/standby.pb.h"
#include "common/base/file_system.h"
#include "server/store/blob_folder.h"
#include "server/store/run_database.h"
#include "server/store/sqlite_database.h"
#include "server/store/store.h"

namespace causeway::server {

// The small part of an open run directory: its records, and where it stands by them.
//
// It decides which deltas, snapshots and answers have become superfluous, and what a copy of the
// directory lacks (server/standby). A copy says at which commit it stands; the changes since then
// bring it to a later one, in one step. There is no log of changes: records carry the number of
// their commit, or the book below has it; deltas and answers go, per fragment, up to a round. So a
// copy is served alike after a moment and after a week away, and a slow one costs its original
// nothing. The digest of each commit proves that a copy has the same records.

// Lists what a copy lacks.
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

// Thread-safe. Large files are written outside the lock, so contributions of several workers
// overlap.
class RunDirectoryStore final : public Store {
 public:
  static constexpr uint64_t kLeastSpareBytes = uint64_t{16} << 20;
  // For a model whose largest fragment has that many parameters: kLeastSpareBytes for the database,
  // and in fp32 an answer and a snapshot (theta, published, up to two states of the optimizer).
  static uint64_t SpareBytesFor(uint64_t largest_fragment);

  struct Options {
    bool retain_deltas = false;
    int snapshots_kept = 2;  // Snapshots per fragment; at least 1.
    // False: nothing is synced. Still whole after kill -9, but not after a power loss.
    bool durable = true;
    // For reading what is there: Open gives NOT_FOUND unless the folder holds a run, and nothing of
    // it changes. Recover and the Read methods are all that is called then.
    bool read_only = false;
    // Left free on the disk when a contribution is accepted, for what must be written to go on
    // from there: rounds, snapshots and the database. SpareBytesFor says how much a model needs.
    uint64_t spare_bytes = kLeastSpareBytes;
    // Rounds of each fragment for which Recover tells of every contribution. For older ones whose
    // deltas are gone it tells of each worker's newest, which says where each part of the data
    // stands.
    int64_t recovered_rounds = 1024;
    // For tests: the SQLite VFS to use, which must see the same files as the file system, and when
    // the database's log is moved (RunDatabase::Options).
    std::string sqlite_vfs = {};
    int64_t log_pages = RunDatabase::Options().log_pages;
  };

  // Creates the folder, durably, and takes its lock (neither if it is only read).
  // ALREADY_EXISTS if another process owns it, FAILED_PRECONDITION to a reader or for a run of a
  // former layout or a newer format: nothing is written then. `file_system` outlives the store.
  static absl::StatusOr<std::unique_ptr<RunDirectoryStore>> Open(FileSystem& file_system,
                                                                 std::string folder,
                                                                 const Options& options);

  const std::string& folder() const { return folder_; }
  // Writes the blobs; outlives nothing but the store.
  FileSystem& file_system() { return file_system_; }
  // After Recover.
  BlobFolder& blobs() { return blobs_; }

  // Replaces Options::spare_bytes, once the model is known.
  void set_spare_bytes(uint64_t bytes) { spare_bytes_ = bytes; }

  // Lets whoever saves a contribution, a round, members or the run's state, and so all who are told
  // of it, wait until `wait` returns: it gets the number of commits, and its error is the save's
  // (a contribution's: CANCELLED). Called without a lock. Before the run is served.
  void set_before_telling(std::function<absl::Status(int64_t commits)> wait) {
    before_telling_ = std::move(wait);
  }

  // Frees the folder for another run, if this one never served anybody. The last call.
  absl::Status AbandonRun();

  // --- Copies of the run (RunLedger) ---
  // Where this one stands. Commit 0: no run has begun here.
  v1::CopyPosition Position();
  // Returns what a copy begins with. UNAVAILABLE before the run begins, as the next.
  absl::StatusOr<v1::RunIdentity> Identity();
  // As RunLedger::ChangesSince.
  absl::StatusOr<RunChanges> ChangesSince(const v1::CopyPosition& position);
  // Returns the number of commits once it is above `after`, or after so long.
  int64_t WaitForCommit(int64_t after, absl::Duration timeout);
  // After Recover: from now on this is a copy. Until the next Recover the folder may hold blobs of
  // commits that it does not have.
  absl::Status BeginCopy();
  // In a copy that has begun (BeginRun): becomes what the original was at commit `to` of the
  // changes, in one commit of its own. The blobs that the records name are there already, durable.
  // FAILED_PRECONDITION if the changes do not begin where this copy stands; DATA_LOSS if the
  // records do not make it that commit: then it is of another history.
  absl::Status Advance(const RunChanges& changes);

  absl::StatusOr<std::optional<RecoveredRun>> Recover() override;
  absl::Status BeginRun(const v1::RunIdentity& identity) override;
  absl::Status CheckRoom(uint64_t bytes) override { return CheckSpace(writing_ + bytes); }
  absl::Status SaveContribution(const v1::Contribution& record,
                                std::span<const uint8_t> object) override;
  absl::Status SaveRound(const v1::Round& record, std::span<const uint8_t> answer) override;
  absl::Status SaveSnapshot(const FragmentView& fragment) override;
  absl::Status DropSnapshot(int fragment, int64_t version) override;
  // The number of a commit that nothing else is done in.
  absl::StatusOr<int64_t> TakeOver() override;
  absl::Status SaveMembers(std::span<const v1::Member> members) override;
  absl::Status SaveRunState(const v1::State& state) override;
  absl::Status SaveSummary(const nlohmann::json& summary) override;
  // Becomes durable, and the files go, with the next commit.
  absl::Status ForgetAnswers(int fragment, int64_t before_round) override;
  absl::StatusOr<std::vector<uint8_t>> ReadContribution(int fragment, int64_t round,
                                                        const std::string& worker_id) override;
  absl::StatusOr<std::vector<uint8_t>> ReadAnswer(int fragment, int64_t round) override;
  absl::StatusOr<FragmentSnapshot> ReadSnapshot(int fragment, int64_t version) override;

 private:
  RunDirectoryStore(std::unique_ptr<FileSystem> own_file_system, FileSystem& file_system,
                    std::string folder, const Options& options, std::unique_ptr<FolderLock> lock);

  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }
  // RESOURCE_EXHAUSTED unless the contributions that are being written, of `bytes` in all, leave
  // the spare.
  absl::Status CheckSpace(uint64_t bytes);
  // OK if the run has begun and nothing failed. Gives the number of commits.
  absl::StatusOr<int64_t> Running();
  // Remembers an error that is final. Returns it.
  absl::Status Note(absl::Status status);
  absl::Status NoteLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::optional<RecoveredRun>> RecoverLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status BeginRunLocked(const v1::RunIdentity& identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The file that the one record of that round or version names which is `wanted`. NOT_FOUND, with
  // `what` in words, if there is none.
  template <typename Record, typename Read>
  auto ReadNamed(int fragment, int64_t number, absl::FunctionRef<bool(const Record&)> wanted,
                 Read read, const std::string& what) -> decltype(read(Record()));
  // Returns what whoever saved something gets.
  absl::Status Told(const absl::Status& saved);
  // As RunLedger::Commit; then removes the files that it freed. `blob`, if it was written for this
  // commit, goes when the commit was not made. `committed` is called under the lock when it was.
  absl::Status Commit(
      RunLedger::Edit edit, const v1::Blob* blob = nullptr,
      absl::FunctionRef<void()> committed = [] {}) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<FileSystem> own_file_system_;  // Null unless durable is false.
  FileSystem& file_system_;
  const std::string folder_;
  const Options options_;
  const RunDatabase::Options database_options_;
  std::atomic<uint64_t> spare_bytes_;
  const std::unique_ptr<FolderLock> lock_;
  BlobFolder blobs_;

  std::function<absl::Status(int64_t commits)> before_telling_;  // Null: nobody waits.
  std::atomic<uint64_t> writing_ = 0;                            // Bytes of contributions.

  absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool recovered_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<DatabaseCopy> copy_ ABSL_GUARDED_BY(mutex_);  // Null unless read_only.
  std::unique_ptr<RunLedger> ledger_ ABSL_GUARDED_BY(mutex_);   // Null: no run has begun.
};

}  // namespace causeway::server
