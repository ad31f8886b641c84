// The database of a run directory, run.db: everything that is small.
//
// SQLite in WAL mode with synchronous=FULL, held exclusively. Each commit is durable when it
// returns. The file is created as a whole (written beside, synced, renamed), so a run.db without
// its table was damaged, not interrupted.
//
// One table holds all records: key, value, checksum. A record's checksum finds what
// is damaged, the sum of all of them what is missing or older than it must be.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/record.pb.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "server/store/sqlite_database.h"
#include "server/store/store.h"

namespace causeway::server {

// The keys under which run.db keeps the records of a run (record.proto), so that records of one
// kind, and of one fragment, lie together and in order.
//
//   commit, run, state                    one record each
//   member/WORKER
//   round/FRAGMENT/ROUND
//   contribution/FRAGMENT/ROUND/WORKER
//   snapshot/FRAGMENT/VERSION             numbers in 8 and 12 digits

std::string RecordKey(const v1::Commit& record);
std::string RecordKey(const v1::RunIdentity& record);
std::string RecordKey(const v1::State& record);
std::string RecordKey(const v1::Member& record);
std::string RecordKey(const v1::Round& record);
std::string RecordKey(const v1::Contribution& record);
std::string RecordKey(const v1::Snapshot& record);

// The key's part before the first slash.
template <typename Record>
inline constexpr absl::string_view kKind = "";
template <>
inline constexpr absl::string_view kKind<v1::Commit> = "commit";
template <>
inline constexpr absl::string_view kKind<v1::RunIdentity> = "run";
template <>
inline constexpr absl::string_view kKind<v1::State> = "state";
template <>
inline constexpr absl::string_view kKind<v1::Member> = "member";
template <>
inline constexpr absl::string_view kKind<v1::Round> = "round";
template <>
inline constexpr absl::string_view kKind<v1::Contribution> = "contribution";
template <>
inline constexpr absl::string_view kKind<v1::Snapshot> = "snapshot";
absl::string_view KindOf(absl::string_view key);
// Reads the fragment in the key of a round, contribution or snapshot.
int FragmentOf(absl::string_view key);

// Keys from `begin` on and before `end`.
struct KeyRange {
  std::string begin;
  std::string end;
};
template <typename Record>
KeyRange AllOf() {
  return {std::string(kKind<Record>), absl::StrCat(kKind<Record>, "0")};  // '0' follows '/'.
}
// Of a fragment, rounds or versions `first` to `last`.
KeyRange RangeOf(absl::string_view kind, int fragment, int64_t first, int64_t last);
template <typename Record>
KeyRange RangeOf(int fragment, int64_t first, int64_t last) {
  return RangeOf(kKind<Record>, fragment, first, last);
}

// XXH3-64 over the key, a zero byte and the value.
uint64_t RecordChecksum(absl::string_view key, absl::string_view value);

// INVALID_ARGUMENT unless the value is a Record of that key.
template <typename Record>
absl::StatusOr<Record> ParseRecord(absl::string_view key, absl::string_view value) {
  Record record;
  if (record.ParseFromArray(value.data(), static_cast<int>(value.size())) &&
      RecordKey(record) == key) {
    return record;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("what is under the key ", key, " is no record of that key"));
}

inline constexpr int64_t kRunFormatVersion = 2;           // PRAGMA user_version
inline constexpr int64_t kRunApplicationId = 0x43574159;  // "CWAY": PRAGMA application_id

// Checks a file that is to be opened: FAILED_PRECONDITION if its format is another program's, which
// it names; DATA_LOSS, with the offset, if it is no database of a run. Reads the first 100 bytes:
// programs write a newer version there before they write anything else of it.
absl::Status CheckRunFormat(FileSystem& file_system, const std::string& path);

// True if a commit that ended with this error left everything as it was.
bool ChangedNothing(const absl::Status& status);

// What a record's key and value are shown to. An error ends the reading.
using RecordReader = absl::FunctionRef<absl::Status(absl::string_view key, absl::string_view value,
                                                    uint64_t checksum)>;

// Calls for each record of the range, in order of their keys. DATA_LOSS if a checksum differs.
absl::Status ReadRecords(SqliteDatabase& database, const KeyRange& range, RecordReader read);

// Adds the records to `digest`, if there is one.
template <typename Record>
absl::StatusOr<std::vector<Record>> ReadAll(SqliteDatabase& database, const KeyRange& range,
                                            uint64_t* digest = nullptr) {
  std::vector<Record> records;
  const auto add = [&](absl::string_view key, absl::string_view value,
                       uint64_t checksum) -> absl::Status {
    ASSIGN_OR_RETURN(records.emplace_back(), ParseRecord<Record>(key, value));
    if (digest != nullptr) *digest += checksum;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ReadRecords(database, range, add));
  return records;
}

// The changes of one commit. Used only within RunDatabase::Commit.
class DatabaseEdit {
 public:
  // This commit's number.
  int64_t number() const { return number_; }
  // Keys of what was written or removed so far.
  const std::vector<std::string>& changed() const { return changed_; }
  // ALREADY_EXISTS if there is a record with this key.
  template <typename Record>
  absl::Status Insert(const Record& record) {
    return Write(RecordKey(record), record.SerializeAsString(), /*replace=*/false);
  }
  // Replaces the record of this key, if there is one.
  template <typename Record>
  absl::Status Put(const Record& record) {
    return Write(RecordKey(record), record.SerializeAsString(), /*replace=*/true);
  }
  // The same, for bytes that came from another database.
  absl::Status Put(const v1::Record& record) {
    return Write(record.key(), record.value(), /*replace=*/true);
  }
  template <typename Record>
  absl::Status Remove(const Record& record) {
    return RemoveKey(RecordKey(record));
  }
  template <typename Record>
  absl::StatusOr<std::vector<Record>> Read(const KeyRange& range) {
    return ReadAll<Record>(database_, range);
  }

