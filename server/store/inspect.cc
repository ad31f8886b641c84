#include "server/store/inspect.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/checksum.h"
#include "common/files/json.h"
#include "common/params/draws.h"
#include "server/store/run_database.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

using nlohmann::json;

// The owner may move the log while it is copied; the checks notice, and another try succeeds.
constexpr int kTries = 10;
constexpr absl::Duration kPause = absl::Milliseconds(50);

struct Copy {
  RecoveredRun run;
  int64_t commits = 0;
  std::string owner;  // Empty: nobody, from the beginning to the end.
  std::vector<std::string> orphans;
};

// `owner`: before.
absl::StatusOr<Copy> ReadCopy(FileSystem& file_system, const std::string& folder,
                              const std::string& owner) {
  // Before the copy, which then is not behind them.
  ASSIGN_OR_RETURN(const FolderTraces traces, ReadTraces(file_system, folder));
  Copy copy;
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<DatabaseCopy> copied,
                     DatabaseCopy::Make(file_system, folder));
    ASSIGN_OR_RETURN(const std::unique_ptr<RunDatabase> database, copied->Open());
    absl::StatusOr<RecoveredRun> run = database->Load();
    if (!run.ok()) return copied->Named(run.status());
    copy.run = *std::move(run);
    copy.commits = database->commits();
  }
  copy.owner = owner;
  if (owner.empty()) {
    ASSIGN_OR_RETURN(copy.owner, file_system.LockOwner(folder));
  }
  RETURN_IF_ERROR(CheckBlobs(file_system, folder, traces, copy.run, copy.commits,
                             /*in_use=*/!copy.owner.empty(), copy.orphans));
  return copy;
}

struct Totals {
  int64_t deltas = 0;
  int64_t answers = 0;
  int64_t snapshots = 0;
};

// By fragment.
json FragmentsToJson(const RecoveredRun& run, Totals& totals) {
  std::vector<json> fragments;
  for (const uint64_t initial_hash : run.identity.initial_hashes()) {
    fragments.push_back({{"fragment", fragments.size()},
                         {"version", 0},
                         {"published_hash", HashToHex(initial_hash)},
                         {"last_round", nullptr},
                         {"waiting", json::array()},
                         {"snapshots", json::array()},
                         {"contributions", 0},
                         {"deltas_kept", 0},
                         {"delta_bytes", 0},
                         {"answers_kept", 0},
                         {"answer_bytes", 0},
                         {"quarantined", 0}});
  }
  const auto add = [](json& entry, const char* key, int64_t amount) {
    entry[key] = entry[key].get<int64_t>() + amount;
  };
  for (const v1::Round& round : run.rounds) {
    json& entry = fragments.at(static_cast<size_t>(round.fragment()));
    entry["version"] = round.round();
    entry["published_hash"] = HashToHex(round.published_hash());
    entry["last_round"] = MessageToJson(round);
    if (round.answer().file().empty()) continue;
    add(entry, "answers_kept", 1);
    add(entry, "answer_bytes", round.answer().bytes());
    totals.answers += round.answer().bytes();
  }
  for (const v1::Contribution& record : run.contributions) {
    const v1::PushHeader& header = record.header();
    json& entry = fragments.at(static_cast<size_t>(header.fragment()));
    add(entry, "contributions", 1);
    if (record.quarantined()) add(entry, "quarantined", 1);
    if (!record.delta().file().empty()) {
      add(entry, "deltas_kept", 1);
      add(entry, "delta_bytes", record.delta().bytes());
      totals.deltas += record.delta().bytes();
    }
    if (header.round() > entry["version"].get<int64_t>()) {
      entry["waiting"].push_back({{"round", header.round()},
                                  {"worker_id", header.worker_id()},
                                  {"bytes", header.total_bytes()},
                                  {"object_hash", HashToHex(header.object_hash())}});
    }
  }
  for (const v1::Snapshot& snapshot : run.snapshots) {
    totals.snapshots += snapshot.state().bytes();
    json& entry = fragments.at(static_cast<size_t>(snapshot.fragment()))["snapshots"];
    entry.push_back(MessageToJson(snapshot));
    entry.back()["file"] = snapshot.state().file();
    entry.back()["bytes"] = snapshot.state().bytes();
  }
  return fragments;
}

json MembersToJson(const std::vector<v1::Member>& members) {
  json result = json::array();
  for (const v1::Member& member : members) {
    result.push_back(MessageToJson(member));
    result.back()["state"] = absl::AsciiStrToLower(v1::Member::State_Name(member.state()));
  }
  return result;
}

json StateToJson(v1::State state) {
  if (state.has_invitations()) {
    for (v1::Invitation& made : *state.mutable_invitations()->mutable_invitations()) {
      made.clear_certificate();
    }
  }
  return MessageToJson(state);
}

int64_t SizeOrZero(FileSystem& file_system, const std::string& path) {
  return static_cast<int64_t>(file_system.FileSize(path).value_or(0));
}

