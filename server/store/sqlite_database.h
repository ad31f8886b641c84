// SQLite with statuses and lifetimes: only what the store needs of it.
//
//   ASSIGN_OR_RETURN(const auto database, SqliteDatabase::Open(path, {}));
//   ASSIGN_OR_RETURN(Statement insert, database->Prepare("INSERT INTO t VALUES (?, ?)"));
//   insert.Bind(int64_t{7}).Bind("seven");
//   RETURN_IF_ERROR(insert.Run());
//
// Errors name the file, what was tried and SQLite's reason: RESOURCE_EXHAUSTED (disk full),
// DATA_LOSS (the file is damaged), ALREADY_EXISTS (a constraint), FAILED_PRECONDITION (another
// process has it open), PERMISSION_DENIED, INTERNAL (anything else, input and output above all).
//
// Not thread-safe: one thread at a time uses a database and its statements.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"

namespace causeway::server {

// One prepared statement. Movable; ends before its database does. Parameters are bound from left
// to right; a failed Bind is reported by the next Step.
class Statement {
 public:
  Statement& Bind(int64_t value);
  Statement& Bind(absl::string_view value);      // As text.
  Statement& BindBlob(absl::string_view value);  // Its bytes stay until the statement ends.

  // True: a row is there to be read. False: done.
  absl::StatusOr<bool> Step();
  // For statements without result rows.
  absl::Status Run() { return Step().status(); }

  // Reads a column of the present row. The type must be exactly that one: DATA_LOSS otherwise.
  absl::StatusOr<int64_t> Int(int column) const;
  absl::StatusOr<std::string> Text(int column) const;
  // Valid until the next Step.
  absl::StatusOr<absl::string_view> Blob(int column) const;

 private:
  friend class SqliteDatabase;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  Statement(sqlite3_stmt* statement, std::string path) : statement_(statement), path_(path) {}
  void Note(int code);
  absl::Status WrongType(int column, const char* expected) const;

  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  std::string path_;
  int bound_ = 0;
  absl::Status status_;
};

class SqliteDatabase {
 public:
  struct Options {
    std::string vfs = {};  // Name given to sqlite3_vfs_register; empty: the system's.
    bool create = false;
  };
  static absl::StatusOr<std::unique_ptr<SqliteDatabase>> Open(const std::string& path,
                                                              const Options& options);

  absl::StatusOr<Statement> Prepare(const std::string& sql);
  // One or several statements; their rows are dropped.
  absl::Status Execute(const std::string& sql);
  // The only value of the only row, as text or as a number.
  absl::StatusOr<std::string> Text(const std::string& sql);
  absl::StatusOr<int64_t> Int(const std::string& sql);

  // Pages in the write-ahead log after the last commit. SQLite never moves them by itself, because
  // it would hide a failed sync.
  int64_t log_pages() const { return *log_pages_; }
  // Moves what the write-ahead log holds into the database file, syncing both as configured.
  // Pages that a reader still needs stay; with `truncate`, all are moved and the log is emptied.
  absl::Status Checkpoint(bool truncate);
  // Leaves everything as before "BEGIN". After an error of it nothing is known.
  absl::Status RollBack();
  // Whether closing the database moves and removes the log, too. True unless set.
  void set_checkpoint_on_close(bool enabled);

  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
  };
  SqliteDatabase(sqlite3* database, std::string path);
  absl::Status Status(int code, absl::string_view what) const;
  // At the first row of the answer. DATA_LOSS if there is none.
  absl::StatusOr<Statement> Ask(const std::string& sql);

  // Written by SQLite's hook; at an address that does not move, and outlives the handle.
  const std::unique_ptr<int64_t> log_pages_;
  std::unique_ptr<sqlite3, Close> database_;
  std::string path_;
};

// COMMITS: how many commits the database had, kept beside it.
//
// SQLite's log ends, without a word, at the first frame that is damaged: the commits after it are
// gone. The witness is written after each commit and before anybody is told, and not synced, so it
// may be behind the database, never ahead; a database that knows of fewer commits has lost some.
//
// Two slots of 24 bytes, little endian: "CWAYCOMM", the number, XXH3-64 of those 16 bytes. Even
// numbers go to the first slot and odd ones to the second, in place, so that a write that is cut
// off leaves the number before.

// Not thread-safe.
class CommitWitness {
 public:
  // The larger number in the file; 0 if it is absent or empty. DATA_LOSS, with the offset, if both
  // slots are damaged.
  static absl::StatusOr<int64_t> Read(FileSystem& file_system, const std::string& path);

  // Replaces the file durably and keeps it open.
  static absl::StatusOr<std::unique_ptr<CommitWitness>> Create(FileSystem& file_system,
                                                               const std::string& path,
                                                               int64_t commits);
  absl::Status Update(int64_t commits);

 private:
  explicit CommitWitness(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  const std::unique_ptr<WritableFile> file_;
};

}  // namespace causeway::server
