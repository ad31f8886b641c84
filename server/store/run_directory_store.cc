#include "server/store/run_directory_store.h"

#include "absl/cleanup/cleanup.h"
#include "common/base/crash_point.h"
#include "common/files/json.h"
#include "common/params/run_config.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

absl::Status HasNotBegun() {
  return absl::UnavailableError("the run has not begun yet: there is nothing to follow");
}

// NOT_FOUND unless it is a folder and holds a run.
absl::Status CheckReadable(FileSystem& file_system, const std::string& folder) {
  if (!file_system.IsFolder(folder)) {
    return absl::NotFoundError(absl::StrCat("there is no folder ", folder));
  }
  return CheckHoldsRun(file_system, folder);
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

// Former releases spread a run over several folders: 0 is the hash of a fragment that is in
// another.
absl::Status CheckHasAllFragments(const std::string& folder, const v1::RunIdentity& identity) {
  const auto& hashes = identity.initial_hashes();
  const auto elsewhere = std::count(hashes.begin(), hashes.end(), 0u);
  if (elsewhere == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      folder, " has ", hashes.size() - elsewhere, " of the ", hashes.size(), " fragments of run ",
      identity.run_id(),
      ": it was served with --shards, which this release does not know. Go on with the release "
      "that began it, or save its parameters with that one (causewayctl export "
      "--format=parameters) and begin a run with them (--initial)"));
}

// Removes the mark of BeginCopy; the files that it excused are gone before.
absl::Status EndCopy(FileSystem& file_system, const std::string& folder) {
  const std::string mark = JoinPath(folder, kCopyFile);
  if (!file_system.Exists(mark)) return absl::OkStatus();
  for (const char* name : kBlobFolders) {
    const std::string blobs = JoinPath(folder, name);
    if (file_system.IsFolder(blobs)) RETURN_IF_ERROR(file_system.SyncFolder(blobs));
  }
  RETURN_IF_ERROR(file_system.Remove(mark));
  return file_system.SyncFolder(folder);
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
      database_options_{
          .vfs = options.sqlite_vfs, .durable = options.durable, .log_pages = options.log_pages},
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
    RETURN_IF_ERROR(CheckReadable(used, folder));
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

absl::Status RunDirectoryStore::Note(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  return NoteLocked(std::move(status));
}

absl::Status RunDirectoryStore::NoteLocked(absl::Status status) {
  if (status.ok() || ChangedNothing(status) || !failure_.ok()) return status;
  failure_ = status;
  // The next opening finds out what the disk holds.
  if (ledger_ != nullptr) ledger_->database().ForbidChanges();
  return status;
}

absl::StatusOr<int64_t> RunDirectoryStore::Running() {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  if (ledger_ == nullptr) return absl::FailedPreconditionError("the run has not begun");
  return ledger_->database().commits();
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
      ledger_ = nullptr;
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
    RETURN_IF_ERROR(EndCopy(file_system_, folder_));
    return std::nullopt;
  }
  std::unique_ptr<RunDatabase> database;
  if (options_.read_only) {
    ASSIGN_OR_RETURN(copy_, DatabaseCopy::Make(file_system_, folder_));
    ASSIGN_OR_RETURN(database, copy_->Open());
  } else {
    ASSIGN_OR_RETURN(database, RunDatabase::Open(Path(kDatabaseFile), database_options_));
  }
  absl::StatusOr<RecoveredRun> run = database->Load(options_.recovered_rounds);
  if (!run.ok()) return copy_ != nullptr ? copy_->Named(run.status()) : run.status();
  RETURN_IF_ERROR(CheckHasAllFragments(folder_, run->identity));
  std::vector<std::string> orphans;
  ASSIGN_OR_RETURN(const FolderTraces traces, ReadTraces(file_system_, folder_));
  RETURN_IF_ERROR(CheckBlobs(file_system_, folder_, traces, *run, database->commits(),
                             /*in_use=*/false, orphans));
  ledger_ = std::make_unique<RunLedger>(std::move(database), *run, options_.snapshots_kept,
                                        options_.retain_deltas);
  if (!options_.read_only) {
    CrashPoint("during_recovery");
    RETURN_IF_ERROR(RemoveOrphans(file_system_, folder_, orphans));
    RETURN_IF_ERROR(EndCopy(file_system_, folder_));
    RETURN_IF_ERROR(blobs_.CreateFolders());
    RETURN_IF_ERROR(ledger_->AllowChanges(file_system_, folder_, run->rounds));
  }
  return *std::move(run);
}

