// Here is what a run directory tells its copies, and how a copy follows (run_changes.h).
#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/crash_point.h"
#include "common/base/status_macros.h"
#include "server/store/run_directory.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {
namespace {

constexpr char kMoveAway[] =
    "move that folder away, and follow into an empty one, if the coordinator that is followed is "
    "the right one";

absl::Status HasNotBegun() {
  return absl::UnavailableError("the run has not begun yet: there is nothing to follow");
}

void AddRow(std::string& packed, const BlobRef& blob, RunChanges& changes) {
  changes.rows.push_back(std::move(packed));
  if (blob.kept()) changes.blobs.push_back(blob);
}

}  // namespace

void RunDirectoryStore::Remember(const DatabaseContent& content) {
  run_id_ = content.identity.run_id;
  fragments_ = static_cast<int>(content.identity.initial_hashes.size());
  book_.Begin(database_->commits());
  // The first rounds whose files are there: all before them were taken out.
  std::map<int, int64_t> deltas;
  std::map<int, int64_t> answers;
  std::map<int, int64_t> contributed;
  for (const StoredRound& row : content.rounds) {
    last_round_[row.record.fragment] = row.record.round;
    if (row.answer.kept()) answers.try_emplace(row.record.fragment, row.record.round);
  }
  for (const StoredContribution& row : content.contributions) {
    contributed[row.record.fragment] = row.record.round;
    if (row.delta.kept()) deltas.try_emplace(row.record.fragment, row.record.round);
  }
  for (const auto& [fragment, round] : contributed) {
    const auto first = deltas.find(fragment);
    deltas_gone_[fragment] = first == deltas.end() ? round : first->second - 1;
  }
  for (const auto& [fragment, round] : last_round_) {
    const auto first = answers.find(fragment);
    forget_before_[fragment] = first == answers.end() ? round + 1 : first->second;
  }
  forgotten_before_ = forget_before_;
}

absl::Status RunDirectoryStore::EmptyDeltas(DatabaseEdit& edit, int fragment, int64_t after,
                                            int64_t up_to, std::vector<BlobRef>& freed) {
  ASSIGN_OR_RETURN(
      std::vector<StoredContribution> rows,
      edit.Rows<StoredContribution>(absl::StrCat("fragment = ", fragment, " AND round > ", after,
                                                 " AND round <= ", up_to, " AND delta != ''")));
  for (StoredContribution& row : rows) {
    freed.push_back(std::exchange(row.delta, {}));
    RETURN_IF_ERROR(edit.Put(row));
  }
  return absl::OkStatus();
}

absl::Status RunDirectoryStore::EmptyAnswers(DatabaseEdit& edit, int fragment, int64_t from,
                                             int64_t before, std::vector<BlobRef>& freed) {
  ASSIGN_OR_RETURN(
      std::vector<StoredRound> rows,
      edit.Rows<StoredRound>(absl::StrCat("fragment = ", fragment, " AND round >= ", from,
                                          " AND round < ", before, " AND answer != ''")));
  for (StoredRound& row : rows) {
    freed.push_back(std::exchange(row.answer, {}));
    RETURN_IF_ERROR(edit.Put(row));
  }
  return absl::OkStatus();
}

RunPosition RunDirectoryStore::PositionLocked() const {
  RunPosition position;
  if (database_ == nullptr) return position;
  position.run_id = run_id_;
  position.commits = database_->commits();
  position.digest = database_->digest();
  for (const auto& [fragment, round] : last_round_) {
    position.last_rounds.resize(static_cast<size_t>(fragment) + 1);
    position.last_rounds.back() = round;
  }
  return position;
}

RunPosition RunDirectoryStore::Position() {
  absl::MutexLock lock(&mutex_);
  return PositionLocked();
}

int64_t RunDirectoryStore::WaitForCommit(int64_t after, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto came = [this, after]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !failure_.ok() || (database_ != nullptr && database_->commits() > after);
  };
  mutex_.AwaitWithTimeout(absl::Condition(&came), timeout);
  return database_ != nullptr ? database_->commits() : 0;
}

absl::StatusOr<RunIdentity> RunDirectoryStore::Identity() {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  if (database_ == nullptr) return HasNotBegun();
  ASSIGN_OR_RETURN(std::vector<RunIdentity> rows, database_->Rows<RunIdentity>(""));
  if (rows.size() != 1) return absl::DataLossError(folder_ + " does not hold one run");
  return std::move(rows[0]);
}

