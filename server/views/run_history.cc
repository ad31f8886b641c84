#include "server/views/run_history.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

// More than may be members.
constexpr size_t kMaxHeard = 4096;

// Anything else is nothing that a loss, a time or a number of bytes can be, and would hide the rest
// of a curve.
bool IsPlausible(double value) { return std::isfinite(value) && value >= 0 && value < 1e15; }

void AddIfPlausible(Mean& mean, double value) {
  if (IsPlausible(value)) mean.Add(value);
}

// From one heartbeat to the next of the same process, `seconds` later.
ProgressPoint PointBetween(const v1::Heartbeat& before, const v1::Heartbeat& after,
                           double seconds) {
  ProgressPoint point;
  point.step = after.step();
  AddIfPlausible(point.train_loss, after.train_loss());
  const double compute = after.compute_seconds() - before.compute_seconds();
  const double blocked = after.blocked_seconds() - before.blocked_seconds();
  if (compute >= 0 && blocked >= 0 && compute + blocked > 0) {
    AddIfPlausible(point.utilization, compute / (compute + blocked));
  }
  if (!(seconds > 0)) return point;
  const auto rate = [seconds](int64_t from, int64_t to) {
    // A process that started anew counts from zero again.
    return to >= from ? static_cast<double>(to - from) / seconds : -1.0;
  };
  AddIfPlausible(point.tokens_per_second, rate(before.tokens(), after.tokens()));
  // The state that a worker fetches before it trains is no part of the exchange, and would dwarf
  // it.
  if (before.compute_seconds() <= 0) return point;
  AddIfPlausible(point.up_bytes_per_second, rate(before.bytes_up(), after.bytes_up()));
  AddIfPlausible(point.down_bytes_per_second, rate(before.bytes_down(), after.bytes_down()));
  return point;
}

// Without who took part.
v1::Round FactsOf(v1::Round record) {
  record.clear_contributors();
  record.clear_weights();
  return v1::Round(std::as_const(record));  // A moved one keeps the memory of what was cleared.
}

prometheus::Histogram MakeHistogram() {
  return prometheus::Histogram({0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000});
}

}  // namespace

RunHistory::RunHistory(const Options& options)
    : options_(options),
      next_save_(options.clock->Monotonic() + kSaveInterval),
      phases_{{MakeHistogram(), MakeHistogram(), MakeHistogram(), MakeHistogram()}},
      curves_{{}, BoundedSeries<EvaluationPoint>(options.points)} {}

void RunHistory::Restore(const RecoveredRun& run) {
  absl::MutexLock lock(&mutex_);
  std::vector<const v1::Round*> rounds;
  for (const v1::Round& round : run.rounds) rounds.push_back(&round);
  const size_t kept = std::min(rounds.size(), options_.rounds);
  std::ranges::nth_element(rounds, rounds.end() - static_cast<std::ptrdiff_t>(kept), {},
                           &v1::Round::published_unix_s);
  rounds.erase(rounds.begin(), rounds.end() - static_cast<std::ptrdiff_t>(kept));
  std::ranges::sort(rounds, {}, &v1::Round::published_unix_s);
  std::map<int, int64_t> published;
  for (const v1::Round& round : run.rounds) {
    int64_t& version = published[round.fragment()];
    version = std::max(version, round.round());
  }
  std::map<std::pair<int, int64_t>, RoundTimes*> places;
  for (const v1::Round* const record : rounds) {
    RoundTimes& round = rounds_.emplace_back();
    round.record = FactsOf(*record);
    places[{record->fragment(), record->round()}] = &round;
  }
  std::vector<const v1::Contribution*> open;
  const auto add = [](RoundTimes& round, const v1::Contribution& contribution) {
    round.record.set_send_step(contribution.header().send_step());
    PushTimes& push = round.workers[contribution.header().worker_id()];
    push.arrived_unix_s = contribution.unix_s();
    push.quarantined = contribution.quarantined();
  };
  for (const v1::Contribution& contribution : run.contributions) {
    const v1::PushHeader& header = contribution.header();
    const auto place = places.find({header.fragment(), header.round()});
    if (place != places.end()) {
      add(*place->second, contribution);
    } else if (header.round() > published[header.fragment()]) {
      open.push_back(&contribution);
    }
  }
  // From here on older rounds may make way.
  for (const v1::Contribution* const contribution : open) {
    const v1::PushHeader& header = contribution->header();
    add(FindOrMakeRound(header.fragment(), header.round()), *contribution);
  }
}

