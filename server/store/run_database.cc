#include "server/store/run_database.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/crash_point.h"
#include "common/base/status_macros.h"

namespace causeway::server {
namespace {

// Where SQLite's file format has them, big endian.
constexpr size_t kHeaderBytes = 100;
constexpr size_t kUserVersionOffset = 60;
constexpr size_t kApplicationIdOffset = 68;
constexpr char kSqliteMagic[] = "SQLite format 3";  // And its terminating zero.

uint32_t BigEndian32(std::span<const uint8_t> bytes, size_t offset) {
  return static_cast<uint32_t>(bytes[offset]) << 24 |
         static_cast<uint32_t>(bytes[offset + 1]) << 16 |
         static_cast<uint32_t>(bytes[offset + 2]) << 8 | bytes[offset + 3];
}

absl::Status CheckVersion(int64_t version, const std::string& path) {
  if (version == kRunFormatVersion) return absl::OkStatus();
  if (version > kRunFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has format version ", version, "; this program reads version ",
                     kRunFormatVersion, ": continue the run with the program that wrote it"));
  }
  return absl::DataLossError(absl::StrCat(
      path, " is damaged: offset ", kUserVersionOffset, " says format version ", version,
      ", which never was; restore the run directory from a copy "
      "(docs/formats.md, Repair)"));
}

}  // namespace

bool ChangedNothing(const absl::Status& status) {
  return status.code() == absl::StatusCode::kResourceExhausted ||
         status.code() == absl::StatusCode::kAlreadyExists ||
         status.code() == absl::StatusCode::kInvalidArgument;
}

absl::Status CheckRunFormat(FileSystem& file_system, const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, file_system.Map(path));
  const std::span<const uint8_t> bytes = file->bytes();
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", what,
                                            "; restore the run directory from a copy "
                                            "(docs/formats.md, Repair)"));
  };
  if (bytes.size() < kHeaderBytes) {
    return damaged(absl::StrCat("it ends at offset ", bytes.size(), ", within its header"));
  }
  if (std::memcmp(bytes.data(), kSqliteMagic, sizeof(kSqliteMagic)) != 0) {
    return damaged("offset 0 is not the beginning of an SQLite database");
  }
  if (BigEndian32(bytes, kApplicationIdOffset) != kRunApplicationId) {
    return damaged(
        absl::StrCat("offset ", kApplicationIdOffset, " does not say that it is a run's"));
  }
  return CheckVersion(std::bit_cast<int32_t>(BigEndian32(bytes, kUserVersionOffset)), path);
}

template <typename Row>
absl::Status DatabaseEdit::Write(const Row& row, bool replace) {
  if (replace) {
    ASSIGN_OR_RETURN(const uint64_t before, FindRowChecksum(database_, row));
    digest_ -= before;
  }
  ASSIGN_OR_RETURN(const uint64_t after, WriteRow(database_, row, replace));
  digest_ += after;
  return absl::OkStatus();
}

template <typename Row>
absl::Status DatabaseEdit::PutPacked(const Row& row, absl::string_view packed) {
  ASSIGN_OR_RETURN(const uint64_t before, FindRowChecksum(database_, row));
  digest_ -= before;
  ASSIGN_OR_RETURN(const uint64_t after, WritePackedRow<Row>(database_, packed, /*replace=*/true));
  digest_ += after;
  return absl::OkStatus();
}

template <typename Row>
absl::Status DatabaseEdit::Remove(const Row& row) {
  ASSIGN_OR_RETURN(const uint64_t before, FindRowChecksum(database_, row));
  digest_ -= before;
  return DeleteRow(database_, row);
}

template absl::Status DatabaseEdit::Write(const RunIdentity&, bool);
template absl::Status DatabaseEdit::Write(const RunState&, bool);
template absl::Status DatabaseEdit::Write(const MemberRecord&, bool);
template absl::Status DatabaseEdit::Write(const StoredContribution&, bool);
template absl::Status DatabaseEdit::Write(const StoredRound&, bool);
template absl::Status DatabaseEdit::Write(const StoredSnapshot&, bool);
template absl::Status DatabaseEdit::Remove(const StoredContribution&);
template absl::Status DatabaseEdit::Remove(const StoredRound&);
template absl::Status DatabaseEdit::Remove(const StoredSnapshot&);
template absl::Status DatabaseEdit::PutPacked(const RunState&, absl::string_view);
template absl::Status DatabaseEdit::PutPacked(const MemberRecord&, absl::string_view);
template absl::Status DatabaseEdit::PutPacked(const StoredContribution&, absl::string_view);
template absl::Status DatabaseEdit::PutPacked(const StoredRound&, absl::string_view);
template absl::Status DatabaseEdit::PutPacked(const StoredSnapshot&, absl::string_view);

