#include "server/core/incident_log.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"

namespace causeway::server {
bool IncidentLog::Record(absl::string_view event, const std::string& message,
                         const nlohmann::json& fields) {
  const auto worker = fields.find("worker");
  if (worker == fields.end() || !worker->is_string()) {
    events_.Record(event, message, fields);
    return true;
  }
  std::optional<int64_t> left_out;
  {
    absl::MutexLock lock(&mutex_);
    // Who is refused may choose any name.
    const std::string account = event == "join_refused" ? "" : worker->get<std::string>();
    left_out = budget_.Take(event, account, clock_.Monotonic());
  }
  if (!left_out.has_value()) return false;
  nlohmann::json counted = fields;
  if (*left_out > 0) counted["unrecorded"] = *left_out;
  events_.Record(event, message, counted);
  return true;
}

void IncidentLog::JoinRefused(const v1::Join& join, const absl::Status& refusal) {
  const std::string worker = absl::CHexEscape(join.worker_id().substr(0, 64));
  Record("join_refused", absl::StrCat("worker ", worker, " may not join: ", refusal.message()),
         {{"worker", worker},
          {"code", std::string(absl::StatusCodeToString(refusal.code()))},
          {"reason", std::string(refusal.message())}});
}

void IncidentLog::Late(const v1::PushHeader& header, const absl::Status& late) {
  {
    absl::MutexLock lock(&mutex_);
    constexpr size_t kMost = 4096;  // Ids come and go.
    if (last_late_.size() >= kMost) last_late_.clear();
    int64_t& last = last_late_[{header.fragment(), header.worker_id()}];
    if (last == header.round()) return;
    last = header.round();
  }
  Record(
      "contribution_late", std::string(late.message()),
      {{"worker", header.worker_id()}, {"fragment", header.fragment()}, {"round", header.round()}});
}

void IncidentLog::NoteRoom(const absl::Status& room) {
  if (absl::IsResourceExhausted(room) && !store_is_low_.exchange(true)) {
    Record("store_low", std::string(room.message()), nlohmann::json::object());
  } else if (room.ok() && store_is_low_.exchange(false)) {
    Record("store_has_room", "the disk has room for contributions again", nlohmann::json::object());
  }
}

void IncidentLog::SnapshotRefused(int fragment, const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (!snapshots_refused_.insert(fragment).second) return;
  }
  Record("snapshot_refused", std::string(why.message()), nlohmann::json::object());
}

void IncidentLog::SnapshotSaved(int fragment, int64_t version) {
  {
    absl::MutexLock lock(&mutex_);
    snapshots_refused_.erase(fragment);
  }
  Record("snapshot_saved", absl::StrCat("saved fragment ", fragment, " as of round ", version),
         {{"fragment", fragment}, {"round", version}});
}

void IncidentLog::DrawsIgnored(const v1::PushHeader& header, int foreign, int ahead) {
  std::vector<std::string> what;
  if (foreign > 0) {
    what.push_back(absl::StrCat(foreign, " ranges of parts of the data that it never had"));
  }
  if (ahead > 0) {
    what.push_back(absl::StrCat(ahead, " ranges that end beyond what it can have trained"));
  }
  Record("draws_ignored",
         absl::StrCat("worker ", header.worker_id(), " says that its delta to round ",
                      header.round(), " of fragment ", header.fragment(), " was trained on ",
                      absl::StrJoin(what, " and "), ": the delta counts, these claims do not"),
         {{"worker", header.worker_id()},
          {"fragment", header.fragment()},
          {"round", header.round()},
          {"ranges", foreign + ahead},
          {"ahead", ahead}});
}

