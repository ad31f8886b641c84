#include "server/store/run_tables.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "nlohmann/json.hpp"

namespace causeway::server {
namespace {

using nlohmann::json;

template <typename T>
concept Integer = std::is_integral_v<T> || std::is_enum_v<T>;

constexpr char kChecksumColumn[] = "checksum";

// The bytes whose checksum is a row's.
class Canonical {
 public:
  explicit Canonical(absl::string_view table) { Text(table); }
  void Int(int64_t value) { Number('i', value); }
  void Real(double value) { Number('r', value); }
  void Text(absl::string_view value) {
    Number('t', static_cast<uint64_t>(value.size()));
    bytes_.append(value.data(), value.size());
  }
  uint64_t checksum() const { return Checksum64(absl::string_view(bytes_)); }
  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  void Number(char type, T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes_.push_back(type);
    bytes_.append(raw, sizeof(T));
  }
  std::string bytes_;
};

// Takes apart what Canonical wrote, from left to right: a statement's row, without the statement.
class PackedCells {
 public:
  explicit PackedCells(absl::string_view bytes) : left_(bytes) {}
  absl::StatusOr<int64_t> Int(int) { return Number<int64_t>('i'); }
  absl::StatusOr<double> Real(int) { return Number<double>('r'); }
  absl::StatusOr<std::string> Text(int) {
    ASSIGN_OR_RETURN(const absl::string_view text, View());
    return std::string(text);
  }
  absl::StatusOr<absl::string_view> View() {
    ASSIGN_OR_RETURN(const auto size, Number<uint64_t>('t'));
    if (size > left_.size()) return CutOff();
    const absl::string_view text = left_.substr(0, size);
    left_.remove_prefix(size);
    return text;
  }
  // Binds the next value, whatever its type.
  absl::Status BindNext(Statement& statement) {
    if (!left_.empty() && left_[0] == 'i') {
      ASSIGN_OR_RETURN(const int64_t value, Int(0));
      statement.Bind(value);
    } else if (!left_.empty() && left_[0] == 'r') {
      ASSIGN_OR_RETURN(const double value, Real(0));
      statement.Bind(value);
    } else {
      ASSIGN_OR_RETURN(const absl::string_view value, View());
      statement.Bind(value);
    }
    return absl::OkStatus();
  }
  bool done() const { return left_.empty(); }

 private:
  static absl::Status CutOff() {
    return absl::InvalidArgumentError("a packed row ends too early, or has another type");
  }
  template <typename T>
  absl::StatusOr<T> Number(char type) {
    if (left_.size() < 1 + sizeof(T) || left_[0] != type) return CutOff();
    T value;
    std::memcpy(&value, left_.data() + 1, sizeof(T));
    left_.remove_prefix(1 + sizeof(T));
    return value;
  }
  absl::string_view left_;
};

// Takes what is bound, and drops it.
struct NoCells {
  template <typename T>
  void Bind(const T&) {}
};

// Text that is no UTF-8 must not throw on its way to the disk.
std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string JoinHashes(const std::vector<uint64_t>& hashes) {
  std::vector<std::string> texts;
  for (const uint64_t hash : hashes) texts.push_back(HashToHex(hash));
  return Dump(texts);
}

// Names and types.
class Describe {
 public:
  template <Integer T>
  void operator()(const char* name, const T&) {
    Add(name, "INTEGER");
  }
  void operator()(const char* name, const double&) { Add(name, "REAL"); }
  template <typename T>
  requires(!Integer<T>) void operator()(const char* name, const T&) { Add(name, "TEXT"); }
  void Hash(const char* name, const uint64_t&) { Add(name, "TEXT"); }
  void Hashes(const char* name, const std::vector<uint64_t>&) { Add(name, "TEXT"); }

  std::vector<std::string> names;
  std::vector<std::string> definitions;

