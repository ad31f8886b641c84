#include "server/store/run_database.h"

#include <stdlib.h>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/checksum.h"
#include "common/base/crash_point.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

// Where SQLite's file format has them, big endian.
constexpr size_t kHeaderBytes = 100;
constexpr size_t kUserVersionOffset = 60;
constexpr size_t kApplicationIdOffset = 68;
constexpr char kTable[] =
    "CREATE TABLE records (key TEXT PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL) "
    "WITHOUT ROWID";
constexpr char kSqliteMagic[] = "SQLite format 3";  // And its terminating zero.

// Of a contribution without draws.
constexpr int kNoPart = std::numeric_limits<int>::min();

uint32_t BigEndian32(std::span<const uint8_t> bytes, size_t offset) {
  return static_cast<uint32_t>(bytes[offset]) << 24 |
         static_cast<uint32_t>(bytes[offset + 1]) << 16 |
         static_cast<uint32_t>(bytes[offset + 2]) << 8 | bytes[offset + 3];
}

absl::Status DamagedDatabase(absl::string_view path, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(path, " is damaged: ", what,
                   "; restore the run directory from a copy (docs/formats.md, Repair)"));
}

absl::Status CheckVersion(int64_t version, const std::string& path) {
  if (version == kRunFormatVersion) return absl::OkStatus();
  if (version >= 1 && version < kRunFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " has format version ", version, " of a former release; this program reads version ",
        kRunFormatVersion,
        ": continue the run with the release that wrote it, or save its "
        "parameters with that one (causewayctl export --format=parameters) and begin a run with "
        "them (--initial)"));
  }
  if (version > kRunFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has format version ", version, "; this program reads version ",
                     kRunFormatVersion, ": continue the run with the program that wrote it"));
  }
  return DamagedDatabase(path, absl::StrCat("offset ", kUserVersionOffset, " says format version ",
                                            version, ", which never was"));
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
  const auto damaged = [&](absl::string_view what) { return DamagedDatabase(path, what); };
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

absl::Status ReadRecords(SqliteDatabase& database, const KeyRange& range, RecordReader read) {
  ASSIGN_OR_RETURN(Statement rows,
                   database.Prepare("SELECT key, value, checksum FROM records WHERE key >= ? AND "
                                    "key < ? ORDER BY key"));
  rows.Bind(absl::string_view(range.begin)).Bind(absl::string_view(range.end));
  for (;;) {
    ASSIGN_OR_RETURN(const bool found, rows.Step());
    if (!found) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string key, rows.Text(0));
    ASSIGN_OR_RETURN(const absl::string_view value, rows.Blob(1));
    ASSIGN_OR_RETURN(const int64_t stored, rows.Int(2));
    const auto checksum = static_cast<uint64_t>(stored);
    const absl::Status status = RecordChecksum(key, value) == checksum
                                    ? read(key, value, checksum)
                                    : absl::InvalidArgumentError(absl::StrCat(
                                          "the checksum of ", key, " differs from its content"));
    if (absl::IsInvalidArgument(status)) {
      return DamagedDatabase(database.path(), status.message());
    }
    RETURN_IF_ERROR(status);
  }
}

absl::Status DatabaseEdit::Discount(absl::string_view key) {
  ASSIGN_OR_RETURN(Statement former,
                   database_.Prepare("SELECT checksum FROM records WHERE key = ?"));
  former.Bind(key);
  ASSIGN_OR_RETURN(const bool found, former.Step());
  if (!found) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t checksum, former.Int(0));
  digest_ -= static_cast<uint64_t>(checksum);
  return absl::OkStatus();
}