void IncidentLog::TokensCut(int fragment, int64_t round, const CutClaim& cut) {
  const std::string what =
      absl::StrCat("worker ", cut.worker_id, " says that its delta to round ", round,
                   " of fragment ", fragment, " stands for ", cut.claimed,
                   " tokens: it counts for ", cut.counted, ", more it cannot have trained");
  const bool recorded = Record("tokens_cut", what,
                               {{"worker", cut.worker_id},
                                {"fragment", fragment},
                                {"round", round},
                                {"claimed", cut.claimed},
                                {"counted", cut.counted}});
  if (!recorded) return;
  if (cut.least_id.empty()) return tell_(cut.worker_id, what);
  const std::string less =
      absl::StrCat(" by what the others say; worker ", cut.least_id, " says ", cut.least);
  tell_(cut.worker_id, absl::StrCat(what, less));
  tell_(cut.least_id, absl::StrCat(what, less,
                                   ". If that is too little, tell this site what it trains "
                                   "(tokens_per_step, or add() at each step)"));
}

void IncidentLog::Quarantined(const v1::PushHeader& header, const AddedContribution& added) {
  const std::string grounds =
      added.quarantine == Quarantine::kRejected ? ", and an operator keeps its worker out"
      : added.quarantine == Quarantine::kOutlier
          ? absl::StrCat(", the median of the last ones is ", added.median,
                         " (membership.outlier_factor)")
          : absl::StrCat(", the fragment takes ", added.cap, " at most (membership.norm_cap)");
  RecordQuarantine(header.worker_id(), header.fragment(), header.round(), added, grounds);
}

void IncidentLog::RecordQuarantine(const std::string& worker_id, int fragment, int64_t round,
                                   const AddedContribution& added, const std::string& grounds) {
  static constexpr absl::string_view kWhy[] = {"", "outlier", "cap", "overflow", "rejected"};
  const std::string what =
      absl::StrCat("the delta of worker ", worker_id, " to round ", round, " of fragment ",
                   fragment, " has the norm ", added.norm, grounds, ": it is kept, but not merged");
  const bool recorded = Record("contribution_quarantined", what,
                               {{"worker", worker_id},
                                {"fragment", fragment},
                                {"round", round},
                                {"norm", added.norm},
                                {"median", added.median},
                                {"cap", added.cap},
                                {"why", std::string(kWhy[static_cast<size_t>(added.quarantine)])}});
  if (recorded) tell_(worker_id, what);
}

void IncidentLog::Published(const PublishedRound& round) {
  const v1::Round& record = round.record;
  for (const CutClaim& cut : round.cut) {
    TokensCut(record.fragment(), record.round(), cut);
  }
  for (const LateQuarantine& held : round.overflowed) {
    RecordQuarantine(held.worker_id, record.fragment(), record.round(),
                     {.quarantine = Quarantine::kOverflow, .norm = held.norm},
                     absl::StrCat(", with which ", held.reason));
  }
  if (round.missing.empty() && !record.contributors().empty()) return;
  Record("round_closed",
         absl::StrCat("round ", record.round(), " of fragment ", record.fragment(),
                      " closed: ", record.reason()),
         {{"fragment", record.fragment()},
          {"round", record.round()},
          {"contributors",
           std::vector<std::string>(record.contributors().begin(), record.contributors().end())},
          {"without", round.missing},
          {"reason", record.reason()}});
}

std::optional<int64_t> EventBudget::Take(absl::string_view event, const std::string& worker_id,
                                         absl::Duration now) {
  std::pair<std::string, std::string> key(event, worker_id);
  if (accounts_.size() >= kMostAccounts && !accounts_.contains(key)) key.second.clear();
  const auto [found, is_new] = accounts_.try_emplace(std::move(key));
  Account& account = found->second;
  if (is_new) account.refilled = now;
  account.left =
      std::min(kEventsAtOnce,
               account.left + kEventsPerSecond * absl::ToDoubleSeconds(now - account.refilled));
  account.refilled = now;
  if (account.left < 1) {
    ++account.left_out;
    return std::nullopt;
  }
  --account.left;
  return std::exchange(account.left_out, 0);
}

}  // namespace causeway::server