absl::Status RunDirectoryStore::BeginRun(const v1::RunIdentity& identity) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  if (!recovered_ || ledger_ != nullptr) {
    return absl::FailedPreconditionError("a run begins after a Recover that found none");
  }
  failure_ = BeginRunLocked(identity);
  return failure_;
}

absl::Status RunDirectoryStore::BeginRunLocked(const v1::RunIdentity& identity) {
  RETURN_IF_ERROR(WriteFileAtomically(file_system_, Path(kConfigFile),
                                      absl::string_view(FormatRunConfig(identity.config()))));
  const std::string path = Path(kDatabaseFile);
  const std::string temporary = path + ".tmp";
  RETURN_IF_ERROR(RunDatabase::Create(temporary, database_options_, identity));
  {
    // SQLite hides some failures, as of a change of its journal mode.
    ASSIGN_OR_RETURN(const auto written, RunDatabase::Open(temporary, database_options_));
    RETURN_IF_ERROR(written->Load().status());
    written->AllowChanges();
  }
  RETURN_IF_ERROR(file_system_.Rename(temporary, path));
  CrashPoint("after_database_rename");
  RETURN_IF_ERROR(file_system_.SyncFolder(folder_));
  ASSIGN_OR_RETURN(auto database, RunDatabase::Open(path, database_options_));
  ASSIGN_OR_RETURN(const RecoveredRun run, database->Load());
  ledger_ = std::make_unique<RunLedger>(std::move(database), run, options_.snapshots_kept,
                                        options_.retain_deltas);
  RETURN_IF_ERROR(blobs_.CreateFolders());
  return ledger_->AllowChanges(file_system_, folder_, {});
}

absl::Status RunDirectoryStore::AbandonRun() {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  failure_ = absl::FailedPreconditionError("the run was abandoned");
  ledger_ = nullptr;
  // The database last: without it, nothing else may be left.
  for (const char* name : {kWitnessFile, kDatabaseLogFile, kDatabaseFile}) {
    if (file_system_.Exists(Path(name))) RETURN_IF_ERROR(file_system_.Remove(Path(name)));
  }
  return file_system_.SyncFolder(folder_);
}

absl::Status RunDirectoryStore::CheckSpace(uint64_t bytes) {
  ASSIGN_OR_RETURN(const uint64_t free, file_system_.FreeBytes(folder_));
  if (free >= bytes && free - bytes >= spare_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      folder_, " has ", free, " bytes free; ", bytes, " are needed and ", spare_bytes_.load(),
      " more for rounds, snapshots and the database: make room, the run then goes on"));
}

absl::Status RunDirectoryStore::Commit(RunLedger::Edit edit, const v1::Blob* blob,
                                       absl::FunctionRef<void()> committed) {
  RunLedger::Freed freed;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(failure_);
    if (ledger_ == nullptr) return absl::FailedPreconditionError("the run has not begun");
    status = ledger_->Commit(edit, freed);
    if (status.ok()) {
      committed();
    } else if (ChangedNothing(status)) {
      freed.clear();
      if (blob != nullptr) freed = {*blob};
    }
    if (!NoteLocked(status).ok() && !ChangedNothing(status)) return status;
  }
  for (const v1::Blob& file : freed) {
    CrashPoint("before_removal");
    blobs_.Discard(file.file());
  }
  return status;
}

absl::Status RunDirectoryStore::Told(const absl::Status& saved) {
  if (!saved.ok() || before_telling_ == nullptr) return saved;
  return before_telling_(Position().commits());
}

absl::Status RunDirectoryStore::SaveContribution(const v1::Contribution& record,
                                                 std::span<const uint8_t> object) {
  ASSIGN_OR_RETURN(const int64_t commits, Running());
  absl::StatusOr<v1::Blob> blob;
  {
    const uint64_t bytes = writing_ += object.size();
    const absl::Cleanup written = [&] { writing_ -= object.size(); };
    RETURN_IF_ERROR(Note(CheckSpace(bytes)));
    blob = blobs_.WriteDelta(record, object, commits);
  }
  if (!blob.ok()) return Note(blob.status());
  const auto insert = [&](DatabaseEdit& edit, RunLedger::Freed&) {
    v1::Contribution own = record;
    *own.mutable_delta() = *blob;
    own.set_commit(edit.number());
    return edit.Insert(own);
  };
  RETURN_IF_ERROR(Commit(insert, &*blob));
  const absl::Status told = Told(absl::OkStatus());
  return told.ok() ? told : absl::CancelledError(told.message());
}