absl::Status DatabaseEdit::Write(absl::string_view key, absl::string_view value, bool replace) {
  if (replace) RETURN_IF_ERROR(Discount(key));
  ASSIGN_OR_RETURN(Statement row,
                   database_.Prepare(absl::StrCat(replace ? "INSERT OR REPLACE" : "INSERT",
                                                  " INTO records VALUES (?, ?, ?)")));
  const uint64_t checksum = RecordChecksum(key, value);
  row.Bind(key).BindBlob(value).Bind(static_cast<int64_t>(checksum));
  RETURN_IF_ERROR(row.Run());
  digest_ += checksum;
  changed_.emplace_back(key);
  return absl::OkStatus();
}

absl::Status DatabaseEdit::RemoveKey(absl::string_view key) {
  RETURN_IF_ERROR(Discount(key));
  ASSIGN_OR_RETURN(Statement row, database_.Prepare("DELETE FROM records WHERE key = ?"));
  row.Bind(key);
  changed_.emplace_back(key);
  return row.Run();
}

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
                                 const v1::RunIdentity& identity) {
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
    RETURN_IF_ERROR(database.database_->Execute(kTable));
    RETURN_IF_ERROR(edit.Insert(identity));
    return edit.Insert(v1::State());
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
  return DamagedDatabase(path(), what);
}

