#include "server/store/run_directory_store.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/crash_point.h"
#include "common/base/forwarding_file_system.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

std::string WhereRound(int fragment, int64_t round) {
  return absl::StrCat("fragment = ", fragment, " AND round = ", round);
}

// NOT_FOUND unless the folder holds a run.
absl::Status CheckHoldsRun(FileSystem& file_system, const std::string& folder) {
  if (!file_system.IsFolder(folder)) {
    return absl::NotFoundError(absl::StrCat("there is no folder ", folder));
  }
  RETURN_IF_ERROR(CheckRunFolder(file_system, folder));
  if (file_system.Exists(JoinPath(folder, kDatabaseFile))) return absl::OkStatus();
  RETURN_IF_ERROR(CheckNoTraces(file_system, folder));
  return absl::NotFoundError(absl::StrCat(folder, " holds no run: there is no ", kDatabaseFile));
}

// An existing folder, too, may be one whose creation was interrupted before it was durable.
absl::Status MakeFolder(FileSystem& file_system, const std::string& folder) {
  if (!file_system.IsFolder(folder)) {
    return Annotate(CreateFoldersDurably(file_system, folder), folder);
  }
  if (file_system.Exists(JoinPath(folder, kDatabaseFile))) return absl::OkStatus();
  const absl::Status synced = file_system.SyncFolder(ParentFolder(folder));
  // Then it was not made by this program.
  return absl::IsPermissionDenied(synced) ? absl::OkStatus() : Annotate(synced, folder);
}

// A file may go between the reading of its row and its own: its damage counts only if the row that
// `find` gives, none if it names no file, is there afterwards.
template <typename Find, typename Read>
auto ReadNamed(Find find, Read read, const std::string& what) -> decltype(read(**find())) {
  auto row = find();
  RETURN_IF_ERROR(row.status());
  if (row->has_value()) {
    auto content = read(**row);
    if (content.ok()) return content;
    row = find();
    if (!row.ok() || row->has_value()) return content;
  }
  return absl::NotFoundError(what);
}

// Former releases spread a run over several folders: 0 is the hash of a fragment that is in
// another.
absl::Status CheckHasAllFragments(const std::string& folder, const RunIdentity& identity) {
  const auto& hashes = identity.initial_hashes;
  const auto elsewhere = std::count(hashes.begin(), hashes.end(), 0u);
  if (elsewhere == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      folder, " has ", std::ssize(hashes) - elsewhere, " of the ", hashes.size(),
      " fragments of run ", identity.run_id,
      ": it was served with --shards, which this release does not know. Go on with the release "
      "that began it, or save its parameters with that one (causewayctl export "
      "--format=parameters) and begin a run with them (--initial)"));
}

}  // namespace

uint64_t RunDirectoryStore::SpareBytesFor(uint64_t largest_fragment) {
  constexpr uint64_t kBytes = 5 * sizeof(float);
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  if (largest_fragment > (kMost - kLeastSpareBytes) / kBytes) return kMost;
  return kLeastSpareBytes + kBytes * largest_fragment;
}

RunDirectoryStore::RunDirectoryStore(std::unique_ptr<FileSystem> own_file_system,
                                     FileSystem& file_system, std::string folder,
                                     const Options& options, std::unique_ptr<FolderLock> lock)
    : own_file_system_(std::move(own_file_system)),
      file_system_(file_system),
      folder_(std::move(folder)),
      options_(options),
      spare_bytes_(options.spare_bytes),
      lock_(std::move(lock)),
      blobs_(file_system, folder_) {}