absl::StatusOr<std::unique_ptr<SqliteDatabase>> RunDatabase::OpenExclusively(
    const std::string& path, const Options& options, bool create) {
  ASSIGN_OR_RETURN(std::unique_ptr<SqliteDatabase> database,
                   SqliteDatabase::Open(path, {.vfs = options.vfs, .create = create}));
  database->set_checkpoint_on_close(false);
  // Before the first access, so that the log's index needs no shared memory.
  RETURN_IF_ERROR(database->Execute("PRAGMA locking_mode = EXCLUSIVE"));
  RETURN_IF_ERROR(
      database->Execute(absl::StrCat("PRAGMA synchronous = ", options.durable ? "FULL" : "OFF")));
  // Rows are verified by their own checksums; a damaged schema must not run as code.
  RETURN_IF_ERROR(database->Execute("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON"));
  return database;
}

absl::Status RunDatabase::Create(const std::string& path, const Options& options,
                                 const RunIdentity& identity) {
  ASSIGN_OR_RETURN(std::unique_ptr<SqliteDatabase> sqlite, OpenExclusively(path, options, true));
  RETURN_IF_ERROR(sqlite->Execute(absl::StrCat("PRAGMA application_id = ", kRunApplicationId,
                                               "; PRAGMA user_version = ", kRunFormatVersion)));
  ASSIGN_OR_RETURN(const std::string mode, sqlite->Text("PRAGMA journal_mode = WAL"));
  if (mode != "wal") {
    return absl::InternalError(absl::StrCat(path, ": SQLite uses journal mode ", mode,
                                            " where the write-ahead log was asked for"));
  }
  RunDatabase database(std::move(sqlite), options.log_pages);
  const auto fill = [&](DatabaseEdit& edit) -> absl::Status {
    for (const std::string& table : CreateTableStatements()) {
      RETURN_IF_ERROR(database.database_->Execute(table));
    }
    RETURN_IF_ERROR(edit.Insert(identity));
    return edit.Insert(RunState());
  };
  RETURN_IF_ERROR(database.Commit(fill));
  RETURN_IF_ERROR(database.database_->Checkpoint(/*truncate=*/true));
  database.AllowChanges();  // Closing removes the emptied log.
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RunDatabase>> RunDatabase::Open(const std::string& path,
                                                               const Options& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<SqliteDatabase> sqlite, OpenExclusively(path, options, false));
  std::unique_ptr<RunDatabase> database(new RunDatabase(std::move(sqlite), options.log_pages));
  RETURN_IF_ERROR(database->CheckStructure());
  return database;
}

absl::Status RunDatabase::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(path(), " is damaged: ", what,
                                          "; restore the run directory from a copy (docs/"
                                          "formats.md, Repair)"));
}

absl::Status RunDatabase::CheckStructure() {
  ASSIGN_OR_RETURN(const std::string check, database_->Text("PRAGMA quick_check(1)"));
  // SQLite's words have lines of their own.
  if (check != "ok") return Damaged(absl::StrReplaceAll(check, {{"\n", ": "}}));
  ASSIGN_OR_RETURN(const int64_t version, database_->Int("PRAGMA user_version"));
  RETURN_IF_ERROR(CheckVersion(version, path()));
  ASSIGN_OR_RETURN(const std::string mode, database_->Text("PRAGMA journal_mode"));
  if (mode != "wal") return Damaged("it is not in the mode of a write-ahead log (offsets 18, 19)");
  const std::vector<std::string> expected = CreateTableStatements();
  std::vector<std::string> found;
  ASSIGN_OR_RETURN(Statement schema,
                   database_->Prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL "
                                      "ORDER BY name"));
  for (;;) {
    ASSIGN_OR_RETURN(const bool row, schema.Step());
    if (!row) break;
    ASSIGN_OR_RETURN(found.emplace_back(), schema.Text(0));
  }
  if (found != expected) return Damaged("its tables are not those of format version 1");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoredContribution>> RunDatabase::LoadContributions(
    const std::vector<StoredRound>& rounds, int64_t recent_rounds, uint64_t& digest) {
  std::map<int, int64_t> last;  // By fragment.
  for (const StoredRound& round : rounds) last[round.record.fragment] = round.record.round;
  std::erase_if(last, [&](const auto& item) { return item.second <= recent_rounds; });
  if (last.empty()) return ReadRows<StoredContribution>(*database_, "", &digest);
  const char* const table = Columns<StoredContribution>::kName;
  std::string bound = "CASE fragment";
  std::vector<StoredContribution> contributions;
  for (const auto& [fragment, round] : last) {
    absl::StrAppend(&bound, " WHEN ", fragment, " THEN ", round - recent_rounds);
    const std::string old = absl::StrCat(
        "fragment = ", fragment, " AND round <= ", round - recent_rounds, " AND delta = ''");
    // Ranges are what stands between spaces, a part of the data what stands before a colon
    // (FormatDraws).
    constexpr char kRanges[] = "json_each('[' || replace(json_quote(draws), ' ', '\",\"') || ']')";
    ASSIGN_OR_RETURN(
        std::vector<StoredContribution> newest,
        ReadRows<StoredContribution>(
            *database_,
            absl::StrCat(old, " AND (round, worker_id) IN (SELECT max(round), worker_id FROM ",
                         table, ", ", kRanges, " WHERE ", old,
                         " GROUP BY worker_id, substr(value, 1, instr(value, ':')))"),
            nullptr));
    std::ranges::move(newest, std::back_inserter(contributions));
  }
  const std::string old = absl::StrCat("(round <= ", bound, " ELSE 0 END AND delta = '')");
  ASSIGN_OR_RETURN(const uint64_t sum, SumOfChecksums<StoredContribution>(*database_, old));
  digest += sum;
  ASSIGN_OR_RETURN(std::vector<StoredContribution> recent,
                   ReadRows<StoredContribution>(*database_, absl::StrCat("NOT ", old), &digest));
  std::ranges::move(recent, std::back_inserter(contributions));
  std::ranges::sort(contributions, {}, [](const StoredContribution& row) {
    return std::tie(row.record.fragment, row.record.round, row.record.worker_id);
  });
  return contributions;
}