 private:
  friend class RunDatabase;
  DatabaseEdit(SqliteDatabase& database, int64_t number, uint64_t digest)
      : database_(database), number_(number), digest_(digest) {}
  absl::Status Write(absl::string_view key, absl::string_view value, bool replace);
  absl::Status RemoveKey(absl::string_view key);
  // Takes the record of the key out of the digest.
  absl::Status Discount(absl::string_view key);

  SqliteDatabase& database_;
  const int64_t number_;
  uint64_t digest_;
  std::vector<std::string> changed_;
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
                             const v1::RunIdentity& identity);

  // DATA_LOSS if SQLite finds damage or the table is not that of the format. Changes nothing,
  // and closing the result changes nothing, until AllowChanges.
  static absl::StatusOr<std::unique_ptr<RunDatabase>> Open(const std::string& path,
                                                           const Options& options);
  // Every record, verified. DATA_LOSS if one is damaged, missing or too many, or if the rounds of a
  // fragment have a gap.
  //
  // Of the contributions before a fragment's last `recent_rounds`, where deltas are gone, it gives
  // only the newest of each worker and part of the data.
  absl::StatusOr<RecoveredRun> Load(int64_t recent_rounds = std::numeric_limits<int64_t>::max());
  // Say whether closing moves the log into the database.
  void AllowChanges() { database_->set_checkpoint_on_close(true); }
  void ForbidChanges() { database_->set_checkpoint_on_close(false); }

  // Commits what `edit` does, or nothing: after RESOURCE_EXHAUSTED, ALREADY_EXISTS and
  // INVALID_ARGUMENT it was nothing. After any other error the database must be closed and opened
  // again.
  //
  // `as`: that commit of another database of the run, of which this one is a copy. DATA_LOSS, and
  // nothing was changed, unless the records are those of that commit afterwards.
  absl::Status Commit(absl::FunctionRef<absl::Status(DatabaseEdit&)> edit,
                      const v1::Commit* as = nullptr);

  template <typename Record>
  absl::StatusOr<std::vector<Record>> Read(const KeyRange& range) {
    return ReadAll<Record>(*database_, range);
  }
  absl::Status ReadRaw(const KeyRange& range, RecordReader read) {
    return ReadRecords(*database_, range, read);
  }

  // The number of the last commit; the first is 1.
  int64_t commits() const { return commit_.number(); }
  // Covers its records: record.proto.
  uint64_t digest() const { return commit_.digest(); }
  const std::string& path() const { return database_->path(); }

 private:
  RunDatabase(std::unique_ptr<SqliteDatabase> database, int64_t log_pages)
      : database_(std::move(database)), log_pages_(log_pages) {}
  static absl::StatusOr<std::unique_ptr<SqliteDatabase>> OpenExclusively(const std::string& path,
                                                                         const Options& options,
                                                                         bool create);
  absl::Status Damaged(absl::string_view what) const;
  absl::Status CheckStructure();
  // Adds to `digest`, as ReadAll does.
  absl::StatusOr<std::vector<v1::Contribution>> LoadContributions(
      const std::vector<v1::Round>& rounds, int64_t recent_rounds, uint64_t& digest);
  absl::Status CheckOrder(const RecoveredRun& run) const;
  absl::Status MoveLog();

  const std::unique_ptr<SqliteDatabase> database_;
  const int64_t log_pages_;
  v1::Commit commit_;
};

// A copy of a run folder's database, for readers who leave the folder as it is: SQLite would write
// beside the original.

// A folder below TMPDIR, removed with the object.
class DatabaseCopy {
 public:
  // Errors of the disks. While somebody changes the original, the copy may be no database.
  static absl::StatusOr<std::unique_ptr<DatabaseCopy>> Make(FileSystem& file_system,
                                                            const std::string& folder);
  ~DatabaseCopy();

  // Must not outlive this.
  absl::StatusOr<std::unique_ptr<RunDatabase>> Open() const;
  // An error of the copy, as one of the original.
  absl::Status Named(const absl::Status& status) const;

 private:
  DatabaseCopy(std::string path, std::string original)
      : path_(std::move(path)), original_(std::move(original)) {}

  const std::string path_;
  const std::string original_;
};

}  // namespace causeway::server