absl::StatusOr<std::unique_ptr<RunDirectoryStore>> RunDirectoryStore::Open(FileSystem& file_system,
                                                                           std::string folder,
                                                                           const Options& options) {
  if (folder.empty()) return absl::InvalidArgumentError("the run directory has no name");
  if (options.snapshots_kept < 1) {
    return absl::InvalidArgumentError("at least one snapshot of each fragment must be kept");
  }
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  std::unique_ptr<FileSystem> unsynced;
  if (!options.durable) unsynced = std::make_unique<UnsyncedFileSystem>(file_system);
  FileSystem& used = unsynced != nullptr ? *unsynced : file_system;
  std::unique_ptr<FolderLock> lock;
  if (options.read_only) {
    RETURN_IF_ERROR(CheckHoldsRun(used, folder));
    ASSIGN_OR_RETURN(const std::string owner, used.LockOwner(folder));
    if (!owner.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(folder, " belongs to another process (pid ", owner,
                       "): wait until it has stopped, or copy the folder (docs/formats.md)"));
    }
  } else {
    RETURN_IF_ERROR(MakeFolder(used, folder));
    RETURN_IF_ERROR(CheckRunFolder(used, folder));
    ASSIGN_OR_RETURN(lock, used.Lock(folder));
  }
  return std::unique_ptr<RunDirectoryStore>(
      new RunDirectoryStore(std::move(unsynced), used, folder, options, std::move(lock)));
}

RunDatabase::Options RunDirectoryStore::DatabaseOptions() const {
  return {.vfs = options_.sqlite_vfs, .durable = options_.durable, .log_pages = options_.log_pages};
}

absl::Status RunDirectoryStore::Note(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  return NoteLocked(std::move(status));
}

absl::Status RunDirectoryStore::NoteLocked(absl::Status status) {
  if (status.ok() || ChangedNothing(status) || !failure_.ok()) return status;
  failure_ = status;
  // The next opening finds out what the disk holds.
  if (database_ != nullptr) database_->ForbidChanges();
  return status;
}

absl::StatusOr<int64_t> RunDirectoryStore::Running() {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  if (database_ == nullptr) return absl::FailedPreconditionError("the run has not begun");
  return database_->commits();
}

absl::StatusOr<std::optional<RecoveredRun>> RunDirectoryStore::Recover() {
  absl::StatusOr<std::optional<RecoveredRun>> run;
  {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    if (recovered_) return absl::FailedPreconditionError("Recover was called before");
    run = RecoverLocked();
    recovered_ = run.ok();
    if (!run.ok()) {
      database_ = nullptr;
      failure_ = run.status();
    }
  }
  return run;
}

absl::StatusOr<std::optional<RecoveredRun>> RunDirectoryStore::RecoverLocked() {
  if (!file_system_.Exists(Path(kDatabaseFile))) {
    RETURN_IF_ERROR(CheckNoTraces(file_system_, folder_));
    RETURN_IF_ERROR(RemoveOrphans(file_system_, folder_, {}));
    // An abandoned run left it.
    if (file_system_.Exists(Path(kDatabaseLogFile))) {
      RETURN_IF_ERROR(file_system_.Remove(Path(kDatabaseLogFile)));
      RETURN_IF_ERROR(file_system_.SyncFolder(folder_));
    }
    RETURN_IF_ERROR(EndCopy());
    return std::nullopt;
  }
  if (options_.read_only) {
    ASSIGN_OR_RETURN(copy_, DatabaseCopy::Make(file_system_, folder_));
    ASSIGN_OR_RETURN(database_, copy_->Open());
  } else {
    ASSIGN_OR_RETURN(database_, RunDatabase::Open(Path(kDatabaseFile), DatabaseOptions()));
  }
  absl::StatusOr<DatabaseContent> loaded = database_->Load(options_.recovered_rounds);
  if (!loaded.ok()) return copy_ != nullptr ? copy_->Named(loaded.status()) : loaded.status();
  DatabaseContent content = *std::move(loaded);
  RETURN_IF_ERROR(CheckHasAllFragments(folder_, content.identity));
  std::vector<std::string> orphans;
  ASSIGN_OR_RETURN(const FolderTraces traces, ReadTraces(file_system_, folder_));
  RETURN_IF_ERROR(CheckBlobs(file_system_, folder_, traces, content, database_->commits(),
                             /*in_use=*/false, orphans));
  Remember(content);
  if (!options_.read_only) {
    CrashPoint("during_recovery");
    RETURN_IF_ERROR(RemoveOrphans(file_system_, folder_, orphans));
    RETURN_IF_ERROR(EndCopy());
    RETURN_IF_ERROR(Continue(content.rounds));
  }

  RecoveredRun run;
  run.identity = std::move(content.identity);
  run.state = std::move(content.state);
  run.members = std::move(content.members);
  for (StoredRound& row : content.rounds) run.rounds.push_back(std::move(row.record));
  for (StoredContribution& row : content.contributions) {
    run.contributions.push_back(std::move(row.record));
  }
  for (const StoredSnapshot& row : content.snapshots) {
    run.snapshots.push_back({.fragment = row.fragment, .version = row.version});
  }
  return run;
}