std::string Bytes(const json& value) {
  const auto bytes = value.get<double>();
  if (bytes < 1e3) return absl::StrFormat("%.0f B", bytes);
  if (bytes < 1e6) return absl::StrFormat("%.1f kB", bytes / 1e3);
  if (bytes < 1e9) return absl::StrFormat("%.1f MB", bytes / 1e6);
  return absl::StrFormat("%.1f GB", bytes / 1e9);
}

std::string Text(const json& value) { return value.get<std::string>(); }
int64_t Number(const json& value) { return value.get<int64_t>(); }

std::string FragmentText(const json& fragment) {
  std::string text =
      absl::StrFormat("fragment %d: version %d, published hash %s\n", Number(fragment["fragment"]),
                      Number(fragment["version"]), Text(fragment["published_hash"]));
  if (const json& round = fragment["last_round"]; !round.is_null()) {
    absl::StrAppendFormat(
        &text, "  last round   %d of %s, %s in, %s out: %s\n", Number(round["round"]),
        absl::StrJoin(round["contributors"].get<std::vector<std::string>>(), ", "),
        Bytes(round["bytes_in"]), Bytes(round["bytes_out"]), Text(round["reason"]));
  }
  for (const json& waiting : fragment["waiting"]) {
    absl::StrAppendFormat(&text, "  waiting      round %d: %s of %s, hash %s\n",
                          Number(waiting["round"]), Bytes(waiting["bytes"]),
                          Text(waiting["worker_id"]), Text(waiting["object_hash"]));
  }
  for (const json& snapshot : fragment["snapshots"]) {
    absl::StrAppendFormat(&text, "  snapshot     version %d, %s, hash %s, %s\n",
                          Number(snapshot["version"]), Bytes(snapshot["bytes"]),
                          Text(snapshot["published_hash"]), Text(snapshot["file"]));
  }
  absl::StrAppendFormat(&text,
                        "  kept         %d of %d deltas (%s; %d quarantined), %d answers (%s)\n",
                        Number(fragment["deltas_kept"]), Number(fragment["contributions"]),
                        Bytes(fragment["delta_bytes"]), Number(fragment["quarantined"]),
                        Number(fragment["answers_kept"]), Bytes(fragment["answer_bytes"]));
  return text;
}

absl::StatusOr<Copy> CopyRun(FileSystem& file_system, const std::string& folder,
                             absl::FunctionRef<void(absl::Duration)> pause) {
  RETURN_IF_ERROR(CheckHoldsRun(file_system, folder));
  for (int i = 0;; ++i) {
    if (i > 0) pause(kPause);
    ASSIGN_OR_RETURN(std::string owner, file_system.LockOwner(folder));
    absl::StatusOr<Copy> copy = ReadCopy(file_system, folder, owner);
    if (copy.ok()) return copy;
    if (owner.empty()) {
      // Unless somebody became its owner meanwhile, that is how the folder is.
      ASSIGN_OR_RETURN(owner, file_system.LockOwner(folder));
      if (owner.empty()) return copy.status();
    }
    if (i + 1 == kTries) {
      return absl::UnavailableError(absl::StrCat(
          folder, " could not be copied in ", kTries, " tries while process ", owner,
          " uses it; try again, or when it has stopped. The last try: ", copy.status().message()));
    }
  }
}

}  // namespace

absl::StatusOr<json> InspectRun(FileSystem& file_system, const std::string& folder,
                                absl::FunctionRef<void(absl::Duration)> pause) {
  ASSIGN_OR_RETURN(const Copy copy, CopyRun(file_system, folder, pause));
  const int64_t database_bytes = SizeOrZero(file_system, JoinPath(folder, kDatabaseFile)) +
                                 SizeOrZero(file_system, JoinPath(folder, kDatabaseLogFile));
  Totals totals;
  const RecoveredRun& run = copy.run;
  json fragments = FragmentsToJson(run, totals);
  return json{{"folder", folder},
              {"format_version", kRunFormatVersion},
              {"in_use_by", copy.owner},
              {"commits", copy.commits},
              {"run",
               {{"run_id", run.identity.run_id()},
                {"run_name", run.identity.config().run_name()},
                {"config_hash", HashToHex(run.identity.config_hash())},
                {"plan_hash", HashToHex(run.identity.plan_hash())}}},
              {"state", StateToJson(run.state)},
              {"fragments", std::move(fragments)},
              {"members", MembersToJson(run.members)},
              {"data", ReportDraws(run.contributions)},
              {"bytes",
               {{"database", database_bytes},
                {"deltas", totals.deltas},
                {"answers", totals.answers},
                {"snapshots", totals.snapshots}}},
              {"orphans", copy.owner.empty() ? json(copy.orphans) : json()}};
}

