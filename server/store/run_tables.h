// The tables of a run's database: which columns hold which fields, and the checksum of each row.
//
// Columns<Row> lists the columns of a table once; creating the table, writing, reading and
// checksumming all follow from that list. A row's checksum is XXH3-64 over the table's name and,
// column by column, a type byte ('i', 'r', 't'), for text its length in 8 bytes, and the value in
// little endian: 8 bytes of a number, or the text. It stands in the last column.
#ifndef CAUSEWAY_SERVER_STORE_RUN_TABLES_H_
#define CAUSEWAY_SERVER_STORE_RUN_TABLES_H_

#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/sqlite_database.h"
#include "server/store/store.h"

namespace causeway::server {

// A file of the run directory that a row names. Empty name: it was removed on purpose.
struct BlobRef {
  std::string file;  // "deltas/...", relative to the run directory.
  int64_t bytes = 0;
  bool kept() const { return !file.empty(); }
};

// `commit`: the number of the commit that told of it.
struct StoredContribution {
  ContributionRecord record;
  BlobRef delta;
  int64_t commit = 0;
};

struct StoredRound {
  RoundRecord record;
  BlobRef answer;
  int64_t commit = 0;
};

struct StoredSnapshot {
  int fragment = 0;
  int64_t version = 0;
  uint64_t published_hash = 0;
  BlobRef state;
  int64_t commit = 0;
};

// The row that every commit rewrites.
struct CommitRow {
  int64_t commits = 0;
  // The sum, modulo 2^64, of the checksums of all rows of the other tables: no row can be missing,
  // be there twice, or be an older one.
  uint64_t digest = 0;
};

// kName; kKey, the number of leading columns that identify a row (0: there is one row); and Visit,
// which calls `column(name, field)` for each column, or `column.Hash` where text of 16 hexadecimal
// digits reads better than an integer.
template <typename Row>
struct Columns;

template <>
struct Columns<CommitRow> {
  static constexpr char kName[] = "commits";
  static constexpr int kKey = 0;
  template <typename Column, typename Row>
  static void Visit(Column& column, Row& row) {
    column("commits", row.commits);
    column.Hash("digest", row.digest);
  }
};

template <>
struct Columns<RunIdentity> {
  static constexpr char kName[] = "run";
  static constexpr int kKey = 0;
  template <typename Column, typename Row>
  static void Visit(Column& column, Row& row) {
    column("run_id", row.run_id);
    column("config", row.config);
    column.Hash("config_hash", row.config_hash);
    column.Hash("plan_hash", row.plan_hash);
    column.Hashes("initial_hashes", row.initial_hashes);
  }
};

template <>
struct Columns<RunState> {
  static constexpr char kName[] = "run_state";
  static constexpr int kKey = 0;
  template <typename Column, typename Row>
  static void Visit(Column& column, Row& row) {
    column("started", row.started);
    column("started_unix_s", row.started_unix_s);
    column("paused", row.paused);
    column("pause_reason", row.pause_reason);
    column("stop_step", row.stop_step);
    column("stop_tokens", row.stop_tokens);
    column("finish_recorded", row.finish_recorded);
    column.Hash("data_fingerprint", row.data_fingerprint);
    column("hash_checks", row.hash_checks);
    column("hash_mismatches", row.hash_mismatches);
  }
};

template <>
struct Columns<MemberRecord> {
  static constexpr char kName[] = "members";
  static constexpr int kKey = 1;
  template <typename Column, typename Row>
  static void Visit(Column& column, Row& row) {
    column("worker_id", row.member.id);
    column("state", row.member.state);
    column("incarnation", row.member.incarnation);
    column("data_slot", row.member.data_slot);
    column("own_data", row.member.own_data);
    column.Hash("process_nonce", row.member.process_nonce);
    column("active_from_step", row.member.active_from_step);
    column("was_ready", row.member.was_ready);
    column("step", row.member.step);
    column("ordered_pace_milli", row.member.ordered_pace_milli);
    column("ordered_from_step", row.member.ordered_from_step);
    column("account", row);
  }
};

template <>
struct Columns<StoredContribution> {
  static constexpr char kName[] = "contributions";
  static constexpr int kKey = 3;
  template <typename Column, typename Row>
  static void Visit(Column& column, Row& row) {
    column("fragment", row.record.fragment);
    column("round", row.record.round);
    column("worker_id", row.record.worker_id);
    column("incarnation", row.record.incarnation);
    column("codec", row.record.codec);
    column("bytes", row.record.bytes);
    column.Hash("object_hash", row.record.object_hash);
    column("tokens", row.record.tokens);
    column("draws", row.record.draws);
    column("send_step", row.record.send_step);
    column("unix_s", row.record.unix_s);
    column("norm", row.record.norm);
    column("quarantined", row.record.quarantined);
    column("delta", row.delta.file);
    column("delta_file_bytes", row.delta.bytes);
    column("commit_number", row.commit);
  }
};

template <>
struct Columns<StoredRound> {
  static constexpr char kName[] = "rounds";
  static constexpr int kKey = 2;
  template <typename Column, typename Row>
  static void Visit(Column& column, Row& row) {
    column("fragment", row.record.fragment);
    column("round", row.record.round);
    column("contributors", row.record.contributors);
    column("weights", row.record.weights);
    column("send_step", row.record.send_step);
    column("first_unix_s", row.record.first_unix_s);
    column("closed_unix_s", row.record.closed_unix_s);
    column("published_unix_s", row.record.published_unix_s);
    column("bytes_in", row.record.bytes_in);
    column("bytes_out", row.record.bytes_out);
    column.Hash("published_hash", row.record.published_hash);
    column.Hash("answer_hash", row.record.answer_hash);
    column("reason", row.record.reason);
    column("answer", row.answer.file);
    column("answer_file_bytes", row.answer.bytes);
    column("commit_number", row.commit);
  }
};

template <>
struct Columns<StoredSnapshot> {
  static constexpr char kName[] = "snapshots";
  static constexpr int kKey = 2;
  template <typename Column, typename Row>
  static void Visit(Column& column, Row& row) {
    column("fragment", row.fragment);
    column("version", row.version);
    column.Hash("published_hash", row.published_hash);
    column("state", row.state.file);
    column("state_file_bytes", row.state.bytes);
    column("commit_number", row.commit);
  }
};

// A row as bytes: what its checksum is taken of (docs/formats.md). INVALID_ARGUMENT for a value
// that no table takes.
template <typename Row>
absl::StatusOr<std::string> PackRow(const Row& row);

// INVALID_ARGUMENT for anything that PackRow does not write of this table.
template <typename Row>
absl::StatusOr<Row> UnpackRow(absl::string_view packed);

// The name of the table that a packed row is of; empty if it has none.
absl::string_view TableOfPacked(absl::string_view packed);

// As WriteRow, for a packed row whose values stay as they are, also where another release would
// write them otherwise. INVALID_ARGUMENT as UnpackRow.
template <typename Row>
absl::StatusOr<uint64_t> WritePackedRow(SqliteDatabase& database, absl::string_view packed,
                                        bool replace);

// "CREATE TABLE ..." of every table, in order of their names, as sqlite_schema must hold them.
std::vector<std::string> CreateTableStatements();

// The functions below are there for every Row that has Columns.

// Inserts the row; with `replace`, over one of the same key. Returns its checksum.
template <typename Row>
absl::StatusOr<uint64_t> WriteRow(SqliteDatabase& database, const Row& row, bool replace);

// The checksum column of the row with the key of `row`; 0 if there is none.
template <typename Row>
absl::StatusOr<uint64_t> FindRowChecksum(SqliteDatabase& database, const Row& row);

template <typename Row>
absl::Status DeleteRow(SqliteDatabase& database, const Row& row);

// The rows that satisfy `where` (empty: all), in order of their keys. DATA_LOSS if a row's
// checksum differs. The sum of the rows' checksums is added to `digest` unless it is null, each
// row, packed as it stands there, to `packed`.
template <typename Row>
absl::StatusOr<std::vector<Row>> ReadRows(SqliteDatabase& database, const std::string& where,
                                          uint64_t* digest,
                                          std::vector<std::string>* packed = nullptr);

// The sum, modulo 2^64, of the checksums that stand in the rows which satisfy `where`. Whether they
// are those of the rows is not looked at.
template <typename Row>
absl::StatusOr<uint64_t> SumOfChecksums(SqliteDatabase& database, const std::string& where);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_RUN_TABLES_H_