absl::Status RunDatabase::CheckStructure() {
  ASSIGN_OR_RETURN(const std::string check, database_->Text("PRAGMA quick_check(1)"));
  // SQLite's words have lines of their own.
  if (check != "ok") return Damaged(absl::StrReplaceAll(check, {{"\n", ": "}}));
  ASSIGN_OR_RETURN(const int64_t version, database_->Int("PRAGMA user_version"));
  RETURN_IF_ERROR(CheckVersion(version, path()));
  ASSIGN_OR_RETURN(const std::string mode, database_->Text("PRAGMA journal_mode"));
  if (mode != "wal") return Damaged("it is not in the mode of a write-ahead log (offsets 18, 19)");
  ASSIGN_OR_RETURN(const std::string tables,
                   database_->Text("SELECT coalesce(group_concat(sql), '') FROM sqlite_schema"));
  if (tables != kTable) {
    return Damaged(absl::StrCat("its table is not that of format version ", kRunFormatVersion));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::Contribution>> RunDatabase::LoadContributions(
    const std::vector<v1::Round>& rounds, int64_t recent_rounds, uint64_t& digest) {
  std::map<int, int64_t> last;  // By fragment.
  for (const v1::Round& round : rounds) last[round.fragment()] = round.round();
  std::vector<v1::Contribution> contributions;
  // Of the old ones, by fragment, worker and part of the data.
  std::map<std::tuple<int, std::string, int>, v1::Contribution> newest;
  const auto add = [&](absl::string_view key, absl::string_view value,
                       uint64_t checksum) -> absl::Status {
    ASSIGN_OR_RETURN(v1::Contribution record, ParseRecord<v1::Contribution>(key, value));
    digest += checksum;
    const v1::PushHeader& header = record.header();
    const auto found = last.find(header.fragment());
    const int64_t old = found == last.end() ? 0 : found->second - recent_rounds;
    if (header.round() > old || !record.delta().file().empty()) {
      contributions.push_back(std::move(record));
      return absl::OkStatus();
    }
    const auto keep = [&](int part) {
      newest.insert_or_assign({header.fragment(), header.worker_id(), part}, record);
    };
    if (header.draws().empty()) keep(kNoPart);
    for (const v1::DrawRange& range : header.draws()) keep(range.data_slot());
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ReadRecords(*database_, AllOf<v1::Contribution>(), add));
  if (newest.empty()) return contributions;
  std::map<std::string, v1::Contribution> kept;
  for (auto& [place, record] : newest) kept.insert_or_assign(RecordKey(record), std::move(record));
  for (v1::Contribution& record : contributions) {
    kept.insert_or_assign(RecordKey(record), std::move(record));
  }
  contributions.clear();
  for (auto& [key, record] : kept) contributions.push_back(std::move(record));
  return contributions;
}

absl::StatusOr<RecoveredRun> RunDatabase::Load(int64_t recent_rounds) {
  RecoveredRun run;
  uint64_t digest = 0;
  ASSIGN_OR_RETURN(const std::vector<v1::Commit> commits, Read<v1::Commit>(AllOf<v1::Commit>()));
  ASSIGN_OR_RETURN(std::vector<v1::RunIdentity> identity,
                   ReadAll<v1::RunIdentity>(*database_, AllOf<v1::RunIdentity>(), &digest));
  ASSIGN_OR_RETURN(std::vector<v1::State> state,
                   ReadAll<v1::State>(*database_, AllOf<v1::State>(), &digest));
  ASSIGN_OR_RETURN(run.members, ReadAll<v1::Member>(*database_, AllOf<v1::Member>(), &digest));
  ASSIGN_OR_RETURN(run.rounds, ReadAll<v1::Round>(*database_, AllOf<v1::Round>(), &digest));
  ASSIGN_OR_RETURN(run.contributions, LoadContributions(run.rounds, recent_rounds, digest));
  ASSIGN_OR_RETURN(run.snapshots,
                   ReadAll<v1::Snapshot>(*database_, AllOf<v1::Snapshot>(), &digest));
  if (commits.size() != 1 || identity.size() != 1 || state.size() != 1) {
    return Damaged("commit, run and state are not there once each");
  }
  commit_ = commits[0];
  if (digest != commit_.digest()) {
    return Damaged(absl::StrCat("its records are not those of commit ", commit_.number()));
  }
  run.identity = std::move(identity[0]);
  run.state = std::move(state[0]);
  RETURN_IF_ERROR(CheckOrder(run));
  return run;
}

absl::Status RunDatabase::CheckOrder(const RecoveredRun& run) const {
  const auto exists = [&](int fragment) {
    return fragment >= 0 && fragment < run.identity.initial_hashes_size();
  };
  for (const v1::Contribution& record : run.contributions) {
    if (!exists(record.header().fragment())) {
      return Damaged("it has a contribution to a fragment that the run does not have");
    }
  }
  std::map<int, int64_t> last;
  for (const v1::Round& round : run.rounds) {
    const int64_t expected = ++last[round.fragment()];
    if (round.round() != expected || !exists(round.fragment())) {
      return Damaged(
          absl::StrCat("round ", expected, " of fragment ", round.fragment(), " is missing"));
    }
  }
  for (const v1::Snapshot& snapshot : run.snapshots) {
    if (snapshot.version() > last[snapshot.fragment()] || !exists(snapshot.fragment())) {
      return Damaged(absl::StrCat("it has a snapshot of fragment ", snapshot.fragment(),
                                  " at version ", snapshot.version(), ", but no such round"));
    }
  }
  return absl::OkStatus();
}

absl::Status RunDatabase::Commit(absl::FunctionRef<absl::Status(DatabaseEdit&)> edit,
                                 const v1::Commit* as) {
  RETURN_IF_ERROR(database_->Execute("BEGIN IMMEDIATE"));
  DatabaseEdit changes(*database_, as != nullptr ? as->number() : commit_.number() + 1,
                       commit_.digest());
  v1::Commit commit;
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(edit(changes));
    if (as != nullptr && changes.digest_ != as->digest()) {
      return absl::DataLossError(
          absl::StrCat(path(), ": the records that came do not make it commit ", as->number()));
    }
    commit.set_number(changes.number());
    commit.set_digest(changes.digest_);
    RETURN_IF_ERROR(changes.Put(commit));  // Itself no part of the digest.
    CrashPoint("before_row_commit");
    return database_->Execute("COMMIT");
  }();
  if (!status.ok()) {
    const absl::Status rolled_back = database_->RollBack();
    if (!rolled_back.ok() && ChangedNothing(status)) {
      return absl::InternalError(absl::StrCat(status.message(), "; ", rolled_back.message()));
    }
    return status;
  }
  CrashPoint("after_row_commit");
  commit_ = std::move(commit);
  return MoveLog();
}

absl::Status RunDatabase::MoveLog() {
  if (database_->log_pages() < log_pages_) return absl::OkStatus();
  const absl::Status status = database_->Checkpoint(/*truncate=*/false);
  // On a full disk the log stays as it is and grows; the next commit tries again.
  if (status.code() == absl::StatusCode::kResourceExhausted) return absl::OkStatus();
  return status;
}

namespace {

absl::Status CopyFile(FileSystem& from, const std::string& source, const std::string& target) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, from.Map(source));
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> copy, FileSystem::Real()->Create(target));
  return copy->Append(file->bytes());
}

}  // namespace