BoundedSeries<ProgressPoint>& RunHistory::CurveOf(const std::string& id) {
  const auto found = curves_.workers.find(id);
  if (found != curves_.workers.end()) return found->second;
  if (curves_.workers.size() >= options_.workers) {
    curves_.workers.erase(std::ranges::min_element(
        curves_.workers, {}, [this](const auto& curve) ABSL_NO_THREAD_SAFETY_ANALYSIS {
          const auto worker = heard_.find(curve.first);
          return worker == heard_.end() ? -absl::InfiniteDuration() : worker->second.at;
        }));
  }
  return curves_.workers.try_emplace(id, options_.points).first->second;
}

void RunHistory::AddEvaluation(const v1::Evaluation& evaluation) {
  if (!IsPlausible(evaluation.loss()) || evaluation.step() < 0) return;
  const std::vector<EvaluationPoint>& points = curves_.held_out.points();
  if (!points.empty()) {
    const EvaluationPoint& last = points.back();
    if (last.step == evaluation.step() && last.loss == evaluation.loss()) return;  // As before.
    // The worker has resumed from its checkpoint and measures again.
    curves_.held_out.DropTail(
        [&](const EvaluationPoint& point) { return point.step >= evaluation.step(); });
  }
  curves_.held_out.Add({evaluation.step(), evaluation.loss()});
}

void RunHistory::OnJoined(const std::string& worker_id) {
  const double unix_s = UnixSeconds();
  const absl::Duration now = options_.clock->Monotonic();
  absl::MutexLock lock(&mutex_);
  const auto found = heard_.find(worker_id);
  if (found == heard_.end()) return;
  found->second.unix_s = unix_s;
  found->second.word_at = now;
}

void RunHistory::OnHeartbeat(const std::string& worker_id, const v1::Heartbeat& heartbeat) {
  const double unix_s = UnixSeconds();
  const absl::Duration now = options_.clock->Monotonic();
  absl::MutexLock lock(&mutex_);
  BoundedSeries<ProgressPoint>& curve = CurveOf(worker_id);
  if (heard_.size() >= kMaxHeard && !heard_.contains(worker_id)) {
    heard_.erase(
        std::ranges::min_element(heard_, {}, [](const auto& entry) { return entry.second.at; }));
  }
  const auto [entry, is_first] = heard_.try_emplace(worker_id);
  WorkerHeard& worker = entry->second;
  // One that comes back at an earlier step trains what follows again.
  curve.DropTail([&](const ProgressPoint& point) { return point.step > heartbeat.step(); });
  // A worker that stands still adds nothing; and the first heartbeat tells of no time.
  if (!is_first && heartbeat.step() > worker.heartbeat.step()) {
    ProgressPoint point =
        PointBetween(worker.heartbeat, heartbeat, absl::ToDoubleSeconds(now - worker.at));
    point.unix_s = unix_s;
    curve.Add(point);
  }
  if (heartbeat.has_evaluation()) AddEvaluation(heartbeat.evaluation());
  worker = {.heartbeat = heartbeat, .at = now, .unix_s = unix_s, .word_at = now};
}

RoundTimes* RunHistory::FindRound(int fragment, int64_t round) {
  // The round asked for is almost always among the newest.
  const auto found = std::find_if(rounds_.rbegin(), rounds_.rend(), [&](const RoundTimes& times) {
    return times.record.fragment() == fragment && times.record.round() == round;
  });
  return found == rounds_.rend() ? nullptr : &*found;
}

RoundTimes& RunHistory::FindOrMakeRound(int fragment, int64_t round) {
  RoundTimes* const found = FindRound(fragment, round);
  if (found != nullptr) return *found;
  if (rounds_.size() >= options_.rounds) rounds_.pop_front();
  RoundTimes& made = rounds_.emplace_back();
  made.record.set_fragment(fragment);
  made.record.set_round(round);
  return made;
}

void RunHistory::OnPushBegun(const v1::PushHeader& header) {
  const double now = UnixSeconds();
  absl::MutexLock lock(&mutex_);
  RoundTimes& round = FindOrMakeRound(header.fragment(), header.round());
  round.record.set_send_step(header.send_step());
  PushTimes& push = round.workers[header.worker_id()];
  if (push.sent_unix_s == 0) push.sent_unix_s = now;
}

void RunHistory::OnContributed(const v1::PushHeader& header, bool quarantined) {
  const double now = UnixSeconds();
  absl::MutexLock lock(&mutex_);
  RoundTimes& round = FindOrMakeRound(header.fragment(), header.round());
  round.record.set_send_step(header.send_step());
  PushTimes& push = round.workers[header.worker_id()];
  if (push.arrived_unix_s == 0) push.arrived_unix_s = now;
  push.quarantined = quarantined;
  if (quarantined) ++quarantined_;
  Observe(kTransfer, push.sent_unix_s, push.arrived_unix_s);
}

