#include "server/planner/star_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "server/planner/rested_connections.h"
#include "server/planner/stragglers.h"

namespace causeway::server {
namespace {

constexpr double kStateBits = 32;
constexpr int64_t kMostIdleEvents = 2'000'000;

// Where nothing tells sites that are alike apart they do everything at the same time: one stands
// for all.
bool AllAtOnce(const StarSetting& setting) {
  return setting.failures.mean_seconds_between == 0 && !setting.disturbances.tells_workers_apart();
}

std::vector<End> EndsOf(const StarSetting& setting, double StarSite::*limit) {
  std::vector<End> ends;
  for (const StarSite& site : setting.sites) {
    const size_t entries = AllAtOnce(setting) ? 1 : static_cast<size_t>(site.count);
    ends.insert(ends.end(), entries, {site.*limit, AllAtOnce(setting) ? site.count : 1});
  }
  return ends;
}

}  // namespace

StarRun::StarRun(const StarSetting& setting)
    : setting_(setting),
      fragments_(static_cast<int>(setting.fragment_values.size())),
      schedule_(fragments_, setting.steps_between_syncs, setting.overlap_steps),
      latest_(std::max(setting.overlap_steps, setting.max_overlap_steps)),
      rounds_(setting.fragment_values.size()),
      links_(EndsOf(setting, &StarSite::up_bit_per_s), EndsOf(setting, &StarSite::down_bit_per_s),
             setting.coordinator.in_bit_per_s, setting.coordinator.out_bit_per_s,
             [this](double time, const StarLinks::Ticket& ticket) {
               At(time, {.kind = Event::kTransferDone, .worker = ticket.worker, .ticket = ticket});
             }),
      tiers_(setting) {
  for (size_t s = 0; s < setting.sites.size(); ++s) {
    for (int i = 0; i < (AllAtOnce(setting) ? 1 : setting.sites[s].count); ++i) {
      Worker worker;
      worker.site = static_cast<int>(s);
      worker.count = AllAtOnce(setting) ? setting.sites[s].count : 1;
      worker.answered.resize(rounds_.size());
      worker.answer_slices.resize(rounds_.size());
      worker.sent_at.resize(rounds_.size(), -1);
      worker.contributed_step.resize(rounds_.size());
      worker.late = LateAnswers(fragments_, setting.sites[s].step_seconds / setting.sites[s].pace);
      workers_.push_back(std::move(worker));
    }
  }
  for (Round& round : rounds_) round.slices.resize(workers_.size());
}

void StarRun::At(double time, Event event) {
  event.time = time;
  event.order = order_++;
  events_.push(event);
}

double StarRun::Counted(double since) const {
  return counting_ ? now_ - std::max(since, counting_since_) : 0;
}

double StarRun::SliceValues(int fragment) const {
  return setting_.fragment_values[static_cast<size_t>(fragment)] / setting_.coordinator.slices;
}

absl::StatusOr<StarResult> StarRun::Run() {
  if (setting_.warm_up_steps == 0) counting_ = true;
  if (counting_) links_.StartCounting(0);
  for (int worker = 0; worker < workers(); ++worker) {
    ScheduleDeath(worker);
  }
  StartDisturbances();
  for (int worker = 0; worker < workers(); ++worker) StartStep(worker);
  int64_t idle_events = 0;  // Since some worker was further than any before.
  for (int64_t furthest = 0; !Over();) {
    if (furthest_step_ > furthest) {
      furthest = furthest_step_;
      idle_events = 0;
    }
    if (events_.empty() || events_.top().time > now_) links_.Share(now_);
    if (events_.empty() || idle_events > kMostIdleEvents) {
      return absl::InvalidArgumentError(
          absl::StrCat("the run gets nowhere: after ", now_,
                       " simulated seconds it has not done its steps; do workers die faster than "
                       "they come back and fetch the state, or is the coordinator hardly ever "
                       "there?"));
    }
    const Event event = events_.top();
    idle_events += event.kind == Event::kRatesDrawn ? 0 : 1;
    events_.pop();
    now_ = event.time;
    Handle(event);
  }
  return Result();
}

// From the last bit at the link's full rate until the object is there.
double StarRun::Latency(const Worker& worker, Way way, double bits) const {
  const StarSite& site = setting_.sites[static_cast<size_t>(worker.site)];
  const StarCoordinator& coordinator = setting_.coordinator;
  const double rate = way == Way::kUp ? std::min(site.up_bit_per_s, coordinator.in_bit_per_s)
                                      : std::min(site.down_bit_per_s, coordinator.out_bit_per_s);
  const double round_trip = 2 * site.one_way_seconds;
  const double late = StragglerSeconds(bits / 8, rate, site.connections, round_trip);
  // Down, the connections have found the link's rate when they carried the state.
  if (way == Way::kDown) return site.one_way_seconds + late;
  return site.one_way_seconds +
         std::max(late, RestedSeconds(bits / 8, rate, site.connections, round_trip));
}

void StarRun::Handle(const Event& event) {
  if (HandleDisturbance(event)) return;
  const auto of_this_life = [&] { return W(event.worker).life == event.life; };
  switch (event.kind) {
    case Event::kTransferDone: {
      Transfer done;
      if (!links_.Finish(now_, event.ticket, done)) return;
      const Worker& worker = W(event.worker);
      At(now_ + Latency(worker, event.ticket.way, done.bits),
         {.kind = event.ticket.way == Way::kUp ? Event::kDeltaArrived : Event::kAnswerArrived,
          .worker = event.worker,
          .fragment = done.fragment,
          .round = done.round,
          .life = worker.life});
      return;
    }
    case Event::kStepDone:
      if (of_this_life()) FinishStep(event.worker);
      return;
    case Event::kDeltaArrived:  // A delta that was sent counts, whatever becomes of its worker.
      return Arrive(event.worker, event.fragment, event.round);
    case Event::kPublished:
      return Publish(event.fragment, event.round);
    case Event::kAnswerArrived:
      if (of_this_life()) Deliver(event.worker, event.fragment, event.round);
      return;
    case Event::kGraceOver:
      return EndGrace(event.fragment, event.round);
    case Event::kLeaseOver:
      if (of_this_life()) EndLease(event.worker);
      return;
    case Event::kRestarted:
      if (of_this_life()) Fetch(event.worker);
      return;
    case Event::kDies:
      if (of_this_life()) Die(event.worker);
      return;
    default:
      return;
  }
}

// --- Workers -------------------------------------------------------------------------------------

void StarRun::StartStep(int worker) {
  Worker& w = W(worker);
  w.state = Worker::kComputing;
  w.since = now_;
  At(now_ + StepSeconds(worker), {.kind = Event::kStepDone, .worker = worker, .life = w.life});
}

void StarRun::FinishStep(int worker) {
  Worker& w = W(worker);
  w.computed += Counted(w.since);
  w.fraction += setting_.sites[static_cast<size_t>(w.site)].pace;
  const double whole = std::floor(w.fraction);
  w.fraction -= whole;
  const int64_t target = std::min(setting_.steps, w.step + static_cast<int64_t>(whole));
  while (w.step < target) {
    ++w.step;
    for (const SyncEvent& event : schedule_.SendsAfter(w.step)) Send(worker, event);
    for (const SyncEvent& event : schedule_.MergesAfter(w.step)) {
      w.due.push_back(event);
      if (!IsAnswered(w, event)) w.late.Begin(event.fragment, now_);
    }
  }
  furthest_step_ = std::max(furthest_step_, w.step);
  if (!counting_ && w.step >= setting_.warm_up_steps) {
    counting_ = true;
    counting_since_ = now_;
    links_.StartCounting(now_);
  }
  if (w.step >= setting_.steps) {
    w.state = Worker::kFinished;
    return;
  }
  GoOn(worker);
}

void StarRun::CountLate(const Worker& worker, int steps) {
  if (steps == 0 || !counting_) return;
  result_.late_steps.insert(result_.late_steps.end(), static_cast<size_t>(worker.count), steps);
}

bool StarRun::IsAnswered(const Worker& worker, const SyncEvent& event) {
  return worker.answered[static_cast<size_t>(event.fragment)] >= event.round;
}

// Merges what is due and has come; then computes on, unless what is missing is due at the latest.
void StarRun::GoOn(int worker) {
  Worker& w = W(worker);
  std::erase_if(w.due, [&](const SyncEvent& event) { return IsAnswered(w, event); });
  if (!w.due.empty() &&
      schedule_.SendStep(w.due.front().fragment, w.due.front().round) + latest_ <= w.step) {
    if (w.state != Worker::kWaiting) w.since = now_;
    w.state = Worker::kWaiting;
    return;
  }
  if (w.state == Worker::kWaiting) w.waited += Counted(w.since);
  StartStep(worker);
}

void StarRun::Send(int worker, const SyncEvent& event) {
  const Round& round = R(event.fragment);
  if (round.number != event.round || round.closed) return;  // It comes too late for that one.
  W(worker).sent_at[static_cast<size_t>(event.fragment)] = now_;
  for (int slice = 0; slice < setting_.coordinator.slices; ++slice) {
    links_.Add(now_, worker, Way::kUp,
               {.fragment = event.fragment,
                .round = event.round,
                .bits = SliceValues(event.fragment) * setting_.bits_up + setting_.object_bits});
  }
}

void StarRun::ScheduleDeath(int worker) {
  const double mean = setting_.failures.mean_seconds_between;
  if (mean == 0) return;
  const double uniform =
      RandomUniform(setting_.seed, static_cast<uint64_t>(worker), W(worker).life);
  At(now_ - mean * std::log1p(-uniform),
     {.kind = Event::kDies, .worker = worker, .life = W(worker).life});
}

void StarRun::Die(int worker) {
  Worker& w = W(worker);
  if (w.state == Worker::kFinished) return;
  if (w.state == Worker::kWaiting) w.waited += Counted(w.since);
  if (w.state == Worker::kComputing || w.state == Worker::kWaiting) {
    // Training since its last contribution of a fragment dies with it.
    double lost_steps = 0;
    double values = 0;
    for (int f = 0; f < fragments_; ++f) {
      const double size = setting_.fragment_values[static_cast<size_t>(f)];
      lost_steps += size * static_cast<double>(w.step - w.contributed_step[static_cast<size_t>(f)]);
      values += size;
    }
    const StarSite& site = setting_.sites[static_cast<size_t>(w.site)];
    if (counting_) w.lost += lost_steps / values * site.step_seconds / site.pace;
  }
  w.state = Worker::kDead;
  ++w.life;
  w.due.clear();
  w.late.Clear();
  w.fetching = 0;
  links_.DropAll(now_, worker);
  if (counting_) ++result_.deaths;
  const StarFailures& failures = setting_.failures;
  if (w.member) {
    At(now_ + failures.lease_seconds,
       {.kind = Event::kLeaseOver, .worker = worker, .life = w.life});
  }
  At(now_ + failures.restart_seconds,
     {.kind = Event::kRestarted, .worker = worker, .life = w.life});
}

void StarRun::EndLease(int worker) {
  W(worker).member = false;
  for (int f = 0; f < fragments_; ++f) {
    Round& round = R(f);
    const bool complete = round.slices[static_cast<size_t>(worker)] == setting_.coordinator.slices;
    round.without_somebody |=
        !complete && W(worker).active_from_step < schedule_.SendStep(f, round.number);
    Progress(f);
  }
}

void StarRun::Fetch(int worker) {
  Worker& w = W(worker);
  w.state = Worker::kFetching;
  w.fetching = fragments_;
  for (int f = 0; f < fragments_; ++f) {
    links_.Add(now_, worker, Way::kDown,
               {.fragment = f,
                .round = 0,
                .bits = setting_.fragment_values[static_cast<size_t>(f)] * kStateBits});
  }
}

// At the step that the run is at, or earlier where an open round could otherwise never close.
void StarRun::Join(int worker) {
  Worker& w = W(worker);
  int64_t step = 0;
  for (const Worker& other : workers_) step = std::max(step, other.step);
  for (int f = 0; f < fragments_; ++f) {
    const Round& round = R(f);
    bool reachable = false;
    for (int other = 0; other < workers(); ++other) {
      reachable |= round.slices[static_cast<size_t>(other)] > 0 || Expects(round, f, W(other));
    }
    if (!reachable) step = std::min(step, schedule_.SendStep(f, round.number) - 1);
  }
  w.member = true;
  w.active_from_step = step;
  w.step = step;
  w.fraction = 0;
  for (size_t f = 0; f < rounds_.size(); ++f) {
    // The fetched state has the round that was being published.
    w.answered[f] = rounds_[f].number - (rounds_[f].published > 0 ? 0 : 1);
    w.answer_slices[f] = 0;
    w.sent_at[f] = -1;
    w.contributed_step[f] = step;
  }
  ScheduleDeath(worker);
  if (w.step >= setting_.steps) {
    w.state = Worker::kFinished;
  } else {
    StartStep(worker);
  }
}

void StarRun::Deliver(int worker, int fragment, int64_t round) {
  Worker& w = W(worker);
  if (round == 0) {
    if (--w.fetching == 0) Join(worker);
    return;
  }
  const auto f = static_cast<size_t>(fragment);
  if (round <= w.answered[f] || ++w.answer_slices[f] < setting_.coordinator.slices) return;
  w.answered[f] = round;
  w.answer_slices[f] = 0;
  CountLate(w, w.late.End(fragment, now_));
  if (w.sent_at[f] >= 0) {
    const double seconds = now_ - w.sent_at[f];
    w.sent_at[f] = -1;
    if (counting_) {
      exchange_seconds_ += seconds * w.count;
      exchanges_ += w.count;
      result_.longest_exchange_seconds = std::max(result_.longest_exchange_seconds, seconds);
    }
  }
  if (w.state == Worker::kWaiting) GoOn(worker);
}

// --- The coordinator -----------------------------------------------------------------------------

bool StarRun::Expects(const Round& round, int fragment, const Worker& worker) const {
  return worker.member && worker.active_from_step < schedule_.SendStep(fragment, round.number);
}

void StarRun::Arrive(int worker, int fragment, int64_t number) {
  Round& round = R(fragment);
  if (round.number != number || round.closed) return;
  int& slices = round.slices[static_cast<size_t>(worker)];
  ++slices;
  const double bytes = SliceValues(fragment) * setting_.bits_up / 8 * W(worker).count;
  round.held_bytes += bytes;
  held_bytes_ += bytes;
  if (counting_) result_.peak_held_bytes = std::max(result_.peak_held_bytes, held_bytes_);
  if (slices == setting_.coordinator.slices) {
    W(worker).contributed_step[static_cast<size_t>(fragment)] =
        schedule_.SendStep(fragment, number);
    if (setting_.coordinator.grace_seconds > 0) {
      int complete = 0;
      for (int w = 0; w < workers(); ++w) {
        if (round.slices[static_cast<size_t>(w)] == slices) complete += W(w).count;
      }
      if (complete >= setting_.coordinator.quorum &&
          complete - W(worker).count < setting_.coordinator.quorum) {
        At(now_ + setting_.coordinator.grace_seconds,
           {.kind = Event::kGraceOver, .fragment = fragment, .round = number});
      }
    }
  }
  Progress(fragment);
}

void StarRun::EndGrace(int fragment, int64_t number) {
  Round& round = R(fragment);
  if (round.number != number || round.closed) return;
  round.closed = true;
  for (int worker = 0; worker < workers(); ++worker) {
    if (round.slices[static_cast<size_t>(worker)] == setting_.coordinator.slices) continue;
    round.without_somebody |= Expects(round, fragment, W(worker));
    links_.Drop(now_, worker, Way::kUp, fragment, number);
    W(worker).sent_at[static_cast<size_t>(fragment)] = -1;
  }
  Progress(fragment);
}

// How many slices can be merged: those that all have sent who are waited for.
int StarRun::ReadySlices(int fragment) const {
  const Round& round = rounds_[static_cast<size_t>(fragment)];
  if (round.closed) return setting_.coordinator.slices;
  int ready = setting_.coordinator.slices;
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    if (Expects(round, fragment, workers_[worker])) ready = std::min(ready, round.slices[worker]);
  }
  std::vector<std::pair<int, int>> arrived;  // Slices, workers.
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    arrived.emplace_back(round.slices[worker], workers_[worker].count);
  }
  std::ranges::sort(arrived, std::greater<>());
  int heard = 0;
  for (const auto& [slices, count] : arrived) {
    heard += count;
    if (heard >= setting_.coordinator.quorum) return std::min(ready, slices);
  }
  return 0;
}