absl::StatusOr<DatabaseContent> RunDatabase::Load(int64_t recent_rounds) {
  DatabaseContent content;
  uint64_t digest = 0;
  ASSIGN_OR_RETURN(const std::vector<CommitRow> commits,
                   ReadRows<CommitRow>(*database_, "", nullptr));
  ASSIGN_OR_RETURN(std::vector<RunIdentity> identity,
                   ReadRows<RunIdentity>(*database_, "", &digest));
  ASSIGN_OR_RETURN(std::vector<RunState> state, ReadRows<RunState>(*database_, "", &digest));
  ASSIGN_OR_RETURN(content.members, ReadRows<MemberRecord>(*database_, "", &digest));
  ASSIGN_OR_RETURN(content.rounds, ReadRows<StoredRound>(*database_, "", &digest));
  ASSIGN_OR_RETURN(content.contributions, LoadContributions(content.rounds, recent_rounds, digest));
  ASSIGN_OR_RETURN(content.snapshots, ReadRows<StoredSnapshot>(*database_, "", &digest));
  if (commits.size() != 1 || identity.size() != 1 || state.size() != 1) {
    return Damaged("commits, run and run_state do not have one row each");
  }
  row_ = commits[0];
  if (digest != row_.digest) {
    return Damaged(absl::StrCat("its rows are not those of commit ", row_.commits));
  }
  content.identity = std::move(identity[0]);
  content.state = std::move(state[0]);
  RETURN_IF_ERROR(CheckOrder(content));
  return content;
}

absl::Status RunDatabase::CheckOrder(const DatabaseContent& content) const {
  std::map<int, int64_t> last;
  for (const StoredRound& round : content.rounds) {
    const int64_t expected = ++last[round.record.fragment];
    if (round.record.round != expected) {
      return Damaged(
          absl::StrCat("round ", expected, " of fragment ", round.record.fragment, " is missing"));
    }
  }
  for (const StoredSnapshot& snapshot : content.snapshots) {
    if (snapshot.version > last[snapshot.fragment]) {
      return Damaged(absl::StrCat("it has a snapshot of fragment ", snapshot.fragment,
                                  " at version ", snapshot.version, ", but no such round"));
    }
  }
  return absl::OkStatus();
}

absl::Status RunDatabase::Commit(absl::FunctionRef<absl::Status(DatabaseEdit&)> edit) {
  return CommitRowed({.commits = row_.commits + 1}, /*is_copy=*/false, edit);
}

absl::Status RunDatabase::CommitAs(const CommitRow& row,
                                   absl::FunctionRef<absl::Status(DatabaseEdit&)> edit) {
  return CommitRowed(row, /*is_copy=*/true, edit);
}

absl::Status RunDatabase::CommitRowed(CommitRow row, bool is_copy,
                                      absl::FunctionRef<absl::Status(DatabaseEdit&)> edit) {
  ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(*database_));
  DatabaseEdit changes(*database_, row.commits, row_.digest);
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(edit(changes));
    if (is_copy && changes.digest_ != row.digest) {
      return absl::DataLossError(
          absl::StrCat(path(), ": the rows that came do not make it commit ", row.commits));
    }
    row.digest = changes.digest_;
    RETURN_IF_ERROR(WriteRow(*database_, row, /*replace=*/true).status());
    CrashPoint("before_row_commit");
    return transaction.Commit();
  }();
  if (!status.ok()) {
    const absl::Status rolled_back = transaction.RollBack();
    if (!rolled_back.ok() && ChangedNothing(status)) {
      return absl::InternalError(absl::StrCat(status.message(), "; ", rolled_back.message()));
    }
    return status;
  }
  CrashPoint("after_row_commit");
  row_ = row;
  return MoveLog();
}

absl::Status RunDatabase::MoveLog() {
  if (database_->log_pages() < log_pages_) return absl::OkStatus();
  const absl::Status status = database_->Checkpoint(/*truncate=*/false);
  // On a full disk the log stays as it is and grows; the next commit tries again.
  if (status.code() == absl::StatusCode::kResourceExhausted) return absl::OkStatus();
  return status;
}

}  // namespace causeway::server
