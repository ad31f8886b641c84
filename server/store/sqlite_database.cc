#include "server/store/sqlite_database.h"

#include "common/base/checksum.h"

namespace causeway::server {
namespace {

absl::StatusCode CodeOf(int sqlite_code) {
  switch (sqlite_code & 0xff) {
    case SQLITE_FULL:
      return absl::StatusCode::kResourceExhausted;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::StatusCode::kDataLoss;
    case SQLITE_CONSTRAINT:
      return absl::StatusCode::kAlreadyExists;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::StatusCode::kFailedPrecondition;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return absl::StatusCode::kPermissionDenied;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::Status SqliteStatus(sqlite3* database, int code, const std::string& path,
                          absl::string_view what) {
  const char* const reason = database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code);
  if (CodeOf(code) == absl::StatusCode::kDataLoss) {
    return absl::DataLossError(absl::StrCat(
        path, " is damaged: SQLite cannot read it any more: ", reason, " (SQLite code ", code,
        "); restore the run directory from a copy (docs/formats.md, Repair)"));
  }
  std::string message =
      absl::StrCat("cannot ", what, " ", path, ": ", reason, " (SQLite code ", code, ")");
  if ((code & 0xff) == SQLITE_BUSY) {
    absl::StrAppend(&message, "; another program has it open: close that one");
  }
  return absl::Status(CodeOf(code), message);
}

}  // namespace

void Statement::Note(int code) {
  if (code == SQLITE_OK || !status_.ok()) return;
  status_ = SqliteStatus(sqlite3_db_handle(statement_.get()), code, path_, "bind a value for");
}

Statement& Statement::Bind(int64_t value) {
  Note(sqlite3_bind_int64(statement_.get(), ++bound_, value));
  return *this;
}

Statement& Statement::Bind(absl::string_view value) {
  Note(sqlite3_bind_text64(statement_.get(), ++bound_, value.data(), value.size(), SQLITE_TRANSIENT,
                           SQLITE_UTF8));
  return *this;
}

Statement& Statement::BindBlob(absl::string_view value) {
  Note(sqlite3_bind_blob64(statement_.get(), ++bound_, value.data(), value.size(), SQLITE_STATIC));
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  RETURN_IF_ERROR(status_);
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  sqlite3* const database = sqlite3_db_handle(statement_.get());
  return SqliteStatus(database, sqlite3_extended_errcode(database), path_,
                      absl::StrCat("run \"", sqlite3_sql(statement_.get()), "\" on"));
}

absl::Status Statement::WrongType(int column, const char* expected) const {
  const char* const name = sqlite3_column_name(statement_.get(), column);
  return absl::DataLossError(absl::StrCat(
      path_, " is damaged: column ", name != nullptr ? name : "?", " of a row is no ", expected));
}

absl::StatusOr<int64_t> Statement::Int(int column) const {
  if (sqlite3_column_type(statement_.get(), column) != SQLITE_INTEGER) {
    return WrongType(column, "integer");
  }
  return sqlite3_column_int64(statement_.get(), column);
}

absl::StatusOr<std::string> Statement::Text(int column) const {
  if (sqlite3_column_type(statement_.get(), column) != SQLITE_TEXT) {
    return WrongType(column, "text");
  }
  const unsigned char* const text = sqlite3_column_text(statement_.get(), column);
  if (text == nullptr) return absl::ResourceExhaustedError("out of memory");
  return std::string(reinterpret_cast<const char*>(text),
                     static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column)));
}

absl::StatusOr<absl::string_view> Statement::Blob(int column) const {
  if (sqlite3_column_type(statement_.get(), column) != SQLITE_BLOB) {
    return WrongType(column, "blob");
  }
  const void* const bytes = sqlite3_column_blob(statement_.get(), column);
  return absl::string_view(static_cast<const char*>(bytes),
                           static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column)));
}

SqliteDatabase::SqliteDatabase(sqlite3* database, std::string path)
    : log_pages_(std::make_unique<int64_t>(0)), database_(database), path_(std::move(path)) {
  if (database == nullptr) return;
  const auto note = [](void* pages, sqlite3*, const char*, int count) {
    *static_cast<int64_t*>(pages) = count;
    return SQLITE_OK;
  };
  sqlite3_wal_hook(database, note, log_pages_.get());
}

absl::StatusOr<std::unique_ptr<SqliteDatabase>> SqliteDatabase::Open(const std::string& path,
                                                                     const Options& options) {
  const int flags = SQLITE_OPEN_READWRITE | (options.create ? SQLITE_OPEN_CREATE : 0);
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &handle, flags | SQLITE_OPEN_NOMUTEX,
                                   options.vfs.empty() ? nullptr : options.vfs.c_str());
  // A handle comes even with most errors, to ask for the reason.
  std::unique_ptr<SqliteDatabase> database(new SqliteDatabase(handle, path));
  if (code != SQLITE_OK) return SqliteStatus(handle, code, path, "open the database");
  sqlite3_extended_result_codes(handle, 1);
  return database;
}