 private:
  void Add(const char* name, const char* type) {
    names.push_back(name);
    definitions.push_back(absl::StrCat(name, " ", type, " NOT NULL"));
  }
};

template <typename Row>
Describe DescribeTable() {
  Describe describe;
  const Row row{};
  Columns<Row>::Visit(describe, row);
  return describe;
}

// Binds each column to a statement, or to NoCells, and adds it to the checksum.
template <typename Cells>
class Bind {
 public:
  Bind(Cells& statement, absl::string_view table, int columns)
      : statement_(statement), canonical_(table), left_(columns) {}

  template <Integer T>
  void operator()(const char*, const T& value) {
    Int(static_cast<int64_t>(value));
  }
  void operator()(const char*, const double& value) {
    if (!Next()) return;
    const double positive_zero = value + 0.0;  // SQLite does not keep the sign of a zero.
    canonical_.Real(positive_zero);
    statement_.Bind(positive_zero);
  }
  void operator()(const char*, const std::string& value) { Text(value); }
  void operator()(const char*, const std::vector<std::string>& value) { Text(Dump(value)); }
  void operator()(const char* name, const std::vector<double>& value) {
    for (const double number : value) {
      if (!std::isfinite(number)) {
        status_ = absl::InvalidArgumentError(absl::StrCat(name, " has a value that is not finite"));
      }
    }
    Text(Dump(value));
  }
  void operator()(const char*, const MemberRecord& value) { Text(Dump(AccountToJson(value))); }
  void operator()(const char*, const Draws& value) { Text(FormatDraws(value)); }
  void operator()(const char*, const v1::RunConfig& value) { Text(FormatRunConfig(value)); }
  void Hash(const char*, const uint64_t& value) { Text(HashToHex(value)); }
  void Hashes(const char*, const std::vector<uint64_t>& value) { Text(JoinHashes(value)); }

  uint64_t checksum() const { return canonical_.checksum(); }
  const std::string& bytes() const { return canonical_.bytes(); }
  const absl::Status& status() const { return status_; }

 private:
  bool Next() { return left_-- > 0; }
  void Int(int64_t value) {
    if (!Next()) return;
    canonical_.Int(value);
    statement_.Bind(value);
  }
  void Text(absl::string_view value) {
    if (!Next()) return;
    canonical_.Text(value);
    statement_.Bind(value);
  }

  Cells& statement_;
  Canonical canonical_;
  int left_;
  absl::Status status_;
};

// Reads each column of a statement's or a packed row. After the first error the rest is left as it
// is.
template <typename Cells>
class Read {
 public:
  Read(Cells& statement, absl::string_view table) : statement_(statement), canonical_(table) {}

  template <Integer T>
  void operator()(const char* name, T& value) {
    const int64_t raw = Int();
    value = static_cast<T>(raw);
    if (static_cast<int64_t>(value) != raw) Fail(name);
  }
  void operator()(const char*, double& value) {
    value = Take(statement_.Real(column_++));
    canonical_.Real(value);
  }
  void operator()(const char*, std::string& value) { value = Text(); }
  void operator()(const char* name, std::vector<std::string>& value) {
    for (const json& element : Array(name)) {
      if (!element.is_string()) return Fail(name);
      value.push_back(element.get<std::string>());
    }
  }
  void operator()(const char* name, std::vector<double>& value) {
    for (const json& element : Array(name)) {
      if (!element.is_number()) return Fail(name);
      value.push_back(element.get<double>());
    }
  }
  void operator()(const char* name, MemberRecord& value) {
    const json account = json::parse(Text(), nullptr, /*allow_exceptions=*/false);
    if (account.is_discarded()) return Fail(name);
    AccountFromJson(account, value);
  }
  void operator()(const char* name, Draws& value) {
    absl::StatusOr<Draws> draws = ParseDraws(Text());
    if (!draws.ok()) return Fail(name);
    value = *std::move(draws);
  }
  void operator()(const char* name, v1::RunConfig& value) {
    const absl::StatusOr<v1::RunConfig> config = ParseRunConfig(Text(), name);
    if (!config.ok()) return Fail(name);
    value = *config;
  }
  void Hash(const char* name, uint64_t& value) {
    if (!absl::SimpleHexAtoi(Text(), &value)) Fail(name);
  }
  void Hashes(const char* name, std::vector<uint64_t>& value) {
    for (const json& element : Array(name)) {
      if (!element.is_string() ||
          !absl::SimpleHexAtoi(element.get<std::string>(), &value.emplace_back())) {
        return Fail(name);
      }
    }
  }