absl::Status RunDirectoryStore::SaveRound(const v1::Round& record,
                                          std::span<const uint8_t> answer) {
  ASSIGN_OR_RETURN(const int64_t commits, Running());
  absl::StatusOr<v1::Blob> blob = blobs_.WriteAnswer(record, answer, commits);
  if (!blob.ok()) return Note(blob.status());
  CrashPoint("before_round_row");
  v1::Round own = record;
  *own.mutable_answer() = *blob;
  const auto insert = [&](DatabaseEdit& edit, RunLedger::Freed&) -> absl::Status {
    mutex_.AssertHeld();
    const int64_t last = ledger_->last_round(own.fragment());
    if (own.round() != last + 1) {
      return absl::FailedPreconditionError(absl::StrCat("fragment ", own.fragment(), ": round ",
                                                        last + 1, " must be saved before round ",
                                                        own.round()));
    }
    own.set_commit(edit.number());
    return edit.Insert(own);
  };
  return Told(Commit(insert, &*blob, [&] {
    mutex_.AssertHeld();
    ledger_->NoteRound(own);
  }));
}

absl::Status RunDirectoryStore::SaveSnapshot(const FragmentView& fragment) {
  ASSIGN_OR_RETURN(const int64_t commits, Running());
  {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<std::vector<v1::Snapshot>> same = ledger_->database().Read<v1::Snapshot>(
        RangeOf<v1::Snapshot>(fragment.fragment, fragment.version, fragment.version));
    if (!same.ok()) return NoteLocked(same.status());
    // A version has one state.
    if (!same->empty()) return absl::OkStatus();
  }
  absl::StatusOr<v1::Blob> blob = blobs_.WriteSnapshot(fragment, commits);
  if (!blob.ok()) return Note(blob.status());
  CrashPoint("before_snapshot_row");
  const auto insert = [&](DatabaseEdit& edit, RunLedger::Freed& freed) -> absl::Status {
    mutex_.AssertHeld();
    v1::Snapshot snapshot;
    snapshot.set_fragment(fragment.fragment);
    snapshot.set_version(fragment.version);
    snapshot.set_published_hash(fragment.published_hash);
    *snapshot.mutable_state() = *blob;
    snapshot.set_commit(edit.number());
    RETURN_IF_ERROR(edit.Insert(snapshot));
    return ledger_->Retain(fragment.fragment, edit, freed);
  };
  return Commit(insert, &*blob);
}