absl::Status RunDirectoryStore::Continue(const std::vector<StoredRound>& rounds) {
  RETURN_IF_ERROR(blobs_.CreateFolders());
  ASSIGN_OR_RETURN(rounds_, RoundLog::Open(file_system_, Path(kRoundsFile), rounds));
  ASSIGN_OR_RETURN(witness_,
                   CommitWitness::Create(file_system_, Path(kWitnessFile), database_->commits()));
  database_->AllowChanges();
  return absl::OkStatus();
}

absl::Status RunDirectoryStore::BeginRun(const RunIdentity& identity) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  if (!recovered_ || database_ != nullptr) {
    return absl::FailedPreconditionError("a run begins after a Recover that found none");
  }
  failure_ = BeginRunLocked(identity);
  return failure_;
}

absl::Status RunDirectoryStore::BeginRunLocked(const RunIdentity& identity) {
  RETURN_IF_ERROR(WriteFileAtomically(file_system_, Path(kConfigFile),
                                      absl::string_view(FormatRunConfig(identity.config))));
  const std::string path = Path(kDatabaseFile);
  const std::string temporary = path + ".tmp";
  RETURN_IF_ERROR(RunDatabase::Create(temporary, DatabaseOptions(), identity));
  {
    // SQLite hides some failures, as of a change of its journal mode.
    ASSIGN_OR_RETURN(const auto written, RunDatabase::Open(temporary, DatabaseOptions()));
    RETURN_IF_ERROR(written->Load().status());
    written->AllowChanges();
  }
  RETURN_IF_ERROR(file_system_.Rename(temporary, path));
  CrashPoint("after_database_rename");
  RETURN_IF_ERROR(file_system_.SyncFolder(folder_));
  ASSIGN_OR_RETURN(database_, RunDatabase::Open(path, DatabaseOptions()));
  ASSIGN_OR_RETURN(const DatabaseContent content, database_->Load());
  Remember(content);
  return Continue({});
}

absl::Status RunDirectoryStore::AbandonRun() {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  failure_ = absl::FailedPreconditionError("the run was abandoned");
  database_ = nullptr;
  witness_ = nullptr;
  rounds_ = nullptr;
  // The database last: without it, nothing else may be left.
  for (const char* name : {kWitnessFile, kDatabaseLogFile, kDatabaseFile}) {
    if (file_system_.Exists(Path(name))) RETURN_IF_ERROR(file_system_.Remove(Path(name)));
  }
  return file_system_.SyncFolder(folder_);
}

absl::Status RunDirectoryStore::CheckSpace(uint64_t bytes) {
  const auto fits = [&](uint64_t free) { return free >= bytes && free - bytes >= spare_bytes_; };
  ASSIGN_OR_RETURN(uint64_t free, file_system_.FreeBytes(folder_));
  if (fits(free)) return absl::OkStatus();
  blobs_.DropSpares();
  ASSIGN_OR_RETURN(free, file_system_.FreeBytes(folder_));
  if (fits(free)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      folder_, " has ", free, " bytes free; ", bytes, " are needed and ", spare_bytes_.load(),
      " more for rounds, snapshots and the database: make room, the run then goes on"));
}