absl::Status SqliteDatabase::Status(int code, absl::string_view what) const {
  if (code == SQLITE_OK) return absl::OkStatus();
  return SqliteStatus(database_.get(), code, path_, what);
}

absl::StatusOr<Statement> SqliteDatabase::Prepare(const std::string& sql) {
  if (sql.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return absl::InvalidArgumentError("a statement is too long");
  }
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(database_.get(), sql.data(), static_cast<int>(sql.size()),
                                      &statement, nullptr);
  RETURN_IF_ERROR(Status(code, absl::StrCat("prepare \"", sql, "\" on")));
  return Statement(statement, path_);
}

absl::Status SqliteDatabase::Execute(const std::string& sql) {
  return Status(sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr),
                absl::StrCat("run \"", sql, "\" on"));
}

absl::StatusOr<Statement> SqliteDatabase::Ask(const std::string& sql) {
  ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  ASSIGN_OR_RETURN(const bool row, statement.Step());
  if (!row) return absl::DataLossError(absl::StrCat(path_, " answers nothing to \"", sql, "\""));
  return statement;
}

absl::StatusOr<std::string> SqliteDatabase::Text(const std::string& sql) {
  ASSIGN_OR_RETURN(const Statement answer, Ask(sql));
  return answer.Text(0);
}

absl::StatusOr<int64_t> SqliteDatabase::Int(const std::string& sql) {
  ASSIGN_OR_RETURN(const Statement answer, Ask(sql));
  return answer.Int(0);
}

absl::Status SqliteDatabase::Checkpoint(bool truncate) {
  const int mode = truncate ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_PASSIVE;
  return Status(sqlite3_wal_checkpoint_v2(database_.get(), nullptr, mode, nullptr, nullptr),
                "checkpoint");
}

void SqliteDatabase::set_checkpoint_on_close(bool enabled) {
  sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, enabled ? 0 : 1, nullptr);
}

absl::Status SqliteDatabase::RollBack() {
  // A failed statement may have rolled back already.
  if (sqlite3_get_autocommit(database_.get()) != 0) return absl::OkStatus();
  return Execute("ROLLBACK");
}

namespace {

constexpr char kWitnessMagic[] = "CWAYCOMM";
constexpr size_t kWitnessMagicBytes = 8;
constexpr size_t kCountedBytes = 16;
constexpr size_t kSlotBytes = 24;
using Slot = std::array<uint8_t, kSlotBytes>;

Slot Encode(int64_t commits) {
  Slot bytes;
  std::memcpy(bytes.data(), kWitnessMagic, kWitnessMagicBytes);
  std::memcpy(bytes.data() + kWitnessMagicBytes, &commits, sizeof(commits));
  const uint64_t checksum = Checksum64(std::span<const uint8_t>(bytes).first(kCountedBytes));
  std::memcpy(bytes.data() + kCountedBytes, &checksum, sizeof(checksum));
  return bytes;
}

size_t SlotOffset(int64_t commits) { return commits % 2 == 0 ? 0 : kSlotBytes; }

}  // namespace

absl::StatusOr<int64_t> CommitWitness::Read(FileSystem& file_system, const std::string& path) {
  const absl::StatusOr<std::string> content = file_system.ReadFile(path);
  if (absl::IsNotFound(content.status())) return 0;
  RETURN_IF_ERROR(content.status());
  if (content->empty()) return 0;
  int64_t largest = -1;
  for (const size_t offset : {size_t{0}, kSlotBytes}) {
    if (content->size() < offset + kSlotBytes) continue;
    int64_t commits = 0;
    std::memcpy(&commits, content->data() + offset + kWitnessMagicBytes, sizeof(commits));
    const Slot whole = Encode(commits);
    if (std::memcmp(whole.data(), content->data() + offset, kSlotBytes) != 0) continue;
    largest = std::max(largest, commits);
  }
  if (largest >= 0) return largest;
  return absl::DataLossError(absl::StrCat(
      path, " is damaged at offsets 0 and ", kSlotBytes,
      "; it only guards against lost commits: if everything else is whole, remove it"));
}

absl::StatusOr<std::unique_ptr<CommitWitness>> CommitWitness::Create(FileSystem& file_system,
                                                                     const std::string& path,
                                                                     int64_t commits) {
  std::array<uint8_t, 2 * kSlotBytes> content;
  for (const int64_t number : {commits - 1, commits}) {
    const Slot slot = Encode(number);
    std::copy(slot.begin(), slot.end(),
              content.begin() + static_cast<ptrdiff_t>(SlotOffset(number)));
  }
  RETURN_IF_ERROR(WriteFileAtomically(file_system, path, content));
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, file_system.OpenForAppend(path));
  return std::unique_ptr<CommitWitness>(new CommitWitness(std::move(file)));
}

absl::Status CommitWitness::Update(int64_t commits) {
  return file_->Overwrite(SlotOffset(commits), Encode(commits));
}

}  // namespace causeway::server