absl::StatusOr<RunChanges> RunDirectoryStore::ChangesSince(const RunPosition& position) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  if (database_ == nullptr) return HasNotBegun();
  if (!position.run_id.empty() && position.run_id != run_id_) {
    return absl::FailedPreconditionError(absl::StrCat("this is the run ", run_id_,
                                                      ", the folder that follows holds the run ",
                                                      position.run_id, ": ", kMoveAway));
  }
  RunChanges changes = {
      .from = position.commits, .to = database_->commits(), .digest = database_->digest()};
  if (changes.from < 1 || changes.from > changes.to) {
    return absl::OutOfRangeError(
        absl::StrCat("the folder that follows has ", changes.from, " commits of run ", run_id_,
                     ", this coordinator only ", changes.to,
                     ": it serves an older copy. Serve the folder that has more; or, ", kMoveAway));
  }
  if (changes.empty()) {
    if (position.digest == changes.digest) return changes;
    return absl::OutOfRangeError(
        absl::StrCat("the folder that follows has other rows than this coordinator at commit ",
                     changes.to, " of run ", run_id_, ": both were served. ", kMoveAway));
  }
  if (book_.ChangedSince(ChangeBook::kState, changes.from)) {
    RETURN_IF_ERROR(database_->Rows<RunState>("", changes.rows).status());
  }
  std::vector<std::string> packed;
  ASSIGN_OR_RETURN(const std::vector<MemberRecord> members,
                   database_->Rows<MemberRecord>("", packed));
  for (size_t i = 0; i < members.size(); ++i) {
    if (!book_.ChangedSince(ChangeBook::Member(members[i].member.id), changes.from)) continue;
    AddRow(packed[i], {}, changes);
  }
  RETURN_IF_ERROR(AddFragmentRows(position, changes));
  changes.all_snapshots = book_.ChangedSince(ChangeBook::kSnapshots, changes.from);
  if (changes.all_snapshots) {
    packed.clear();
    ASSIGN_OR_RETURN(const std::vector<StoredSnapshot> rows,
                     database_->Rows<StoredSnapshot>("", packed));
    for (size_t i = 0; i < rows.size(); ++i) {
      AddRow(packed[i], rows[i].commit > changes.from ? rows[i].state : BlobRef(), changes);
    }
  }
  return changes;
}

absl::Status RunDirectoryStore::AddFragmentRows(const RunPosition& position, RunChanges& changes) {
  for (int fragment = 0; fragment < fragments_; ++fragment) {
    if (!book_.ChangedSince(ChangeBook::Fragment(fragment), changes.from)) continue;
    // All that belongs to rounds that the copy has came before them.
    const std::string newer =
        absl::StrCat("fragment = ", fragment, " AND round > ", position.last_round(fragment),
                     " AND commit_number > ", changes.from);
    std::vector<std::string> packed;
    ASSIGN_OR_RETURN(const std::vector<StoredContribution> contributions,
                     database_->Rows<StoredContribution>(newer, packed));
    for (size_t i = 0; i < contributions.size(); ++i) {
      AddRow(packed[i], contributions[i].delta, changes);
    }
    packed.clear();
    ASSIGN_OR_RETURN(const std::vector<StoredRound> rounds,
                     database_->Rows<StoredRound>(newer, packed));
    for (size_t i = 0; i < rounds.size(); ++i) AddRow(packed[i], rounds[i].answer, changes);
    changes.gone.push_back({.fragment = fragment,
                            .deltas = deltas_gone_[fragment],
                            .answers = forgotten_before_[fragment]});
  }
  return absl::OkStatus();
}