void StarRun::Progress(int fragment) {
  Round& round = R(fragment);
  for (const int ready = ReadySlices(fragment); round.merging < ready; ++round.merging) {
    int contributions = 0;
    for (size_t worker = 0; worker < workers_.size(); ++worker) {
      if (round.slices[worker] > round.merging) contributions += workers_[worker].count;
    }
    const double bytes_per_value =
        kMergedStateBytes + (setting_.bits_up * contributions + setting_.bits_down) / 8;
    const double seconds =
        SliceValues(fragment) * bytes_per_value / setting_.coordinator.merge_bytes_per_s;
    merge_free_ = std::max(merge_free_, now_) + seconds;
    if (counting_) merge_busy_ += seconds;
    const double durable = merge_free_ + setting_.coordinator.commit_seconds;
    At(tiers_.Pass(durable, SliceValues(fragment), counting_),
       {.kind = Event::kPublished, .fragment = fragment, .round = round.number});
  }
}

void StarRun::Publish(int fragment, int64_t number) {
  Round& round = R(fragment);
  ++round.published;
  for (int worker = 0; worker < workers(); ++worker) {
    const Worker& w = W(worker);
    if (w.state == Worker::kDead || w.state == Worker::kFetching) continue;
    links_.Add(now_, worker, Way::kDown,
               {.fragment = fragment,
                .round = number,
                .bits = SliceValues(fragment) * setting_.bits_down + setting_.object_bits});
  }
  if (round.published < setting_.coordinator.slices) return;
  if (counting_) {
    ++result_.rounds;
    result_.rounds_without_somebody += round.without_somebody ? 1 : 0;
  }
  held_bytes_ -= round.held_bytes;
  Round next;
  next.number = number + 1;
  next.slices.resize(workers_.size());
  round = std::move(next);
}