absl::Status RunDirectoryStore::DropSnapshot(int fragment, int64_t version) {
  return Commit([&](DatabaseEdit& edit, RunLedger::Freed& freed) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<v1::Snapshot> snapshots,
                     edit.Read<v1::Snapshot>(RangeOf<v1::Snapshot>(fragment, version, version)));
    for (const v1::Snapshot& snapshot : snapshots) {
      RETURN_IF_ERROR(edit.Remove(snapshot));
      freed.push_back(snapshot.state());
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<int64_t> RunDirectoryStore::TakeOver() {
  int64_t number = 0;
  RETURN_IF_ERROR(Commit([&](DatabaseEdit& edit, RunLedger::Freed&) {
    number = edit.number();
    return absl::OkStatus();
  }));
  return number;
}

absl::Status RunDirectoryStore::SaveMembers(std::span<const v1::Member> members) {
  return Told(Commit([&](DatabaseEdit& edit, RunLedger::Freed&) -> absl::Status {
    for (const v1::Member& member : members) RETURN_IF_ERROR(edit.Put(member));
    return absl::OkStatus();
  }));
}

absl::Status RunDirectoryStore::SaveRunState(const v1::State& state) {
  return Told(Commit([&](DatabaseEdit& edit, RunLedger::Freed&) { return edit.Put(state); }));
}

absl::Status RunDirectoryStore::SaveSummary(const nlohmann::json& summary) {
  RETURN_IF_ERROR(Running().status());
  const std::string text = JsonText(summary, 2) + "\n";
  return Note(WriteFileAtomically(file_system_, Path(kSummaryFile), absl::string_view(text)));
}

absl::Status RunDirectoryStore::ForgetAnswers(int fragment, int64_t before_round) {
  RETURN_IF_ERROR(Running().status());
  absl::MutexLock lock(&mutex_);
  ledger_->Forget(fragment, before_round);
  return absl::OkStatus();
}

// A file may go between the reading of its record and its own: its damage counts only if the record
// is there afterwards.
template <typename Record, typename Read>
auto RunDirectoryStore::ReadNamed(int fragment, int64_t number,
                                  absl::FunctionRef<bool(const Record&)> wanted, Read read,
                                  const std::string& what) -> decltype(read(Record())) {
  RETURN_IF_ERROR(Running().status());
  const auto find = [&]() -> absl::StatusOr<std::optional<Record>> {
    absl::MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(const std::vector<Record> records,
                     ledger_->database().Read<Record>(RangeOf<Record>(fragment, number, number)));
    const auto found = std::ranges::find_if(records, wanted);
    if (found == records.end()) return std::nullopt;
    return *found;
  };
  auto row = find();
  RETURN_IF_ERROR(row.status());
  if (row->has_value()) {
    auto content = read(**row);
    if (content.ok()) return content;
    row = find();
    if (!row.ok() || row->has_value()) return content;
  }
  return absl::NotFoundError(absl::StrCat(folder_, " has no ", what));
}

absl::StatusOr<std::vector<uint8_t>> RunDirectoryStore::ReadContribution(
    int fragment, int64_t round, const std::string& worker_id) {
  return ReadNamed<v1::Contribution>(
      fragment, round,
      [&](const v1::Contribution& record) {
        return record.header().worker_id() == worker_id && !record.delta().file().empty();
      },
      [&](const v1::Contribution& record) { return blobs_.ReadDelta(record); },
      absl::StrCat("delta of ", worker_id, " for round ", round, " of fragment ", fragment));
}

absl::StatusOr<std::vector<uint8_t>> RunDirectoryStore::ReadAnswer(int fragment, int64_t round) {
  {
    absl::MutexLock lock(&mutex_);
    if (ledger_ != nullptr && ledger_->forgotten(fragment, round)) {
      return absl::NotFoundError(
          absl::StrCat(folder_, " has no answer of round ", round, " of fragment ", fragment));
    }
  }
  return ReadNamed<v1::Round>(
      fragment, round,
      [&](const v1::Round& record) {
        mutex_.AssertHeld();
        return !ledger_->forgotten(fragment, round) && !record.answer().file().empty();
      },
      [&](const v1::Round& record) { return blobs_.ReadAnswer(record); },
      absl::StrCat("answer of round ", round, " of fragment ", fragment));
}

absl::StatusOr<FragmentSnapshot> RunDirectoryStore::ReadSnapshot(int fragment, int64_t version) {
  return ReadNamed<v1::Snapshot>(
      fragment, version, [](const v1::Snapshot&) { return true; },
      [&](const v1::Snapshot& record) { return blobs_.ReadSnapshot(record); },
      absl::StrCat("snapshot of fragment ", fragment, " at version ", version));
}

v1::CopyPosition RunDirectoryStore::Position() {
  absl::MutexLock lock(&mutex_);
  return ledger_ == nullptr ? v1::CopyPosition() : ledger_->Position();
}

int64_t RunDirectoryStore::WaitForCommit(int64_t after, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto commits = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ledger_ == nullptr ? 0 : ledger_->database().commits();
  };
  const auto came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !failure_.ok() || commits() > after;
  };
  mutex_.AwaitWithTimeout(absl::Condition(&came), timeout);
  return commits();
}

absl::StatusOr<v1::RunIdentity> RunDirectoryStore::Identity() {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  if (ledger_ == nullptr) return HasNotBegun();
  return ledger_->identity();
}

absl::StatusOr<RunChanges> RunDirectoryStore::ChangesSince(const v1::CopyPosition& position) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  if (ledger_ == nullptr) return HasNotBegun();
  return ledger_->ChangesSince(position);
}

absl::Status RunDirectoryStore::BeginCopy() {
  return WriteFileAtomically(file_system_, Path(kCopyFile),
                             absl::string_view("a copy that follows a coordinator\n"));
}

absl::Status RunDirectoryStore::Advance(const RunChanges& changes) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  if (ledger_ == nullptr) return absl::FailedPreconditionError("the copy has not begun");
  const int64_t commits = ledger_->database().commits();
  const v1::CopyAdvance& advance = changes.advance;
  if (advance.from() != commits || advance.to() <= advance.from()) {
    return absl::FailedPreconditionError(absl::StrCat(folder_, " is at commit ", commits,
                                                      ": changes from ", advance.from(), " to ",
                                                      advance.to(), " are not for it"));
  }
  const auto check = [this](const v1::Blob& blob) -> absl::Status {
    if (blob.file().empty()) return absl::OkStatus();
    if (BlobFolder::IsBlobName(blob.file())) return blobs_.CheckPresent(blob);
    return absl::InvalidArgumentError(
        absl::StrCat("a record names ", blob.file(), ", which is no blob of a run directory"));
  };
  RunLedger::Freed freed;
  RETURN_IF_ERROR(NoteLocked(ledger_->Advance(changes, check, freed)));
  for (const v1::Blob& file : freed) {
    CrashPoint("before_removal");
    blobs_.Discard(file.file());
  }
  return absl::OkStatus();
}

}  // namespace causeway::server