std::string InspectionText(const json& inspection) {
  const json& run = inspection["run"];
  const json& state = inspection["state"];
  const json& bytes = inspection["bytes"];
  const std::string owner = Text(inspection["in_use_by"]);
  std::string text = absl::StrFormat(
      "%s: run %s, format version %d, %d commits%s\n", Text(inspection["folder"]),
      Text(run["run_id"]), Number(inspection["format_version"]), Number(inspection["commits"]),
      owner.empty() ? "" : absl::StrCat("; in use by process ", owner));
  absl::StrAppendFormat(&text, "configuration hash %s, plan hash %s\n", Text(run["config_hash"]),
                        Text(run["plan_hash"]));
  absl::StrAppend(&text, state["finish_recorded"].get<bool>() ? "finished"
                         : state["paused"].get<bool>()
                             ? absl::StrCat("paused: ", Text(state["pause_reason"]))
                         : state["started"].get<bool>() ? "started"
                                                        : "not started yet");
  if (Number(state["stop_step"]) > 0) {
    absl::StrAppend(&text, ", to stop at step ", Number(state["stop_step"]));
  }
  if (Number(state["stop_tokens"]) > 0) {
    absl::StrAppend(&text, ", to stop at ", Number(state["stop_tokens"]), " tokens");
  }
  absl::StrAppendFormat(&text, "; %d hashes compared, %d differed\n", Number(state["hash_checks"]),
                        Number(state["hash_mismatches"]));
  absl::StrAppendFormat(&text, "on disk: database %s, deltas %s, answers %s, snapshots %s\n",
                        Bytes(bytes["database"]), Bytes(bytes["deltas"]), Bytes(bytes["answers"]),
                        Bytes(bytes["snapshots"]));
  for (const json& fragment : inspection["fragments"]) text += FragmentText(fragment);
  for (const json& member : inspection["members"]) {
    absl::StrAppendFormat(&text, "member %s: %s, incarnation %d, data slot %d, step %d\n",
                          Text(member["worker_id"]), Text(member["state"]),
                          member["incarnation"].get<uint64_t>(), Number(member["data_slot"]),
                          Number(member["step"]));
  }
  for (const json& part : inspection["data"]) {
    absl::StrAppendFormat(
        &text, "data %s: drawn up to %d, %d skipped, %d repeated\n",
        part["worker_id"].is_null() ? absl::StrCat("part ", Number(part["data_slot"]))
                                    : absl::StrCat("of ", Text(part["worker_id"]), " alone"),
        Number(part["next_draw"]), Number(part["skipped"]), Number(part["repeated"]));
    for (const json& worker : part["trained_by"]) {
      absl::StrAppendFormat(&text, "  %d by %s: %s\n", Number(worker["count"]),
                            Text(worker["worker_id"]), Text(worker["draws"]));
    }
  }
  for (const json& orphan : inspection["orphans"]) {
    absl::StrAppend(&text, "orphan ", Text(orphan), ": the next start removes it\n");
  }
  return text;
}

namespace {

struct Part {
  std::map<int, Draws> by_fragment;
  std::map<std::string, Draws> by_worker;
};

// Sorted and joined. Returns how many draws were there more than once.
int64_t Join(Draws& draws) {
  std::sort(draws.begin(), draws.end(),
            [](const DrawRange& a, const DrawRange& b) { return a.begin < b.begin; });
  int64_t repeated = 0;
  Draws joined;
  for (const DrawRange& range : draws) {
    if (joined.empty() || range.begin > joined.back().end) {
      joined.push_back(range);
      continue;
    }
    int64_t& end = joined.back().end;
    repeated += std::max<int64_t>(0, std::min(end, range.end) - range.begin);
    end = std::max(end, range.end);
  }
  draws = std::move(joined);
  return repeated;
}

int64_t Count(const Draws& draws) {
  int64_t count = 0;
  for (const DrawRange& range : draws) count += range.end - range.begin;
  return count;
}

}  // namespace

json ReportDraws(const std::vector<v1::Contribution>& contributions) {
  std::map<std::pair<int, std::string>, Part> parts;
  for (const v1::Contribution& contribution : contributions) {
    const v1::PushHeader& header = contribution.header();
    for (const DrawRange& range : DrawsOf(header.draws())) {
      Part& part = parts[{range.slot, range.slot == kOwnData ? header.worker_id() : std::string()}];
      part.by_fragment[header.fragment()].push_back(range);
      part.by_worker[header.worker_id()].push_back(range);
    }
  }
  json report = json::array();
  for (auto& [key, part] : parts) {
    json entry = {{"data_slot", key.first},
                  {"worker_id", key.second.empty() ? json() : json(key.second)},
                  {"trained_by", json::array()}};
    int64_t repeated = 0;
    for (auto& [fragment, draws] : part.by_fragment) repeated = std::max(repeated, Join(draws));
    Draws all;
    for (auto& [worker_id, draws] : part.by_worker) {
      all.insert(all.end(), draws.begin(), draws.end());
      Join(draws);
      entry["trained_by"].push_back(
          {{"worker_id", worker_id}, {"draws", FormatDraws(draws)}, {"count", Count(draws)}});
    }
    Join(all);
    entry["next_draw"] = all.back().end;
    entry["skipped"] = all.back().end - Count(all);
    entry["repeated"] = repeated;
    report.push_back(std::move(entry));
  }
  return report;
}

}  // namespace causeway::server