absl::StatusOr<std::unique_ptr<DatabaseCopy>> DatabaseCopy::Make(FileSystem& file_system,
                                                                 const std::string& folder) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  std::string path = JoinPath(error ? "/tmp" : parent.string(), "causeway-inspect-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("cannot create the folder ", path, ": ",
                                            std::generic_category().message(errno),
                                            "; set TMPDIR to one that can be written"));
  }
  auto copy = std::unique_ptr<DatabaseCopy>(new DatabaseCopy(std::move(path), folder));
  for (const char* const name : {kDatabaseFile, kDatabaseLogFile}) {
    const std::string source = JoinPath(folder, name);
    if (name == std::string(kDatabaseLogFile) && !file_system.Exists(source)) continue;
    RETURN_IF_ERROR(CopyFile(file_system, source, JoinPath(copy->path_, name)));
  }
  return copy;
}

DatabaseCopy::~DatabaseCopy() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<std::unique_ptr<RunDatabase>> DatabaseCopy::Open() const {
  auto database = RunDatabase::Open(JoinPath(path_, kDatabaseFile), {.durable = false});
  if (!database.ok()) return Named(database.status());
  return database;
}

absl::Status DatabaseCopy::Named(const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrReplaceAll(status.message(), {{path_, original_}}));
}

namespace {

std::string NumberedKey(absl::string_view kind, int fragment, int64_t number) {
  return absl::StrFormat("%s/%08d/%012d", kind, fragment, number);
}

}  // namespace

std::string RecordKey(const v1::Commit&) { return std::string(kKind<v1::Commit>); }
std::string RecordKey(const v1::RunIdentity&) { return std::string(kKind<v1::RunIdentity>); }
std::string RecordKey(const v1::State&) { return std::string(kKind<v1::State>); }
std::string RecordKey(const v1::Member& record) {
  return absl::StrCat(kKind<v1::Member>, "/", record.worker_id());
}
std::string RecordKey(const v1::Round& record) {
  return NumberedKey(kKind<v1::Round>, record.fragment(), record.round());
}
std::string RecordKey(const v1::Contribution& record) {
  const v1::PushHeader& header = record.header();
  return absl::StrCat(NumberedKey(kKind<v1::Contribution>, header.fragment(), header.round()), "/",
                      header.worker_id());
}
std::string RecordKey(const v1::Snapshot& record) {
  return NumberedKey(kKind<v1::Snapshot>, record.fragment(), record.version());
}

absl::string_view KindOf(absl::string_view key) { return key.substr(0, key.find('/')); }

int FragmentOf(absl::string_view key) {
  int fragment = 0;
  const absl::string_view after = key.substr(KindOf(key).size() + 1);
  return absl::SimpleAtoi(KindOf(after), &fragment) ? fragment : -1;
}

KeyRange RangeOf(absl::string_view kind, int fragment, int64_t first, int64_t last) {
  return {NumberedKey(kind, fragment, first), NumberedKey(kind, fragment, last + 1)};
}

uint64_t RecordChecksum(absl::string_view key, absl::string_view value) {
  return Checksum64(absl::StrCat(key, absl::string_view("\0", 1), value));
}

}  // namespace causeway::server