  // The checksum column, after all others.
  absl::StatusOr<uint64_t> Finish() {
    const auto expected = static_cast<uint64_t>(Take(statement_.Int(column_)));
    RETURN_IF_ERROR(status_);
    if (canonical_.checksum() != expected) {
      return absl::DataLossError("a row's checksum differs from its content");
    }
    return expected;
  }
  const absl::Status& status() const { return status_; }
  const std::string& bytes() const { return canonical_.bytes(); }

 private:
  template <typename T>
  T Take(absl::StatusOr<T> value) {
    if (value.ok()) return *std::move(value);
    if (status_.ok()) status_ = value.status();
    return T();
  }
  int64_t Int() {
    const int64_t value = Take(statement_.Int(column_++));
    canonical_.Int(value);
    return value;
  }
  std::string Text() {
    std::string value = Take(statement_.Text(column_++));
    canonical_.Text(value);
    return value;
  }
  json Array(const char* name) {
    json value = json::parse(Text(), nullptr, /*allow_exceptions=*/false);
    if (value.is_array()) return value;
    Fail(name);
    return json::array();
  }
  void Fail(const char* name) {
    if (status_.ok()) {
      status_ = absl::DataLossError(absl::StrCat("column ", name, " of a row makes no sense"));
    }
  }

  Cells& statement_;
  Canonical canonical_;
  int column_ = 0;
  absl::Status status_;
};

template <typename Row>
std::string CreateTable() {
  const Describe table = DescribeTable<Row>();
  constexpr int kKey = Columns<Row>::kKey;
  std::string sql = absl::StrCat("CREATE TABLE ", Columns<Row>::kName, " (",
                                 absl::StrJoin(table.definitions, ", "), ", ", kChecksumColumn,
                                 " INTEGER NOT NULL");
  if (kKey > 0) {
    const std::vector<std::string> key(table.names.begin(), table.names.begin() + kKey);
    absl::StrAppend(&sql, ", PRIMARY KEY (", absl::StrJoin(key, ", "), ")) WITHOUT ROWID");
  } else {
    absl::StrAppend(&sql, ")");
  }
  return sql;
}

// " WHERE a = ? AND b = ?", empty for a table of one row.
template <typename Row>
std::string WhereKey() {
  const Describe table = DescribeTable<Row>();
  std::string sql;
  for (int i = 0; i < Columns<Row>::kKey; ++i) {
    absl::StrAppend(&sql, i == 0 ? " WHERE " : " AND ", table.names[static_cast<size_t>(i)],
                    " = ?");
  }
  return sql;
}

template <typename Row>
absl::StatusOr<Statement> PrepareWithKey(SqliteDatabase& database, const std::string& sql,
                                         const Row& row) {
  ASSIGN_OR_RETURN(Statement statement, database.Prepare(sql + WhereKey<Row>()));
  Bind bind(statement, "", Columns<Row>::kKey);
  Columns<Row>::Visit(bind, row);
  return statement;
}

}  // namespace

template <typename Row>
absl::StatusOr<std::string> PackRow(const Row& row) {
  NoCells cells;
  Bind bind(cells, Columns<Row>::kName, std::numeric_limits<int>::max());
  Columns<Row>::Visit(bind, row);
  RETURN_IF_ERROR(bind.status());
  return bind.bytes();
}

template <typename Row>
absl::StatusOr<Row> UnpackRow(absl::string_view packed) {
  PackedCells cells(packed);
  ASSIGN_OR_RETURN(const absl::string_view table, cells.View());
  if (table != Columns<Row>::kName) {
    return absl::InvalidArgumentError(absl::StrCat("a packed row must be of the table ",
                                                   Columns<Row>::kName, "; it is of another"));
  }
  Row row;
  Read read(cells, table);
  Columns<Row>::Visit(read, row);
  if (!read.status().ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packed row of ", Columns<Row>::kName, ": ", read.status().message()));
  }
  if (!cells.done()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packed row of ", Columns<Row>::kName, " has more than its columns"));
  }
  return row;
}

absl::string_view TableOfPacked(absl::string_view packed) {
  const absl::StatusOr<absl::string_view> table = PackedCells(packed).View();
  return table.ok() ? *table : absl::string_view();
}

std::vector<std::string> CreateTableStatements() {
  return {CreateTable<CommitRow>(),     CreateTable<StoredContribution>(),
          CreateTable<MemberRecord>(),  CreateTable<StoredRound>(),
          CreateTable<RunIdentity>(),   CreateTable<RunState>(),
          CreateTable<StoredSnapshot>()};
}

// The statement that writes a row, its checksum last.
template <typename Row>
absl::StatusOr<Statement> PrepareWrite(SqliteDatabase& database, const Row& row, bool replace) {
  static const auto* const table = new Describe(DescribeTable<Row>());
  static const auto* const values = new std::string(absl::StrCat(
      " INTO ", Columns<Row>::kName, " (", absl::StrJoin(table->names, ", "), ", ", kChecksumColumn,
      ") VALUES (", absl::StrJoin(std::vector<std::string>(table->names.size(), "?"), ", "),
      ", ?)"));
  if (replace && Columns<Row>::kKey == 0) RETURN_IF_ERROR(DeleteRow(database, row));
  return database.Prepare((replace ? "INSERT OR REPLACE" : "INSERT") + *values);
}

template <typename Row>
absl::StatusOr<uint64_t> WritePackedRow(SqliteDatabase& database, absl::string_view packed,
                                        bool replace) {
  ASSIGN_OR_RETURN(const Row row, UnpackRow<Row>(packed));
  ASSIGN_OR_RETURN(Statement statement, PrepareWrite(database, row, replace));
  PackedCells cells(packed);
  RETURN_IF_ERROR(cells.View().status());  // The table's name.
  while (!cells.done()) RETURN_IF_ERROR(cells.BindNext(statement));
  const uint64_t checksum = Checksum64(packed);
  statement.Bind(static_cast<int64_t>(checksum));
  RETURN_IF_ERROR(statement.Run());
  return checksum;
}

template <typename Row>
absl::StatusOr<uint64_t> WriteRow(SqliteDatabase& database, const Row& row, bool replace) {
  ASSIGN_OR_RETURN(Statement statement, PrepareWrite(database, row, replace));
  Bind bind(statement, Columns<Row>::kName, std::numeric_limits<int>::max());
  Columns<Row>::Visit(bind, row);
  RETURN_IF_ERROR(bind.status());
  statement.Bind(static_cast<int64_t>(bind.checksum()));
  RETURN_IF_ERROR(statement.Run());
  return bind.checksum();
}

template <typename Row>
absl::StatusOr<uint64_t> FindRowChecksum(SqliteDatabase& database, const Row& row) {
  const std::string sql = absl::StrCat("SELECT ", kChecksumColumn, " FROM ", Columns<Row>::kName);
  ASSIGN_OR_RETURN(Statement statement, PrepareWithKey(database, sql, row));
  ASSIGN_OR_RETURN(const bool found, statement.Step());
  if (!found) return 0;
  ASSIGN_OR_RETURN(const int64_t checksum, statement.Int(0));
  return static_cast<uint64_t>(checksum);
}

template <typename Row>
absl::Status DeleteRow(SqliteDatabase& database, const Row& row) {
  ASSIGN_OR_RETURN(
      Statement statement,
      PrepareWithKey(database, absl::StrCat("DELETE FROM ", Columns<Row>::kName), row));
  return statement.Run();
}

template <typename Row>
absl::StatusOr<std::vector<Row>> ReadRows(SqliteDatabase& database, const std::string& where,
                                          uint64_t* digest, std::vector<std::string>* packed) {
  const Describe table = DescribeTable<Row>();
  std::string sql = absl::StrCat("SELECT ", absl::StrJoin(table.names, ", "), ", ", kChecksumColumn,
                                 " FROM ", Columns<Row>::kName);
  if (!where.empty()) absl::StrAppend(&sql, " WHERE ", where);
  if (Columns<Row>::kKey > 0) {
    const std::vector<std::string> key(table.names.begin(),
                                       table.names.begin() + Columns<Row>::kKey);
    absl::StrAppend(&sql, " ORDER BY ", absl::StrJoin(key, ", "));
  }
  ASSIGN_OR_RETURN(Statement statement, database.Prepare(sql));
  std::vector<Row> rows;
  for (;;) {
    ASSIGN_OR_RETURN(const bool found, statement.Step());
    if (!found) return rows;
    Read read(statement, Columns<Row>::kName);
    Columns<Row>::Visit(read, rows.emplace_back());
    const absl::StatusOr<uint64_t> checksum = read.Finish();
    if (!checksum.ok()) {
      return absl::DataLossError(absl::StrCat(database.path(), " is damaged: table ",
                                              Columns<Row>::kName, ", row ", rows.size(), ": ",
                                              checksum.status().message()));
    }
    if (digest != nullptr) *digest += *checksum;
    if (packed != nullptr) packed->push_back(read.bytes());
  }
}

template <typename Row>
absl::StatusOr<uint64_t> SumOfChecksums(SqliteDatabase& database, const std::string& where) {
  // In halves: SQLite's sum() refuses what is beyond 64 bits with a sign.
  ASSIGN_OR_RETURN(Statement statement,
                   database.Prepare(absl::StrCat("SELECT coalesce(sum(", kChecksumColumn,
                                                 " & 4294967295), 0), coalesce(sum((",
                                                 kChecksumColumn, " >> 32) & 4294967295), 0) FROM ",
                                                 Columns<Row>::kName, " WHERE ", where)));
  ASSIGN_OR_RETURN(const bool found, statement.Step());
  if (!found) return 0;
  ASSIGN_OR_RETURN(const int64_t low, statement.Int(0));
  ASSIGN_OR_RETURN(const int64_t high, statement.Int(1));
  return static_cast<uint64_t>(low) + (static_cast<uint64_t>(high) << 32);
}

#define CAUSEWAY_TABLE(Row)                                                               \
  template absl::StatusOr<uint64_t> WriteRow(SqliteDatabase&, const Row&, bool);          \
  template absl::StatusOr<uint64_t> FindRowChecksum(SqliteDatabase&, const Row&);         \
  template absl::Status DeleteRow(SqliteDatabase&, const Row&);                           \
  template absl::StatusOr<std::vector<Row>> ReadRows(SqliteDatabase&, const std::string&, \
                                                     uint64_t*, std::vector<std::string>*)
CAUSEWAY_TABLE(CommitRow);
CAUSEWAY_TABLE(RunIdentity);
CAUSEWAY_TABLE(RunState);
CAUSEWAY_TABLE(MemberRecord);
CAUSEWAY_TABLE(StoredContribution);
CAUSEWAY_TABLE(StoredRound);
CAUSEWAY_TABLE(StoredSnapshot);
#undef CAUSEWAY_TABLE
#define CAUSEWAY_PACKED(Row)                                      \
  template absl::StatusOr<std::string> PackRow(const Row&);       \
  template absl::StatusOr<Row> UnpackRow<Row>(absl::string_view); \
  template absl::StatusOr<uint64_t> WritePackedRow<Row>(SqliteDatabase&, absl::string_view, bool)
CAUSEWAY_PACKED(RunIdentity);
CAUSEWAY_PACKED(RunState);
CAUSEWAY_PACKED(MemberRecord);
CAUSEWAY_PACKED(StoredContribution);
CAUSEWAY_PACKED(StoredRound);
CAUSEWAY_PACKED(StoredSnapshot);
#undef CAUSEWAY_PACKED
template absl::StatusOr<uint64_t> SumOfChecksums<StoredContribution>(SqliteDatabase&,
                                                                     const std::string&);

}  // namespace causeway::server