absl::Status RunDirectoryStore::Commit(
    absl::FunctionRef<absl::Status(DatabaseEdit&, std::vector<BlobRef>&)> edit, const BlobRef* blob,
    absl::FunctionRef<void()> committed) {
  std::vector<BlobRef> freed;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(failure_);
    const auto make = [&](DatabaseEdit& changes) -> absl::Status {
      mutex_.AssertHeld();
      freed.clear();
      RETURN_IF_ERROR(edit(changes, freed));
      return ForgetInCommit(changes, freed);
    };
    status = database_->Commit(make);
    if (absl::IsResourceExhausted(status) && blobs_.DropSpares()) {
      status = database_->Commit(make);
    }
    if (status.ok()) {
      forgotten_before_ = forget_before_;
      committed();
      status = witness_->Update(database_->commits());
      // A disk too full to overwrite bytes that it has is none that can be worked with.
      if (!status.ok()) status = absl::InternalError(status.message());
    } else if (ChangedNothing(status)) {
      if (blob != nullptr) freed = {*blob};
    }
    if (!NoteLocked(status).ok() && !ChangedNothing(status)) return status;
  }
  for (const BlobRef& file : freed) {
    CrashPoint("before_removal");
    blobs_.Remove(file);
  }
  return status;
}

absl::Status RunDirectoryStore::ForgetInCommit(DatabaseEdit& edit, std::vector<BlobRef>& freed) {
  for (const auto& [fragment, before] : forget_before_) {
    const auto done = forgotten_before_.find(fragment);
    const int64_t from = done == forgotten_before_.end() ? 0 : done->second;
    if (from >= before) continue;
    book_.Note(ChangeBook::Fragment(fragment), edit.number());
    RETURN_IF_ERROR(EmptyAnswers(edit, fragment, from, before, freed));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RunDirectoryStore::RetainInCommit(int fragment, DatabaseEdit& edit,
                                                          std::vector<BlobRef>& freed) {
  ASSIGN_OR_RETURN(const std::vector<StoredSnapshot> snapshots,
                   edit.Rows<StoredSnapshot>(absl::StrCat("fragment = ", fragment)));
  const auto kept = static_cast<size_t>(options_.snapshots_kept);
  if (snapshots.size() < kept) return 0;
  const size_t removed = snapshots.size() - kept;
  for (size_t i = 0; i < removed; ++i) {
    RETURN_IF_ERROR(edit.Remove(snapshots[i]));
    freed.push_back(snapshots[i].state);
  }
  if (options_.retain_deltas) return 0;
  const int64_t covered = snapshots[removed].version;
  RETURN_IF_ERROR(EmptyDeltas(edit, fragment, deltas_gone_[fragment], covered, freed));
  return covered;
}

absl::Status RunDirectoryStore::SaveContribution(const ContributionRecord& record,
                                                 std::span<const uint8_t> object) {
  ASSIGN_OR_RETURN(const int64_t commits, Running());
  absl::StatusOr<BlobRef> blob;
  {
    const uint64_t bytes = writing_ += object.size();
    const absl::Cleanup written = [&] { writing_ -= object.size(); };
    RETURN_IF_ERROR(Note(CheckSpace(bytes)));
    blob = blobs_.WriteDelta(record, object, commits);
  }
  if (!blob.ok()) return Note(blob.status());
  return Commit(
      [&](DatabaseEdit& edit, std::vector<BlobRef>&) {
        mutex_.AssertHeld();
        book_.Note(ChangeBook::Fragment(record.fragment), edit.number());
        return edit.Insert(
            StoredContribution{.record = record, .delta = *blob, .commit = edit.number()});
      },
      &*blob);
}

absl::Status RunDirectoryStore::SaveRound(const RoundRecord& record,
                                          std::span<const uint8_t> answer) {
  ASSIGN_OR_RETURN(const int64_t commits, Running());
  absl::StatusOr<BlobRef> blob = blobs_.WriteAnswer(record, answer, commits);
  if (!blob.ok()) return Note(blob.status());
  CrashPoint("before_round_row");
  const auto insert = [&](DatabaseEdit& edit, std::vector<BlobRef>&) -> absl::Status {
    mutex_.AssertHeld();
    book_.Note(ChangeBook::Fragment(record.fragment), edit.number());
    const int64_t last = last_round_[record.fragment];
    if (record.round != last + 1) {
      return absl::FailedPreconditionError(absl::StrCat("fragment ", record.fragment, ": round ",
                                                        last + 1, " must be saved before round ",
                                                        record.round));
    }
    return edit.Insert(StoredRound{.record = record, .answer = *blob, .commit = edit.number()});
  };
  return Commit(insert, &*blob, [&] {
    mutex_.AssertHeld();
    last_round_[record.fragment] = record.round;
    rounds_->Append(record);
  });
}

absl::Status RunDirectoryStore::SaveSnapshot(const FragmentView& fragment) {
  ASSIGN_OR_RETURN(const int64_t commits, Running());
  {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<std::vector<StoredSnapshot>> same = database_->Rows<StoredSnapshot>(
        absl::StrCat("fragment = ", fragment.fragment, " AND version = ", fragment.version));
    if (!same.ok()) return NoteLocked(same.status());
    // A version has one state.
    if (!same->empty()) return absl::OkStatus();
  }
  absl::StatusOr<BlobRef> blob = blobs_.WriteSnapshot(fragment, commits);
  if (!blob.ok()) return Note(blob.status());
  CrashPoint("before_snapshot_row");
  int64_t covered = 0;
  const auto insert = [&](DatabaseEdit& edit, std::vector<BlobRef>& freed) -> absl::Status {
    mutex_.AssertHeld();
    book_.Note(ChangeBook::kSnapshots, edit.number());
    book_.Note(ChangeBook::Fragment(fragment.fragment), edit.number());
    const absl::Status inserted =
        edit.Insert(StoredSnapshot{.fragment = fragment.fragment,
                                   .version = fragment.version,
                                   .published_hash = fragment.published_hash,
                                   .state = *blob,
                                   .commit = edit.number()});
    if (!inserted.ok()) return inserted;
    ASSIGN_OR_RETURN(covered, RetainInCommit(fragment.fragment, edit, freed));
    return absl::OkStatus();
  };
  return Commit(insert, &*blob, [&] {
    mutex_.AssertHeld();
    int64_t& gone = deltas_gone_[fragment.fragment];
    gone = std::max(gone, covered);
  });
}

absl::Status RunDirectoryStore::DropSnapshot(int fragment, int64_t version) {
  RETURN_IF_ERROR(Running().status());
  return Commit([&](DatabaseEdit& edit, std::vector<BlobRef>& freed) -> absl::Status {
    mutex_.AssertHeld();
    book_.Note(ChangeBook::kSnapshots, edit.number());
    ASSIGN_OR_RETURN(const std::vector<StoredSnapshot> rows,
                     edit.Rows<StoredSnapshot>(
                         absl::StrCat("fragment = ", fragment, " AND version = ", version)));
    for (const StoredSnapshot& row : rows) {
      RETURN_IF_ERROR(edit.Remove(row));
      freed.push_back(row.state);
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<int64_t> RunDirectoryStore::TakeOver() {
  RETURN_IF_ERROR(Running().status());
  int64_t number = 0;
  RETURN_IF_ERROR(Commit([&](DatabaseEdit& edit, std::vector<BlobRef>&) {
    number = edit.number();
    return absl::OkStatus();
  }));
  return number;
}

absl::Status RunDirectoryStore::SaveMember(const MemberRecord& member) {
  return SaveMembers({&member, 1});
}

absl::Status RunDirectoryStore::SaveMembers(std::span<const MemberRecord> members) {
  RETURN_IF_ERROR(Running().status());
  return Commit([&](DatabaseEdit& edit, std::vector<BlobRef>&) -> absl::Status {
    mutex_.AssertHeld();
    for (const MemberRecord& member : members) {
      book_.Note(ChangeBook::Member(member.member.id), edit.number());
      RETURN_IF_ERROR(edit.Put(member));
    }
    return absl::OkStatus();
  });
}

absl::Status RunDirectoryStore::SaveRunState(const RunState& state) {
  RETURN_IF_ERROR(Running().status());
  return Commit([&](DatabaseEdit& edit, std::vector<BlobRef>&) {
    mutex_.AssertHeld();
    book_.Note(ChangeBook::kState, edit.number());
    return edit.Put(state);
  });
}

absl::Status RunDirectoryStore::SaveSummary(const nlohmann::json& summary) {
  RETURN_IF_ERROR(Running().status());
  const std::string text =
      summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return Note(WriteFileAtomically(file_system_, Path(kSummaryFile), absl::string_view(text)));
}

absl::Status RunDirectoryStore::ForgetAnswers(int fragment, int64_t before_round) {
  RETURN_IF_ERROR(Running().status());
  absl::MutexLock lock(&mutex_);
  int64_t& before = forget_before_[fragment];
  before = std::max(before, before_round);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint8_t>> RunDirectoryStore::ReadContribution(
    int fragment, int64_t round, const std::string& worker_id) {
  RETURN_IF_ERROR(Running().status());
  const auto find = [&]() -> absl::StatusOr<std::optional<StoredContribution>> {
    absl::MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(const std::vector<StoredContribution> rows,
                     database_->Rows<StoredContribution>(WhereRound(fragment, round)));
    for (const StoredContribution& row : rows) {
      if (row.record.worker_id == worker_id && row.delta.kept()) return row;
    }
    return std::nullopt;
  };
  return ReadNamed(
      find, [&](const StoredContribution& row) { return blobs_.ReadDelta(row); },
      absl::StrCat(folder_, " has no delta of ", worker_id, " for round ", round, " of fragment ",
                   fragment));
}

absl::StatusOr<std::vector<uint8_t>> RunDirectoryStore::ReadAnswer(int fragment, int64_t round) {
  RETURN_IF_ERROR(Running().status());
  const auto find = [&]() -> absl::StatusOr<std::optional<StoredRound>> {
    absl::MutexLock lock(&mutex_);
    if (round < forget_before_[fragment]) return std::nullopt;
    ASSIGN_OR_RETURN(const std::vector<StoredRound> rows,
                     database_->Rows<StoredRound>(WhereRound(fragment, round)));
    if (rows.empty() || !rows[0].answer.kept()) return std::nullopt;
    return rows[0];
  };
  return ReadNamed(
      find, [&](const StoredRound& row) { return blobs_.ReadAnswer(row); },
      absl::StrCat(folder_, " has no answer of round ", round, " of fragment ", fragment));
}

absl::StatusOr<FragmentSnapshot> RunDirectoryStore::ReadSnapshot(int fragment, int64_t version) {
  RETURN_IF_ERROR(Running().status());
  const auto find = [&]() -> absl::StatusOr<std::optional<StoredSnapshot>> {
    absl::MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(const std::vector<StoredSnapshot> rows,
                     database_->Rows<StoredSnapshot>(
                         absl::StrCat("fragment = ", fragment, " AND version = ", version)));
    if (rows.empty()) return std::nullopt;
    return rows[0];
  };
  return ReadNamed(
      find, [&](const StoredSnapshot& row) { return blobs_.ReadSnapshot(row); },
      absl::StrCat(folder_, " has no snapshot of fragment ", fragment, " at version ", version));
}

}  // namespace causeway::server
