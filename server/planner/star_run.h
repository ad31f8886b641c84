// One simulated run of a star (star_model.h), from its first step to its last.
#ifndef CAUSEWAY_SERVER_PLANNER_STAR_RUN_H_
#define CAUSEWAY_SERVER_PLANNER_STAR_RUN_H_

#include <cstdint>
#include <deque>
#include <queue>
#include <vector>

#include "absl/status/statusor.h"
#include "common/params/sync_schedule.h"
#include "server/planner/disturbances.h"
#include "server/planner/late_answers.h"
#include "server/planner/star_links.h"
#include "server/planner/star_model.h"
#include "server/planner/upper_tiers.h"

namespace causeway::server {

// The setting has been checked and outlives the object. Used once.
class StarRun {
 public:
  explicit StarRun(const StarSetting& setting);

  // INVALID_ARGUMENT if the run gets nowhere: workers die faster than they come back.
  absl::StatusOr<StarResult> Run();

 private:
  struct Event {
    enum Kind {
      kTransferDone,
      kStepDone,
      kDeltaArrived,
      kPublished,
      kAnswerArrived,
      kGraceOver,
      kLeaseOver,
      kRestarted,
      kDies,
      kOutageBegins,
      kOutageEnds,
      kRatesDrawn,
      kSilenceBegins,
      kSilenceEnds
    } kind = kStepDone;
    double time = 0;
    uint64_t order = 0;  // Breaks ties: the event that was made first comes first.
    int worker = 0;
    int fragment = 0;
    int64_t round = 0;
    uint64_t life = 0;              // Life of the worker: an event of an earlier one is void.
    StarLinks::Ticket ticket = {};  // Transfer that is over, with kTransferDone.
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  // One worker, or several alike that do everything at the same time.
  struct Worker {
    enum State { kComputing, kWaiting, kFinished, kDead, kFetching } state = kComputing;
    int site = 0;
    int count = 1;
    bool member = true;
    uint64_t life = 0;
    int64_t active_from_step = 0;
    int64_t step = 0;
    double fraction = 0;  // Part of a step of the schedule, from a pace that is no integer.
    std::deque<SyncEvent> due;
    double since = 0;  // When it began to compute or to wait.
    // By fragment.
    std::vector<int64_t> answered;          // The round merged last, or ready to be.
    std::vector<int> answer_slices;         // Slices that have come of the round after that.
    std::vector<double> sent_at;            // Negative: nothing under way.
    std::vector<int64_t> contributed_step;  // Training until then is not lost.
    int fetching = 0;                       // Fragments of the state on their way.
    LateAnswers late;
    // Belongs to its disturbances.
    InterruptionTimes silences;
    InterruptionTimes pauses;
    InterruptionTimes::Stretch silence;
    InterruptionTimes::Stretch pause;
    bool silent = false;
    double rate = 1;  // Share of its link.
    uint64_t rates_drawn = 0;
    uint64_t steps_begun = 0;
    // Seconds after the warm-up.
    double computed = 0;
    double waited = 0;
    double lost = 0;
  };

  // The open round of a fragment.
  struct Round {
    int64_t number = 1;
    std::vector<int> slices;  // Arrived, by worker.
    bool closed = false;
    bool without_somebody = false;
    int merging = 0;  // Slices given to the merge.
    int published = 0;
    double held_bytes = 0;
  };

  void At(double time, Event event);
  void Handle(const Event& event);
  double Counted(double since) const;
  double Latency(const Worker& worker, Way way, double bits) const;

  // --- Disturbances (star_disturbances.cc) ---
  void StartDisturbances();
  // False for an event that is none of them.
  bool HandleDisturbance(const Event& event);
  void NextOutage();
  void NextSilence(int worker);
  void DrawRates(int worker);
  // Gives the links what outage, silence and jitter leave of them.
  void SetLimits(int worker);
  // Seconds of the inner step that begins now, with what makes it longer; that part is lost.
  double StepSeconds(int worker);

  void StartStep(int worker);
  void FinishStep(int worker);
  void CountLate(const Worker& worker, int steps);
  static bool IsAnswered(const Worker& worker, const SyncEvent& event);
  void GoOn(int worker);
  void Send(int worker, const SyncEvent& event);
  void Die(int worker);
  void EndLease(int worker);
  void Fetch(int worker);
  void Join(int worker);
  void ScheduleDeath(int worker);

  bool Expects(const Round& round, int fragment, const Worker& worker) const;
  void Arrive(int worker, int fragment, int64_t round);
  void EndGrace(int fragment, int64_t round);
  void Progress(int fragment);
  int ReadySlices(int fragment) const;
  void Publish(int fragment, int64_t round);
  void Deliver(int worker, int fragment, int64_t round);

  double SliceValues(int fragment) const;
  bool Over() const;
  StarResult Result();

  Worker& W(int worker) { return workers_[static_cast<size_t>(worker)]; }
  Round& R(int fragment) { return rounds_[static_cast<size_t>(fragment)]; }
  int workers() const { return static_cast<int>(workers_.size()); }

  const StarSetting& setting_;
  const int fragments_;
  const SyncSchedule schedule_;
  const int latest_;  // Steps after its send at which an answer is waited for.
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  double now_ = 0;
  int64_t furthest_step_ = 0;
  std::vector<Worker> workers_;
  std::vector<Round> rounds_;
  double merge_free_ = 0;
  double merge_busy_ = 0;
  StarLinks links_;
  UpperTiers tiers_;
  InterruptionTimes outages_;
  InterruptionTimes::Stretch outage_;
  bool away_ = false;  // The coordinator, until the end of outage_ and what workers take to return.

  bool counting_ = false;
  double counting_since_ = 0;
  double held_bytes_ = 0;
  double exchange_seconds_ = 0;
  int64_t exchanges_ = 0;
  StarResult result_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_STAR_RUN_H_
