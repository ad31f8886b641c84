// The database of a run directory, run.db: everything that is small.
//
// SQLite in WAL mode with synchronous=FULL, held exclusively. Each commit is durable when it
// returns. The file is created as a whole (written beside, synced, renamed), so a run.db without
// its tables was damaged, not interrupted.
#ifndef CAUSEWAY_SERVER_STORE_RUN_DATABASE_H_
#define CAUSEWAY_SERVER_STORE_RUN_DATABASE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "server/store/run_tables.h"
#include "server/store/sqlite_database.h"
#include "server/store/store.h"

namespace causeway::server {

inline constexpr int64_t kRunFormatVersion = 1;           // PRAGMA user_version
inline constexpr int64_t kRunApplicationId = 0x43574159;  // "CWAY": PRAGMA application_id

// Checks a file that is to be opened: FAILED_PRECONDITION if its format is another program's, which
// it names; DATA_LOSS, with the offset, if it is no database of a run. Reads the first 100 bytes:
// programs write a newer version there before they write anything else of it.
absl::Status CheckRunFormat(FileSystem& file_system, const std::string& path);

// True if a commit that ended with this error left everything as it was.
bool ChangedNothing(const absl::Status& status);

struct DatabaseContent {
  RunIdentity identity;
  RunState state;
  std::vector<MemberRecord> members;              // By id.
  std::vector<StoredRound> rounds;                // By fragment, then round.
  std::vector<StoredContribution> contributions;  // By fragment, round, worker id.
  std::vector<StoredSnapshot> snapshots;          // By fragment, then version.
};

// The changes of one commit. Used only within RunDatabase::Commit.
class DatabaseEdit {
 public:
  // This commit's number.
  int64_t number() const { return number_; }
  // ALREADY_EXISTS if there is a row with this key.
  template <typename Row>
  absl::Status Insert(const Row& row) {
    return Write(row, /*replace=*/false);
  }
  // Replaces the row of this key, if there is one.
  template <typename Row>
  absl::Status Put(const Row& row) {
    return Write(row, /*replace=*/true);
  }
  // Replaces as Put does, by a row that came from another database; `row` is what it unpacks to.
  template <typename Row>
  absl::Status PutPacked(const Row& row, absl::string_view packed);
  template <typename Row>
  absl::Status Remove(const Row& row);
  // As ReadRows.
  template <typename Row>
  absl::StatusOr<std::vector<Row>> Rows(const std::string& where) {
    return ReadRows<Row>(database_, where, nullptr);
  }

 private:
  friend class RunDatabase;
  DatabaseEdit(SqliteDatabase& database, int64_t number, uint64_t digest)
      : database_(database), number_(number), digest_(digest) {}
  template <typename Row>
  absl::Status Write(const Row& row, bool replace);

  SqliteDatabase& database_;
  const int64_t number_;
  uint64_t digest_;
};

// Not thread-safe.
class RunDatabase {
 public:
  struct Options {
    std::string vfs = {};  // SQLite's; empty: the system's.
    bool durable = true;   // False: nothing is synced.
    // The log is moved into the database when it has this many pages of 4,096 bytes: rarely enough
    // to cost nothing, often enough that opening reads little.
    int64_t log_pages = 2000;
  };

  // Writes a database with that identity, the default state and one commit to `path`, synced, and
  // closes it. There is nothing at `path` before; after an error there may be.
  static absl::Status Create(const std::string& path, const Options& options,
                             const RunIdentity& identity);

  // DATA_LOSS if SQLite finds damage or the tables are not those of the format. Changes nothing,
  // and closing the result changes nothing, until AllowChanges.
  static absl::StatusOr<std::unique_ptr<RunDatabase>> Open(const std::string& path,
                                                           const Options& options);
  // Every row, verified. DATA_LOSS if one is damaged, missing or too many, or if the rounds of a
  // fragment have a gap.
  //
  // Before a fragment's last `recent_rounds`, where deltas are gone, it reads only the newest
  // contribution of each worker and part of the data, and takes the stored checksums of the others.
  // So a run's length hardly shows.
  absl::StatusOr<DatabaseContent> Load(int64_t recent_rounds = std::numeric_limits<int64_t>::max());
  // Say whether closing moves the log into the database.
  void AllowChanges() { database_->set_checkpoint_on_close(true); }
  void ForbidChanges() { database_->set_checkpoint_on_close(false); }

  // Commits what `edit` does, or nothing: after RESOURCE_EXHAUSTED, ALREADY_EXISTS and
  // INVALID_ARGUMENT it was nothing. After any other error the database must be closed and opened
  // again.
  absl::Status Commit(absl::FunctionRef<absl::Status(DatabaseEdit&)> edit);
  // Commits as the commit `row` of another database of the run, of which this one is a copy.
  // DATA_LOSS, and nothing was changed, unless the rows are those of that commit afterwards.
  absl::Status CommitAs(const CommitRow& row, absl::FunctionRef<absl::Status(DatabaseEdit&)> edit);

  template <typename Row>
  absl::StatusOr<std::vector<Row>> Rows(const std::string& where) {
    return ReadRows<Row>(*database_, where, nullptr);
  }
  // Each packed, too.
  template <typename Row>
  absl::StatusOr<std::vector<Row>> Rows(const std::string& where,
                                        std::vector<std::string>& packed) {
    return ReadRows<Row>(*database_, where, nullptr, &packed);
  }

  // The number of the last commit; the first is 1.
  int64_t commits() const { return row_.commits; }
  // Covers its rows: CommitRow::digest.
  uint64_t digest() const { return row_.digest; }
  const std::string& path() const { return database_->path(); }

 private:
  RunDatabase(std::unique_ptr<SqliteDatabase> database, int64_t log_pages)
      : database_(std::move(database)), log_pages_(log_pages) {}
  static absl::StatusOr<std::unique_ptr<SqliteDatabase>> OpenExclusively(const std::string& path,
                                                                         const Options& options,
                                                                         bool create);
  absl::Status Damaged(absl::string_view what) const;
  absl::Status CheckStructure();
  absl::StatusOr<std::vector<StoredContribution>> LoadContributions(
      const std::vector<StoredRound>& rounds, int64_t recent_rounds, uint64_t& digest);
  absl::Status CheckOrder(const DatabaseContent& content) const;
  absl::Status CommitRowed(CommitRow row, bool is_copy,
                           absl::FunctionRef<absl::Status(DatabaseEdit&)> edit);
  absl::Status MoveLog();

  const std::unique_ptr<SqliteDatabase> database_;
  const int64_t log_pages_;
  CommitRow row_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_RUN_DATABASE_H_