void RunHistory::OnPublished(const v1::Round& record, const std::vector<std::string>& missing) {
  if (!record.contributors().empty()) {
    Observe(kCollect, record.first_unix_s(), record.closed_unix_s());
    Observe(kMerge, record.closed_unix_s(), record.published_unix_s());
  }
  absl::MutexLock lock(&mutex_);
  if (!missing.empty() || record.contributors().empty()) ++incomplete_;
  merged_ += record.contributors_size();
  RoundTimes& round = FindOrMakeRound(record.fragment(), record.round());
  round.record = FactsOf(record);
  round.missing = missing;
}

void RunHistory::OnApplied(const std::string& worker_id, int fragment, int64_t round) {
  const double now = UnixSeconds();
  absl::MutexLock lock(&mutex_);
  // A worker that comes back applies rounds of long ago.
  RoundTimes* const found = FindRound(fragment, round);
  if (found == nullptr) return;
  PushTimes& push = found->workers[worker_id];
  if (push.applied_unix_s == 0) push.applied_unix_s = now;
  Observe(kApply, found->record.published_unix_s(), push.applied_unix_s);
}

absl::Status RunHistory::RestoreCurves() {
  if (!options_.file_system->Exists(options_.curves_file)) return absl::OkStatus();
  ASSIGN_OR_RETURN(RunCurves curves, ReadRunCurves(*options_.file_system, options_.curves_file,
                                                   options_.run_id, options_.points));
  absl::MutexLock lock(&mutex_);
  for (auto& curve : curves.workers) {
    if (curves_.workers.size() < options_.workers) curves_.workers.insert(std::move(curve));
  }
  curves_.held_out = std::move(curves.held_out);
  return absl::OkStatus();
}

void RunHistory::Tick() {
  if (options_.clock->Monotonic() >= next_save_) SaveCurves();
}

void RunHistory::SaveCurves() {
  next_save_ = options_.clock->Monotonic() + kSaveInterval;
  const absl::Status status =
      WriteRunCurves(*options_.file_system, options_.curves_file, options_.run_id, Curves());
  if (!status.ok() && !save_failed_) {
    Log().warn("the curves cannot be saved: {}", std::string(status.message()));
  }
  save_failed_ = !status.ok();
}

std::map<std::string, WorkerHeard> RunHistory::Workers() const {
  absl::MutexLock lock(&mutex_);
  return heard_;
}

RunCurves RunHistory::Curves() const {
  absl::MutexLock lock(&mutex_);
  return curves_;
}

std::optional<EvaluationPoint> RunHistory::LastEvaluation() const {
  absl::MutexLock lock(&mutex_);
  const std::vector<EvaluationPoint>& points = curves_.held_out.points();
  return points.empty() ? std::nullopt : std::optional(points.back());
}

std::vector<RoundTimes> RunHistory::Rounds(size_t most) const {
  absl::MutexLock lock(&mutex_);
  const size_t count = std::min(most, rounds_.size());
  return {rounds_.end() - static_cast<std::ptrdiff_t>(count), rounds_.end()};
}

void RunHistory::Observe(Phase phase, double from_unix_s, double to_unix_s) {
  if (from_unix_s > 0 && to_unix_s > 0) {
    phases_[phase].Observe(std::max(0.0, to_unix_s - from_unix_s));
  }
}

void RunHistory::AddRoundsTo(MetricPage& page, const v1::RunStatus& status) {
  constexpr const char* kNames[kPhases] = {"transfer", "collect", "merge", "apply"};
  for (size_t phase = 0; phase < kPhases; ++phase) {
    page.Histogram("causeway_round_phase_seconds", "Of rounds.", phases_[phase].Collect().histogram,
                   {{"phase", kNames[phase]}});
  }
  const double now = UnixSeconds();
  double oldest = 0;
  int open = 0;
  absl::MutexLock lock(&mutex_);
  for (const v1::FragmentStatus& fragment : status.fragments()) {
    if (fragment.contributed_size() == 0) continue;
    ++open;
    const RoundTimes* const round =
        FindRound(fragment.fragment(), fragment.published_version() + 1);
    if (round == nullptr) continue;
    for (const auto& [id, push] : round->workers) {
      if (push.arrived_unix_s > 0) oldest = std::max(oldest, now - push.arrived_unix_s);
    }
  }
  page.Gauge("causeway_rounds_open", "With contributions.", open);
  page.Gauge("causeway_round_oldest_open_seconds", "Since its first contribution; 0: none is.",
             oldest);
  page.Counter("causeway_rounds_incomplete_total", "Closed without a worker that was expected.",
               incomplete_);
  const std::string contributions = "causeway_contributions_total";
  const std::string help = "Deltas: merged, late (their round had closed) or quarantined.";
  page.Counter(contributions, help, merged_, {{"outcome", "merged"}});
  page.Counter(contributions, help, quarantined_, {{"outcome", "quarantined"}});
}

}  // namespace causeway::server