// --- The end -------------------------------------------------------------------------------------

bool StarRun::Over() const {
  bool finished = false;
  for (const Worker& worker : workers_) {
    if (worker.state == Worker::kComputing || worker.state == Worker::kWaiting) return false;
    finished |= worker.state == Worker::kFinished;
  }
  return finished;
}

StarResult StarRun::Result() {
  StarResult& result = result_;
  result.seconds = now_ - counting_since_;
  result.seconds_per_step =
      result.seconds / static_cast<double>(setting_.steps - setting_.warm_up_steps);
  double computed = 0;
  double waited = 0;
  double useful = 0;
  int count = 0;
  for (size_t s = 0; s < setting_.sites.size(); ++s) {
    StarSiteResult site = {.name = setting_.sites[s].name};
    double site_computed = 0;
    double site_waited = 0;
    double site_useful = 0;
    int site_count = 0;
    for (int i = 0; i < workers(); ++i) {
      const Worker& w = W(i);
      if (w.site != static_cast<int>(s)) continue;
      site_count += w.count;
      site_computed += w.computed * w.count;
      site_waited += w.waited * w.count;
      site_useful += std::max(0.0, w.computed - w.lost) * w.count;
      const StarSite& limits = setting_.sites[s];
      site.up_busy += links_.WorkerBits(now_, i, Way::kUp) / limits.up_bit_per_s * w.count;
      site.down_busy += links_.WorkerBits(now_, i, Way::kDown) / limits.down_bit_per_s * w.count;
    }
    const double worker_seconds = result.seconds * site_count;
    site.utilization = site_computed / (site_computed + site_waited);
    site.goodput = site_useful / worker_seconds;
    site.up_busy /= worker_seconds;
    site.down_busy /= worker_seconds;
    computed += site_computed;
    waited += site_waited;
    useful += site_useful;
    count += site_count;
    result.sites.push_back(site);
  }
  result.utilization = computed / (computed + waited);
  result.goodput = useful / (result.seconds * count);
  result.exchange_seconds =
      exchanges_ > 0 ? exchange_seconds_ / static_cast<double>(exchanges_) : 0;
  result.tiers = tiers_.Results(result.seconds);
  for (const Worker& worker : workers_) CountLate(worker, worker.late.Unfinished(now_));
  std::ranges::sort(result.late_steps);
  double values = 0;
  for (const double fragment : setting_.fragment_values) values += fragment;
  result.up_bytes_per_step = values * setting_.bits_up / 8 / setting_.steps_between_syncs;
  result.down_bytes_per_step = values * setting_.bits_down / 8 / setting_.steps_between_syncs;
  const StarCoordinator& coordinator = setting_.coordinator;
  const auto share = [&](Way way, double capacity) {
    return links_.CoordinatorBits(now_, way) / (capacity * result.seconds);
  };
  result.in_busy = share(Way::kUp, coordinator.in_bit_per_s);
  result.out_busy = share(Way::kDown, coordinator.out_bit_per_s);
  result.merge_busy = merge_busy_ / result.seconds;
  return result;
}

}  // namespace causeway::server