absl::Status RunDirectoryStore::ApplyChanges(const RunChanges& changes, DatabaseEdit& edit,
                                             std::vector<BlobRef>& freed,
                                             std::vector<StoredRound>& rounds) {
  const auto check = [this](const BlobRef& blob) -> absl::Status {
    if (!blob.kept()) return absl::OkStatus();
    if (BlobFolder::IsBlobName(blob.file)) return blobs_.CheckPresent(blob);
    return absl::InvalidArgumentError(
        absl::StrCat("a row names ", blob.file, ", which is no blob of a run directory"));
  };
  std::set<std::tuple<int, int64_t, std::string>> snapshots;
  ASSIGN_OR_RETURN(const std::vector<StoredSnapshot> former, edit.Rows<StoredSnapshot>(""));
  for (const std::string& packed : changes.rows) {
    const absl::string_view table = TableOfPacked(packed);
    if (table == Columns<RunState>::kName) {
      ASSIGN_OR_RETURN(const RunState row, UnpackRow<RunState>(packed));
      RETURN_IF_ERROR(edit.PutPacked(row, packed));
    } else if (table == Columns<MemberRecord>::kName) {
      ASSIGN_OR_RETURN(const MemberRecord row, UnpackRow<MemberRecord>(packed));
      RETURN_IF_ERROR(edit.PutPacked(row, packed));
    } else if (table == Columns<StoredContribution>::kName) {
      ASSIGN_OR_RETURN(const StoredContribution row, UnpackRow<StoredContribution>(packed));
      RETURN_IF_ERROR(check(row.delta));
      RETURN_IF_ERROR(edit.PutPacked(row, packed));
    } else if (table == Columns<StoredRound>::kName) {
      ASSIGN_OR_RETURN(const StoredRound row, UnpackRow<StoredRound>(packed));
      RETURN_IF_ERROR(check(row.answer));
      RETURN_IF_ERROR(edit.PutPacked(row, packed));
      rounds.push_back(row);
    } else {
      ASSIGN_OR_RETURN(const StoredSnapshot row, UnpackRow<StoredSnapshot>(packed));
      RETURN_IF_ERROR(check(row.state));
      RETURN_IF_ERROR(edit.PutPacked(row, packed));
      snapshots.emplace(row.fragment, row.version, row.state.file);
    }
  }
  if (changes.all_snapshots) {
    for (const StoredSnapshot& row : former) {
      if (snapshots.contains({row.fragment, row.version, row.state.file})) continue;
      RETURN_IF_ERROR(edit.Remove(row));
      freed.push_back(row.state);
    }
  }
  for (const RunChanges::Gone& gone : changes.gone) {
    RETURN_IF_ERROR(
        EmptyDeltas(edit, gone.fragment, deltas_gone_[gone.fragment], gone.deltas, freed));
    RETURN_IF_ERROR(
        EmptyAnswers(edit, gone.fragment, forgotten_before_[gone.fragment], gone.answers, freed));
  }
  return absl::OkStatus();
}

absl::Status RunDirectoryStore::BeginCopy() {
  return WriteFileAtomically(file_system_, Path(kCopyFile),
                             absl::string_view("a copy that follows a coordinator\n"));
}

absl::Status RunDirectoryStore::EndCopy() {
  if (!file_system_.Exists(Path(kCopyFile))) return absl::OkStatus();
  for (const char* folder : kBlobFolders) {
    if (file_system_.IsFolder(Path(folder))) RETURN_IF_ERROR(file_system_.SyncFolder(Path(folder)));
  }
  RETURN_IF_ERROR(file_system_.Remove(Path(kCopyFile)));
  return file_system_.SyncFolder(folder_);
}

absl::Status RunDirectoryStore::Advance(const RunChanges& changes) {
  std::vector<BlobRef> freed;
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(failure_);
  if (database_ == nullptr) return absl::FailedPreconditionError("the copy has not begun");
  const int64_t commits = database_->commits();
  if (changes.from != commits || changes.to <= changes.from) {
    return absl::FailedPreconditionError(absl::StrCat(folder_, " is at commit ", commits,
                                                      ": changes from ", changes.from, " to ",
                                                      changes.to, " are not for it"));
  }
  std::vector<StoredRound> rounds;
  absl::Status status = database_->CommitAs({.commits = changes.to, .digest = changes.digest},
                                            [&](DatabaseEdit& edit) -> absl::Status {
                                              mutex_.AssertHeld();
                                              return ApplyChanges(changes, edit, freed, rounds);
                                            });
  if (absl::IsDataLoss(status) || absl::IsAlreadyExists(status)) {
    status = absl::DataLossError(
        absl::StrCat(status.message(),
                     ": it holds another history of the run, as after both were "
                     "served or one was restored from an older copy; ",
                     kMoveAway));
  }
  if (status.ok()) status = witness_->Update(database_->commits());
  RETURN_IF_ERROR(NoteLocked(status));
  for (const RunChanges::Gone& gone : changes.gone) {
    deltas_gone_[gone.fragment] = gone.deltas;
    forget_before_[gone.fragment] = forgotten_before_[gone.fragment] = gone.answers;
  }
  std::ranges::sort(rounds, {}, &StoredRound::commit);
  for (const StoredRound& row : rounds) {
    last_round_[row.record.fragment] = row.record.round;
    rounds_->Append(row.record);
  }
  for (const BlobRef& file : freed) {
    CrashPoint("before_removal");
    blobs_.Discard(file.file);  // A copy makes its files anew.
  }
  return absl::OkStatus();
}

}  // namespace causeway::server
