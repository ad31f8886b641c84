#include "server/store/run_directory_store.h"

#include "common/files/json.h"
#include "common/telemetry/log.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

constexpr int64_t kNoLimit = 999'999'999'998;  // Of rounds, in 12 digits.

constexpr char kMoveAway[] =
    "move that folder away, and follow into an empty one, if the coordinator that is followed is "
    "the right one";

// What the book knows beside keys.
std::string FragmentName(int fragment) { return absl::StrCat("fragment/", fragment); }

const v1::Blob& BlobOf(const v1::Contribution& record) { return record.delta(); }
const v1::Blob& BlobOf(const v1::Round& record) { return record.answer(); }
const v1::Blob& BlobOf(const v1::Snapshot& record) { return record.state(); }
const v1::Blob& BlobOf(const v1::Member&) { return v1::Blob::default_instance(); }
const v1::Blob& BlobOf(const v1::State&) { return v1::Blob::default_instance(); }

void ClearBlob(v1::Contribution& record) { record.clear_delta(); }
void ClearBlob(v1::Round& record) { record.clear_answer(); }

// Takes the deltas or answers of rounds `first` to `last` out of their records.
template <typename Record>
absl::Status EmptyFiles(DatabaseEdit& edit, int fragment, int64_t first, int64_t last,
                        RunLedger::Freed& freed) {
  if (first > last) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::vector<Record> records,
                   edit.Read<Record>(RangeOf<Record>(fragment, first, last)));
  for (Record& record : records) {
    if (BlobOf(record).file().empty()) continue;
    freed.push_back(BlobOf(record));
    ClearBlob(record);
    RETURN_IF_ERROR(edit.Put(record));
  }
  return absl::OkStatus();
}

int64_t At(const std::map<int, int64_t>& rounds, int fragment) {
  const auto found = rounds.find(fragment);
  return found == rounds.end() ? 0 : found->second;
}

// A line of rounds.jsonl: the record's own fields (record.proto), but for what the store adds, and
// "unix_s": when it was published.
std::string RoundLine(const v1::Round& round) {
  nlohmann::json line = MessageToJson(round);
  line.erase("answer");
  line.erase("commit");
  line["unix_s"] = round.published_unix_s();
  return JsonText(line) + "\n";
}

std::span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// rounds.jsonl: the published rounds as lines of JSON, for reports and for people who watch. Makes
// the file hold exactly these rounds, in order of their commits.
//
// It is derived: nothing reads it back, it is not synced, and it is rebuilt from the database
// whenever it disagrees.
absl::StatusOr<std::unique_ptr<WritableFile>> OpenRoundLog(FileSystem& file_system,
                                                           const std::string& path,
                                                           std::span<const v1::Round> rounds) {
  std::vector<const v1::Round*> ordered;
  for (const v1::Round& round : rounds) ordered.push_back(&round);
  std::ranges::sort(ordered, {}, &v1::Round::commit);
  std::string expected;
  for (const v1::Round* round : ordered) expected += RoundLine(*round);
  const absl::StatusOr<std::string> found = file_system.ReadFile(path);
  if (!found.ok() || *found != expected) {
    const std::string temporary = path + ".tmp";
    ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, file_system.Create(temporary));
    RETURN_IF_ERROR(file->Append(AsBytes(expected)));
    RETURN_IF_ERROR(file_system.Rename(temporary, path));
  }
  return file_system.OpenForAppend(path);
}

}  // namespace

