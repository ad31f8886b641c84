#include "server/views/run_history.h"

#include <cmath>
#include <utility>

#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

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

}  // namespace

RunHistory::RunHistory(const Options& options) : options_(options), evaluations_(options.points) {}

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

RunHistory::Worker& RunHistory::FindOrMakeWorker(const std::string& id) {
  const auto found = workers_.find(id);
  if (found != workers_.end()) return found->second;
  if (workers_.size() >= options_.workers) {
    workers_.erase(std::ranges::min_element(workers_, {},
                                            [](const auto& entry) { return entry.second.heard; }));
  }
  return workers_.try_emplace(id, BoundedSeries<ProgressPoint>(options_.points)).first->second;
}

void RunHistory::AddEvaluation(const v1::Evaluation& evaluation) {
  if (!IsPlausible(evaluation.loss()) || evaluation.step() < 0) return;
  const std::vector<EvaluationPoint>& points = evaluations_.points();
  if (!points.empty()) {
    const EvaluationPoint& last = points.back();
    if (last.step == evaluation.step() && last.loss == evaluation.loss()) return;  // As before.
    // The worker has resumed from its checkpoint and measures again.
    evaluations_.DropTail(
        [&](const EvaluationPoint& point) { return point.step >= evaluation.step(); });
  }
  evaluations_.Add({evaluation.step(), evaluation.loss()});
}

void RunHistory::OnHeartbeat(const std::string& worker_id, const v1::Heartbeat& heartbeat) {
  const double unix_s = UnixSeconds();
  const absl::Duration now = options_.clock->Monotonic();
  absl::MutexLock lock(&mutex_);
  Worker& worker = FindOrMakeWorker(worker_id);
  const bool is_first = worker.unix_s == 0;
  const double seconds = absl::ToDoubleSeconds(now - worker.heard);
  if (heartbeat.step() < worker.heartbeat.step()) {
    worker.series.DropTail(
        [&](const ProgressPoint& point) { return point.step > heartbeat.step(); });
  }
  // A worker that stands still adds nothing; and the first heartbeat tells of no time.
  if (!is_first && heartbeat.step() > worker.heartbeat.step()) {
    ProgressPoint point = PointBetween(worker.heartbeat, heartbeat, seconds);
    point.unix_s = unix_s;
    worker.series.Add(point);
  }
  if (heartbeat.has_evaluation()) AddEvaluation(heartbeat.evaluation());
  worker.heartbeat = heartbeat;
  worker.heard = now;
  worker.unix_s = unix_s;
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
}

void RunHistory::OnPublished(const v1::Round& record, const std::vector<std::string>& missing) {
  absl::MutexLock lock(&mutex_);
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
}

absl::Status RunHistory::SaveCurves(FileSystem& file_system, const std::string& path,
                                    const std::string& run_id) const {
  RunCurves curves{{}, BoundedSeries<EvaluationPoint>(options_.points)};
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, worker] : workers_) curves.workers.try_emplace(id, worker.series);
    curves.held_out = evaluations_;
  }
  return WriteRunCurves(file_system, path, run_id, curves);
}

absl::Status RunHistory::RestoreCurves(FileSystem& file_system, const std::string& path,
                                       const std::string& run_id) {
  if (!file_system.Exists(path)) return absl::OkStatus();
  ASSIGN_OR_RETURN(RunCurves curves, ReadRunCurves(file_system, path, run_id, options_.points));
  absl::MutexLock lock(&mutex_);
  for (auto& [id, series] : curves.workers) {
    if (workers_.size() >= options_.workers) break;
    const std::vector<ProgressPoint>& points = series.points();
    const int64_t step = points.empty() ? 0 : points.back().step;
    // A worker that comes back at an earlier step trains what follows again.
    workers_.try_emplace(id, std::move(series)).first->second.heartbeat.set_step(step);
  }
  evaluations_ = std::move(curves.held_out);
  return absl::OkStatus();
}

std::vector<WorkerHeard> RunHistory::Workers() const {
  const absl::Duration now = options_.clock->Monotonic();
  absl::MutexLock lock(&mutex_);
  std::vector<WorkerHeard> result;
  for (const auto& [id, worker] : workers_) {
    if (worker.unix_s == 0) continue;
    result.push_back({.worker_id = id,
                      .heartbeat = worker.heartbeat,
                      .heard_unix_s = worker.unix_s,
                      .heard_seconds_ago = absl::ToDoubleSeconds(now - worker.heard)});
  }
  return result;
}

std::vector<WorkerCurve> RunHistory::Curves() const {
  absl::MutexLock lock(&mutex_);
  std::vector<WorkerCurve> result;
  for (const auto& [id, worker] : workers_) {
    result.push_back({.worker_id = id, .points = worker.series.points()});
  }
  return result;
}

std::vector<EvaluationPoint> RunHistory::Evaluations() const {
  absl::MutexLock lock(&mutex_);
  return evaluations_.points();
}

RoundTimes RunHistory::Round(int fragment, int64_t round) {
  absl::MutexLock lock(&mutex_);
  const RoundTimes* const found = FindRound(fragment, round);
  return found == nullptr ? RoundTimes() : *found;
}

std::vector<RoundTimes> RunHistory::Rounds(size_t most) const {
  absl::MutexLock lock(&mutex_);
  const size_t count = std::min(most, rounds_.size());
  return {rounds_.end() - static_cast<std::ptrdiff_t>(count), rounds_.end()};
}

void CurveKeeper::Restore() {
  const absl::Status status = history_->RestoreCurves(*file_system_, path_, run_id_);
  if (!status.ok()) {
    Log().warn("the curves begin anew: {}", std::string(status.message()));
  }
}

void CurveKeeper::Tick() {
  if (clock_->Monotonic() >= next_save_) Save();
}

void CurveKeeper::Save() {
  next_save_ = clock_->Monotonic() + kInterval;
  const absl::Status status = history_->SaveCurves(*file_system_, path_, run_id_);
  if (!status.ok() && !failed_) {
    Log().warn("the curves cannot be saved: {}", std::string(status.message()));
  }
  failed_ = !status.ok();
}

}  // namespace causeway::server