RunLedger::RunLedger(std::unique_ptr<RunDatabase> database, const RecoveredRun& run,
                     int snapshots_kept, bool retain_deltas)
    : database_(std::move(database)),
      identity_(run.identity),
      snapshots_kept_(snapshots_kept),
      retain_deltas_(retain_deltas),
      known_from_(database_->commits()) {
  // The first rounds whose files are there: all before them were taken out.
  Rounds deltas;
  Rounds answers;
  Rounds contributed;
  for (const v1::Round& round : run.rounds) {
    last_round_[round.fragment()] = round.round();
    if (!round.answer().file().empty()) answers.try_emplace(round.fragment(), round.round());
  }
  for (const v1::Contribution& record : run.contributions) {
    const v1::PushHeader& header = record.header();
    contributed[header.fragment()] = header.round();
    if (!record.delta().file().empty()) deltas.try_emplace(header.fragment(), header.round());
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

absl::Status RunLedger::AllowChanges(FileSystem& file_system, const std::string& folder,
                                     const std::vector<v1::Round>& rounds) {
  ASSIGN_OR_RETURN(round_log_, OpenRoundLog(file_system, JoinPath(folder, kRoundsFile), rounds));
  ASSIGN_OR_RETURN(witness_, CommitWitness::Create(file_system, JoinPath(folder, kWitnessFile),
                                                   database_->commits()));
  database_->AllowChanges();
  return absl::OkStatus();
}

v1::CopyPosition RunLedger::Position() const {
  v1::CopyPosition position;
  position.set_run_id(identity_.run_id());
  position.set_commits(database_->commits());
  position.set_digest(database_->digest());
  for (const auto& [fragment, round] : last_round_) {
    while (position.last_rounds_size() < fragment) position.add_last_rounds(0);
    position.add_last_rounds(round);
  }
  return position;
}

int64_t RunLedger::last_round(int fragment) const { return At(last_round_, fragment); }

void RunLedger::NoteRound(const v1::Round& round) {
  last_round_[round.fragment()] = round.round();
  if (round_log_ == nullptr) return;
  const absl::Status logged = round_log_->Append(AsBytes(RoundLine(round)));
  if (logged.ok()) return;
  Log().warn("{}; rounds are recorded in the database alone until the next start",
             std::string(logged.message()));
  round_log_ = nullptr;  // The next opening rebuilds the file.
}

void RunLedger::Forget(int fragment, int64_t before_round) {
  int64_t& before = forget_before_[fragment];
  before = std::max(before, before_round);
}

bool RunLedger::forgotten(int fragment, int64_t round) const {
  return round < At(forget_before_, fragment);
}

void RunLedger::NoteChanged(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    const absl::string_view kind = KindOf(key);
    const bool of_fragment =
        kind == kKind<v1::Contribution> || kind == kKind<v1::Round> || kind == kKind<v1::Snapshot>;
    if (of_fragment) changed_[FragmentName(FragmentOf(key))] = database_->commits();
    if (kind == kKind<v1::Snapshot>) changed_[std::string(kind)] = database_->commits();
    if (!of_fragment) changed_[key] = database_->commits();
  }
}

bool RunLedger::ChangedSince(const std::string& what, int64_t commit) const {
  const auto found = changed_.find(what);
  return std::max(known_from_, found == changed_.end() ? 0 : found->second) > commit;
}

absl::Status RunLedger::Commit(Edit edit, Freed& freed) {
  std::vector<std::string> keys;
  const auto make = [&](DatabaseEdit& changes) -> absl::Status {
    freed.clear();
    deltas_going_.clear();
    RETURN_IF_ERROR(edit(changes, freed));
    for (const auto& [fragment, before] : forget_before_) {
      RETURN_IF_ERROR(EmptyFiles<v1::Round>(changes, fragment, At(forgotten_before_, fragment),
                                            before - 1, freed));
    }
    keys = changes.changed();
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(database_->Commit(make));
  forgotten_before_ = forget_before_;
  for (const auto& [fragment, round] : deltas_going_) {
    deltas_gone_[fragment] = std::max(deltas_gone_[fragment], round);
  }
  NoteChanged(keys);
  const absl::Status witnessed = witness_->Update(database_->commits());
  // A disk too full to overwrite bytes that it has is none that can be worked with.
  return witnessed.ok() ? witnessed : absl::InternalError(witnessed.message());
}

absl::Status RunLedger::Retain(int fragment, DatabaseEdit& edit, Freed& freed) {
  ASSIGN_OR_RETURN(const std::vector<v1::Snapshot> snapshots,
                   edit.Read<v1::Snapshot>(RangeOf<v1::Snapshot>(fragment, 0, kNoLimit)));
  const auto kept = static_cast<size_t>(snapshots_kept_);
  if (snapshots.size() < kept) return absl::OkStatus();
  const size_t removed = snapshots.size() - kept;
  for (size_t i = 0; i < removed; ++i) {
    RETURN_IF_ERROR(edit.Remove(snapshots[i]));
    freed.push_back(snapshots[i].state());
  }
  if (retain_deltas_) return absl::OkStatus();
  const int64_t covered = snapshots[removed].version();
  deltas_going_[fragment] = covered;
  return EmptyFiles<v1::Contribution>(edit, fragment, At(deltas_gone_, fragment) + 1, covered,
                                      freed);
}

template <typename Record>
absl::Status RunLedger::AddRecords(const KeyRange& range,
                                   absl::FunctionRef<bool(const Record&)> wanted,
                                   RunChanges& changes) {
  const auto add = [&](absl::string_view key, absl::string_view value, uint64_t) -> absl::Status {
    ASSIGN_OR_RETURN(const Record record, ParseRecord<Record>(key, value));
    if (!wanted(record)) return absl::OkStatus();
    v1::Record& raw = changes.records.emplace_back();
    raw.set_key(key.data(), key.size());
    raw.set_value(value.data(), value.size());
    if (!BlobOf(record).file().empty()) changes.blobs.push_back(BlobOf(record));
    return absl::OkStatus();
  };
  return database_->ReadRaw(range, add);
}

absl::Status RunLedger::AddFragment(int fragment, int64_t last_round, RunChanges& changes) {
  // All that belongs to rounds that the copy has came before them.
  const auto is_new = [&](const auto& record) { return record.commit() > changes.advance.from(); };
  RETURN_IF_ERROR(AddRecords<v1::Contribution>(
      RangeOf<v1::Contribution>(fragment, last_round + 1, kNoLimit), is_new, changes));
  RETURN_IF_ERROR(AddRecords<v1::Round>(RangeOf<v1::Round>(fragment, last_round + 1, kNoLimit),
                                        is_new, changes));
  v1::FilesGone& gone = *changes.advance.add_gone();
  gone.set_fragment(fragment);
  gone.set_deltas(At(deltas_gone_, fragment));
  gone.set_answers(At(forgotten_before_, fragment));
  return absl::OkStatus();
}

absl::StatusOr<RunChanges> RunLedger::ChangesSince(const v1::CopyPosition& position) {
  const std::string& run_id = identity_.run_id();
  if (!position.run_id().empty() && position.run_id() != run_id) {
    return absl::FailedPreconditionError(absl::StrCat("this is the run ", run_id,
                                                      ", the folder that follows holds the run ",
                                                      position.run_id(), ": ", kMoveAway));
  }
  RunChanges changes;
  const int64_t from = position.commits();
  changes.advance.set_from(from);
  changes.advance.set_to(database_->commits());
  changes.advance.set_digest(database_->digest());
  if (from < 1 || from > changes.advance.to()) {
    return absl::OutOfRangeError(
        absl::StrCat("the folder that follows has ", from, " commits of run ", run_id,
                     ", this coordinator only ", changes.advance.to(),
                     ": it serves an older copy. Serve the folder that has more; or, ", kMoveAway));
  }
  if (changes.empty()) {
    if (position.digest() == changes.advance.digest()) return changes;
    return absl::OutOfRangeError(
        absl::StrCat("the folder that follows has other records than this coordinator at commit ",
                     from, " of run ", run_id, ": both were served. ", kMoveAway));
  }
  const auto all = [](const auto&) { return true; };
  if (ChangedSince(RecordKey(v1::State()), from)) {
    RETURN_IF_ERROR(AddRecords<v1::State>(AllOf<v1::State>(), all, changes));
  }
  const auto changed = [&](const v1::Member& member) {
    return ChangedSince(RecordKey(member), from);
  };
  RETURN_IF_ERROR(AddRecords<v1::Member>(AllOf<v1::Member>(), changed, changes));
  for (int fragment = 0; fragment < identity_.initial_hashes_size(); ++fragment) {
    if (!ChangedSince(FragmentName(fragment), from)) continue;
    const int64_t last =
        fragment < position.last_rounds_size() ? position.last_rounds(fragment) : 0;
    RETURN_IF_ERROR(AddFragment(fragment, std::clamp<int64_t>(last, 0, kNoLimit - 1), changes));
  }
  changes.advance.set_all_snapshots(ChangedSince(std::string(kKind<v1::Snapshot>), from));
  if (changes.advance.all_snapshots()) {
    const size_t before = changes.blobs.size();
    std::set<std::string> known;  // Files of the copy.
    const auto note = [&](const v1::Snapshot& snapshot) {
      if (snapshot.commit() <= from) known.insert(snapshot.state().file());
      return true;
    };
    RETURN_IF_ERROR(AddRecords<v1::Snapshot>(AllOf<v1::Snapshot>(), note, changes));
    changes.blobs.erase(
        std::remove_if(changes.blobs.begin() + static_cast<std::ptrdiff_t>(before),
                       changes.blobs.end(),
                       [&](const v1::Blob& blob) { return known.contains(blob.file()); }),
        changes.blobs.end());
  }
  return changes;
}

absl::Status RunLedger::Apply(const RunChanges& changes,
                              absl::FunctionRef<absl::Status(const v1::Blob&)> check,
                              DatabaseEdit& edit, Freed& freed, std::vector<v1::Round>& rounds) {
  ASSIGN_OR_RETURN(const std::vector<v1::Snapshot> former,
                   edit.Read<v1::Snapshot>(AllOf<v1::Snapshot>()));
  std::set<std::string> snapshots;  // Records, as bytes.
  for (const v1::Record& record : changes.records) {
    const auto checked = [&](auto parsed) -> absl::StatusOr<decltype(parsed)> {
      ASSIGN_OR_RETURN(parsed, ParseRecord<decltype(parsed)>(record.key(), record.value()));
      RETURN_IF_ERROR(check(BlobOf(parsed)));
      return parsed;
    };
    const absl::string_view kind = KindOf(record.key());
    if (kind == kKind<v1::State>) {
      RETURN_IF_ERROR(checked(v1::State()).status());
    } else if (kind == kKind<v1::Member>) {
      RETURN_IF_ERROR(checked(v1::Member()).status());
    } else if (kind == kKind<v1::Contribution>) {
      RETURN_IF_ERROR(checked(v1::Contribution()).status());
    } else if (kind == kKind<v1::Round>) {
      ASSIGN_OR_RETURN(rounds.emplace_back(), checked(v1::Round()));
    } else {
      ASSIGN_OR_RETURN(const v1::Snapshot parsed, checked(v1::Snapshot()));
      snapshots.insert(absl::StrCat(record.key(), " ", parsed.state().file()));
    }
    RETURN_IF_ERROR(edit.Put(record));
  }
  for (const v1::Snapshot& snapshot : former) {
    if (!changes.advance.all_snapshots() ||
        snapshots.contains(absl::StrCat(RecordKey(snapshot), " ", snapshot.state().file()))) {
      continue;
    }
    RETURN_IF_ERROR(edit.Remove(snapshot));
    freed.push_back(snapshot.state());
  }
  for (const v1::FilesGone& gone : changes.advance.gone()) {
    const int fragment = gone.fragment();
    // Numbers of another coordinator, which may be any.
    constexpr int64_t kLast = std::numeric_limits<int64_t>::max() - 1;
    const int64_t deltas_from = std::min(At(deltas_gone_, fragment), kLast) + 1;
    const int64_t answers_to = std::max(gone.answers(), int64_t{1}) - 1;
    RETURN_IF_ERROR(
        EmptyFiles<v1::Contribution>(edit, fragment, deltas_from, gone.deltas(), freed));
    RETURN_IF_ERROR(
        EmptyFiles<v1::Round>(edit, fragment, At(forgotten_before_, fragment), answers_to, freed));
  }
  return absl::OkStatus();
}

absl::Status RunLedger::Advance(const RunChanges& changes,
                                absl::FunctionRef<absl::Status(const v1::Blob&)> check,
                                Freed& freed) {
  std::vector<v1::Round> rounds;
  std::vector<std::string> keys;
  v1::Commit as;
  as.set_number(changes.advance.to());
  as.set_digest(changes.advance.digest());
  const auto apply = [&](DatabaseEdit& edit) -> absl::Status {
    RETURN_IF_ERROR(Apply(changes, check, edit, freed, rounds));
    keys = edit.changed();
    return absl::OkStatus();
  };
  const absl::Status status = database_->Commit(apply, &as);
  if (absl::IsDataLoss(status) || absl::IsAlreadyExists(status)) {
    return absl::DataLossError(absl::StrCat(status.message(),
                                            ": it holds another history of the run, as after both "
                                            "were served or one was restored from an older copy; ",
                                            kMoveAway));
  }
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(witness_->Update(database_->commits()));
  NoteChanged(keys);
  for (const v1::FilesGone& gone : changes.advance.gone()) {
    deltas_gone_[gone.fragment()] = gone.deltas();
    forget_before_[gone.fragment()] = forgotten_before_[gone.fragment()] = gone.answers();
  }
  std::ranges::sort(rounds, {}, &v1::Round::commit);
  for (const v1::Round& round : rounds) NoteRound(round);
  return absl::OkStatus();
}

}  // namespace causeway::server
