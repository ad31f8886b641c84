#include "worker/sync/sync_engine.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"

namespace causeway::worker {
namespace {

constexpr int kMaxTransferThreads = 16;
// With slack: more answers may be awaited at once.
constexpr int kMaxElasticThreads = 64;

constexpr absl::Duration kMeanwhile = absl::Milliseconds(100);

int MostInFlight(const SyncSchedule& schedule, const v1::SyncConfig& config, int max_advance,
                 int most) {
  const int64_t steps = int64_t{MaxOverlapSteps(config)} + max_advance - 1;
  const int64_t overlapping = schedule.fragments() * steps / config.steps_between_syncs() + 2;
  return static_cast<int>(
      std::min(overlapping, static_cast<int64_t>(std::min(schedule.fragments(), most))));
}

MergeSteps StepsOf(const std::vector<RecordedMerge>& merges) {
  MergeSteps steps;
  for (const RecordedMerge& merge : merges) {
    steps[{merge.event.fragment, merge.event.round}] = merge.step;
  }
  return steps;
}

}  // namespace

std::string SyncEngine::Describe(const SyncEvent& event) {
  return absl::StrCat("round ", event.round, " of fragment ", event.fragment);
}

SyncEngine::SyncEngine(Options options)
    : options_(std::move(options)),
      schedule_(options_.plan->fragments(), options_.config.steps_between_syncs(),
                MaxOverlapSteps(options_.config)),
      early_(options_.config, schedule_, StepsOf(options_.recorded_merges)),
      gradients_(options_.config.contribution() == v1::SyncConfig::GRADIENT),
      keeps_in_flight_(options_.config.keep_in_flight() > 0),
      codec_up_(FindCodec(options_.config.codec_up()).value()),
      codec_down_(FindCodec(options_.config.codec_down()).value()),
      fragments_(static_cast<size_t>(options_.plan->fragments())),
      data_slot_(options_.data_slot),
      threads_(std::make_unique<WorkQueue>(
          MostInFlight(schedule_, options_.config, options_.max_advance,
                       early_.possible() ? kMaxElasticThreads : kMaxTransferThreads))),
      encoders_(std::make_unique<WorkQueue>(
          MostInFlight(schedule_, options_.config, options_.max_advance, kMaxTransferThreads))) {}

SyncEngine::~SyncEngine() {
  options_.exchange->Cancel();
  encoders_->Drop();
  threads_->Drop();
}

absl::Status SyncEngine::CheckState(const State& state, int64_t step) const {
  const auto values = static_cast<size_t>(options_.plan->arena_size());
  if (state.fragments.size() != fragments_.size() || state.published.size() != values ||
      (!state.residual.empty() && state.residual.size() != values)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint's synchronization state has ", state.fragments.size(), " fragments of ",
        state.published.size(), " values and ", state.residual.size(),
        " of residual; this run has ", fragments_.size(), " of ", values));
  }
  for (size_t i = 0; i < fragments_.size(); ++i) {
    const int index = static_cast<int>(i);
    const State::Fragment& saved = state.fragments[i];
    const auto wrong = [&](auto... what) {
      return absl::InvalidArgumentError(
          absl::StrCat("the checkpoint's state of fragment ", index, " has ", what...));
    };
    if (saved.version < 0 || saved.version > kMaxVersion) {
      return wrong("the version ", saved.version);
    }
    if (saved.tokens < 0 || saved.tokens_in_flight < 0) {
      return wrong(saved.tokens, " and, in flight, ", saved.tokens_in_flight, " tokens");
    }
    if (std::ssize(saved.draws) > kMaxDrawRanges ||
        std::ssize(saved.draws_in_flight) > kMaxDrawRanges) {
      return wrong(saved.draws.size(), " and, in flight, ", saved.draws_in_flight.size(),
                   " ranges of draws; ", kMaxDrawRanges, " are the most");
    }
    // A fragment is in flight once: with the round that was sent last, until that is merged.
    const int64_t sent = schedule_.RoundsSentBy(index, step);
    const bool fits = saved.round_in_flight == 0
                          ? saved.version >= sent
                          : saved.round_in_flight == sent && saved.version == sent - 1;
    if (!fits) {
      return wrong("version ", saved.version, " and round ", saved.round_in_flight,
                   " in flight; after step ", step, " round ", sent, " was sent last");
    }
    const size_t bytes =
        codec_up_->EncodedBytes(static_cast<size_t>(options_.plan->range(index).size()));
    if (!saved.object_in_flight.empty() && saved.object_in_flight.size() != bytes) {
      return wrong(saved.object_in_flight.size(), " bytes in flight; a delta has ", bytes);
    }
    const bool holds = keeps_in_flight_ && saved.round_in_flight != 0;
    const int64_t held = holds ? options_.plan->range(index).size() : 0;
    if (std::ssize(saved.held) != held) {
      return wrong(saved.held.size(), " local values of its send; expected ", held);
    }
  }
  return absl::OkStatus();
}

absl::Status SyncEngine::Restore(State state, int64_t step) {
  RETURN_IF_ERROR(CheckState(state, step));
  RETURN_IF_ERROR(
      options_.replica->Restore({std::move(state.published), std::move(state.residual)}));
  last_step_ = step;
  next_draw_ = state.next_draw;
  std::vector<std::shared_ptr<Flight>> flights;
  for (size_t i = 0; i < fragments_.size(); ++i) {
    State::Fragment& saved = state.fragments[i];
    fragments_[i].version = saved.version;
    fragments_[i].tokens = saved.tokens;
    fragments_[i].draws = std::move(saved.draws);
    if (saved.round_in_flight == 0) continue;
    if (keeps_in_flight_) {
      RETURN_IF_ERROR(options_.replica->SetHeld(static_cast<int>(i), saved.held));
    }
    auto flight = std::make_shared<Flight>();
    flight->event = {static_cast<int>(i), saved.round_in_flight};
    flight->tokens = saved.tokens_in_flight;
    flight->draws = std::move(saved.draws_in_flight);
    flight->send_step = schedule_.SendStep(static_cast<int>(i), saved.round_in_flight);
    flight->contributes = !saved.object_in_flight.empty();
    flight->restored = true;
    {
      absl::MutexLock lock(&flight->mutex);
      flight->object.bytes.assign(saved.object_in_flight.begin(), saved.object_in_flight.end());
      flight->encoded = true;
    }
    flights.push_back(std::move(flight));
  }
  std::vector<int64_t> versions;
  for (const FragmentState& restored : fragments_) versions.push_back(restored.version);
  early_.Resume(versions);
  // In the order of the schedule, as every worker has it: there may be more flights than threads,
  // and what one worker waits for the others must have sent.
  std::ranges::stable_sort(flights, {}, [](const auto& flight) { return flight->send_step; });
  for (std::shared_ptr<Flight>& flight : flights) Launch(std::move(flight));
  // Merges that the other process was waiting for when it stopped.
  for (int i = 0; i < options_.plan->fragments(); ++i) {
    const std::shared_ptr<Flight>& flight = fragment(i).flight;
    if (flight != nullptr && schedule_.MergeStep(i, flight->event.round) <= step) {
      RETURN_IF_ERROR(Land(i, step));
    }
  }
  return FinishMerges();
}

absl::StatusOr<SyncEngine::State> SyncEngine::Save() {
  RETURN_IF_ERROR(FinishMerges());
  State state;
  for (const FragmentState& from : fragments_) {
    State::Fragment to;
    to.version = from.version;
    to.tokens = from.tokens;
    to.draws = from.draws;
    if (from.flight != nullptr) {
      Flight& flight = *from.flight;
      absl::MutexLock lock(&flight.mutex);
      flight.mutex.Await(absl::Condition(&flight.encoded));
      to.round_in_flight = flight.event.round;
      to.tokens_in_flight = flight.tokens;
      to.draws_in_flight = flight.draws;
      to.object_in_flight.assign(flight.object.bytes.begin(), flight.object.bytes.end());
      if (keeps_in_flight_) {
        ASSIGN_OR_RETURN(to.held, options_.replica->Held(flight.event.fragment));
      }
    }
    state.fragments.push_back(std::move(to));
  }
  ASSIGN_OR_RETURN(Replica::State values, options_.replica->Save());
  state.published = std::move(values.published);
  state.residual = std::move(values.residual);
  state.next_draw = next_draw_;
  return state;
}

void SyncEngine::UseData(int slot, int64_t next_draw) {
  data_slot_ = slot;
  next_draw_ = next_draw;
}

absl::Status SyncEngine::AfterStep(int64_t step, int64_t tokens, int64_t draws) {
  const int64_t before = std::exchange(last_step_, step);
  if (step <= before || step > before + options_.max_advance) {
    return absl::InternalError(absl::StrCat("AfterStep(", step, ") after step ", before,
                                            ": an inner step advances by 1 .. ",
                                            options_.max_advance));
  }
  RETURN_IF_ERROR(FinishMerges(/*waits=*/false));
  FixEarlyMerges(step);
  for (FragmentState& state : fragments_) {
    state.tokens += tokens;
    AddDraws({data_slot_, next_draw_, next_draw_ + draws}, state.draws);
  }
  next_draw_ += draws;
  // All sends first. No fragment is both merged and sent in so few steps (max_advance), so this
  // gives the same values as step by step, and nobody waits for a delta that could be on its way.
  for (int64_t t = before + 1; t <= step; ++t) RETURN_IF_ERROR(SendDue(t, step));
  for (const int index : std::exchange(early_merges_, {})) RETURN_IF_ERROR(Land(index, step));
  for (int64_t t = before + 1; t <= step; ++t) RETURN_IF_ERROR(MergeDue(t, step));
  return absl::OkStatus();
}

void SyncEngine::FixEarlyMerges(int64_t step) {
  if (!early_.possible() || std::exchange(fixed_step_, step) == step) return;
  std::vector<std::pair<int64_t, int>> arrived;
  for (int i = 0; i < options_.plan->fragments(); ++i) {
    const std::shared_ptr<Flight>& flight = fragment(i).flight;
    if (flight == nullptr) continue;
    switch (early_.After(step, flight->event)) {
      case EarlyMerges::Answer::kStays:
        break;
      case EarlyMerges::Answer::kRecorded:
        arrived.emplace_back(0, i);
        break;
      case EarlyMerges::Answer::kIfThere: {
        absl::MutexLock lock(&flight->mutex);
        if (flight->done) arrived.emplace_back(flight->arrival, i);
        break;
      }
    }
  }
  std::ranges::sort(arrived);
  early_merges_.clear();
  for (const auto& [arrival, index] : arrived) early_merges_.push_back(index);
}

std::vector<int> SyncEngine::FragmentsTouchedBy(int64_t step) {
  FixEarlyMerges(step);
  std::vector<int> touched = early_merges_;
  const auto add = [&](const std::vector<SyncEvent>& events) {
    for (const SyncEvent& event : events) {
      if (event.round > version(event.fragment)) touched.push_back(event.fragment);
    }
  };
  for (int64_t t = last_step_ + 1; t <= step; ++t) {
    add(schedule_.SendsAfter(t));
    add(schedule_.MergesAfter(t));
  }
  std::ranges::sort(touched);
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  return touched;
}

std::vector<int> SyncEngine::FragmentsInFlight() const {
  std::vector<int> in_flight;
  for (size_t i = 0; i < fragments_.size(); ++i) {
    if (fragments_[i].flight != nullptr) in_flight.push_back(static_cast<int>(i));
  }
  return in_flight;
}

SyncEngine::Slack SyncEngine::slack() const {
  Slack slack{.steps = std::numeric_limits<int64_t>::max()};
  for (int i = 0; i < options_.plan->fragments(); ++i) {
    const std::shared_ptr<Flight>& flight = fragments_[static_cast<size_t>(i)].flight;
    int64_t round = version(i) + 1;  // The first whose answer is not there.
    bool in_flight = flight != nullptr;
    if (in_flight) {
      absl::MutexLock lock(&flight->mutex);
      if (flight->done) {
        in_flight = false;
        ++round;
      }
    }
    const int64_t left = schedule_.MergeStep(i, round) - last_step_;
    slack.awaited += in_flight ? 1 : 0;
    slack.late += in_flight && left <= early_.slack_steps() ? 1 : 0;
    slack.steps = std::min(slack.steps, left);
  }
  return slack;
}

absl::Status SyncEngine::SendDue(int64_t due_step, int64_t step) {
  for (const SyncEvent& event : schedule_.SendsAfter(due_step)) {
    FragmentState& state = fragment(event.fragment);
    if (event.round <= state.version) continue;  // Fetched with this round already in it.
    if (state.flight != nullptr || event.round != state.version + 1) {
      return absl::InternalError(absl::StrCat(
          Describe(event), " is due, but the published copy is ", "at version ", state.version));
    }
    RETURN_IF_ERROR(Send(event, step));
  }
  return absl::OkStatus();
}

absl::Status SyncEngine::MergeDue(int64_t due_step, int64_t step) {
  for (const SyncEvent& event : schedule_.MergesAfter(due_step)) {
    if (event.round <= version(event.fragment)) continue;
    RETURN_IF_ERROR(Land(event.fragment, step));
  }
  return absl::OkStatus();
}

absl::Status SyncEngine::Send(const SyncEvent& event, int64_t step) {
  auto flight = std::make_shared<Flight>();
  flight->event = event;
  flight->send_step = step;
  flight->contributes = true;
  flight->tokens = std::exchange(fragment(event.fragment).tokens, 0);
  flight->draws = std::exchange(fragment(event.fragment).draws, {});
  RETURN_IF_ERROR(FinishMergeOf(event.fragment));
  if (keeps_in_flight_) RETURN_IF_ERROR(options_.replica->Hold(event.fragment));
  ASSIGN_OR_RETURN(flight->delta, options_.replica->Snapshot(event.fragment));
  Launch(std::move(flight));
  return absl::OkStatus();
}

absl::Status SyncEngine::Follow(const SyncEvent& event, int64_t step) {
  if (keeps_in_flight_) RETURN_IF_ERROR(options_.replica->Hold(event.fragment));
  auto flight = std::make_shared<Flight>();
  flight->event = event;
  flight->send_step = step;
  {
    absl::MutexLock lock(&flight->mutex);
    flight->encoded = true;
  }
  Launch(std::move(flight));
  return absl::OkStatus();
}

void SyncEngine::Launch(std::shared_ptr<Flight> flight) {
  fragment(flight->event.fragment).flight = flight;
  bool encoded = false;
  {
    absl::MutexLock lock(&flight->mutex);
    encoded = flight->encoded;
  }
  WorkQueue& first = encoded ? *threads_ : *encoders_;
  first.Run([this, encoded, flight = std::move(flight)] {
    if (encoded) {
      Carry(flight);
    } else {
      Encode(flight);
    }
  });
}

void SyncEngine::Encode(const std::shared_ptr<Flight>& encoded) {
  Flight& flight = *encoded;
  absl::StatusOr<EncodedObject> object = std::exchange(flight.delta, nullptr)->Encode();
  {
    absl::MutexLock lock(&flight.mutex);
    if (object.ok()) {
      flight.object = *std::move(object);
    } else {
      flight.answer =
          Annotate(object.status(),
                   absl::StrCat("the delta of ", Describe(flight.event), " cannot be encoded"));
      flight.pushed = true;
      flight.done = true;
    }
    flight.encoded = true;
    if (flight.done) return;
  }
  threads_->Run([this, encoded] { Carry(encoded); });
}

void SyncEngine::Carry(const std::shared_ptr<Flight>& carried) {
  Flight& flight = *carried;
  const int64_t due_step = schedule_.MergeStep(flight.event.fragment, flight.event.round);
  bool late = false;
  absl::StatusOr<PulledObject> answer = absl::UnknownError("not asked");
  if (flight.contributes) {
    Contribution contribution{.fragment = flight.event.fragment,
                              .round = flight.event.round,
                              .tokens = flight.tokens,
                              .draws = flight.draws,
                              .send_step = flight.send_step,
                              .due_step = due_step,
                              .maybe_sent = flight.restored,
                              .object = {},
                              .leaves = {},
                              .owner = carried};
    {
      absl::MutexLock lock(&flight.mutex);  // The object does not change once it is encoded.
      contribution.object = flight.object.bytes;
      contribution.leaves = flight.object.leaves;
    }
    // ALREADY_EXISTS: this worker contributed before it was restarted, and that stands.
    answer = options_.exchange->PushAndPull(contribution, [&](const absl::Status& pushed) {
      late = absl::IsAborted(pushed);
      absl::MutexLock lock(&flight.mutex);
      flight.pushed = true;
    });
  } else {
    {
      absl::MutexLock lock(&flight.mutex);
      flight.pushed = true;
    }
    answer = options_.exchange->PullAnswer(flight.event.fragment, flight.event.round, due_step);
  }
  if (answer.ok() && Answers(flight.event, *answer)) {
    const absl::Status staged = options_.replica->StageAnswer(flight.event.fragment, answer->bytes);
    if (!staged.ok()) answer = staged;
  }
  absl::MutexLock lock(&flight.mutex);
  flight.late = late;
  flight.answer = std::move(answer);
  flight.arrival = ++arrivals_;
  flight.done = true;
}

void SyncEngine::Await(Flight& flight, const bool& condition) {
  if (!options_.observer.meanwhile) return flight.mutex.Await(absl::Condition(&condition));
  while (!flight.mutex.AwaitWithTimeout(absl::Condition(&condition), kMeanwhile)) {
    flight.mutex.Unlock();
    options_.observer.meanwhile();
    flight.mutex.Lock();
  }
}

absl::Status SyncEngine::Land(int index, int64_t step) {
  const std::shared_ptr<Flight> flight = fragment(index).flight;
  if (flight == nullptr) {
    return absl::InternalError(
        absl::StrCat("fragment ", index, " is due after step ", step, " but is not in flight"));
  }
  absl::MutexLock lock(&flight->mutex);
  if (!flight->done) {
    const absl::Duration start = options_.clock->Monotonic();
    if (options_.observer.waits) options_.observer.waits(flight->event);
    Await(*flight, flight->done);
    blocked_ += options_.clock->Monotonic() - start;
    if (options_.observer.waits) options_.observer.waits(std::nullopt);
  }
  // Still in flight: a checkpoint taken now lets another process wait for it.
  if (absl::IsCancelled(flight->answer.status())) return flight->answer.status();
  fragment(index).flight = nullptr;
  RETURN_IF_ERROR(FinishMergeOf(index));
  if (flight->late) {
    RETURN_IF_ERROR(FoldLateDelta(*flight, flight->object.bytes));
    ++rounds_late_;
    if (options_.observer.late) options_.observer.late(flight->event);
  }
  if (absl::IsNotFound(flight->answer.status())) {
    // So late that the answer is gone: take the published state as a whole.
    RETURN_IF_ERROR(FetchState(index));
    const int64_t run_step = schedule_.SendStep(index, version(index));
    if (run_step - step > options_.config.steps_between_syncs()) {
      return absl::OutOfRangeError(absl::StrCat("the answer of ", Describe(flight->event),
                                                " is gone, and the run has come to step ", run_step,
                                                " without this worker"));
    }
    RETURN_IF_ERROR(options_.replica->Mix(index, static_cast<float>(options_.config.mixing())));
  } else {
    RETURN_IF_ERROR(Annotate(flight->answer.status(), Describe(flight->event)));
    RETURN_IF_ERROR(MergeAnswer(flight->event, *flight->answer));
  }
  ++rounds_merged_;
  if (options_.observer.merged) options_.observer.merged(step, flight->event);
  return absl::OkStatus();
}

bool SyncEngine::Answers(const SyncEvent& event, const PulledObject& answer) const {
  return answer.round == event.round && answer.codec == codec_down_->id();
}

absl::Status SyncEngine::MergeAnswer(const SyncEvent& event, const PulledObject& answer) {
  if (!Answers(event, answer)) {
    return absl::DataLossError(absl::StrCat("the answer of ", Describe(event), " is one of round ",
                                            answer.round, " in codec ",
                                            v1::Codec_Name(answer.codec)));
  }
  RETURN_IF_ERROR(Annotate(options_.replica->Merge(event.fragment, answer.bytes,
                                                   static_cast<float>(options_.config.mixing())),
                           absl::StrCat("the answer of ", Describe(event))));
  fragment(event.fragment).version = event.round;
  unfinished_.push_back({event, answer.published_hash});
  return absl::OkStatus();
}

absl::Status SyncEngine::FinishMergeOf(int fragment) {
  const bool found = std::ranges::any_of(
      unfinished_, [&](const UnfinishedMerge& merge) { return merge.event.fragment == fragment; });
  return found ? FinishMerges() : absl::OkStatus();
}

absl::Status SyncEngine::FinishMerges(bool waits) {
  std::vector<UnfinishedMerge> merges = std::exchange(unfinished_, {});
  for (auto it = merges.begin(); it != merges.end(); ++it) {
    const UnfinishedMerge& merge = *it;
    const SyncEvent& event = merge.event;
    if (!waits && !options_.replica->IsMerged(event.fragment)) {
      unfinished_.assign(it, merges.end());
      break;
    }
    const absl::StatusOr<uint64_t> hash = options_.replica->FinishMerge(event.fragment);
    RETURN_IF_ERROR(Annotate(hash.status(), absl::StrCat("the answer of ", Describe(event))));
    if (*hash != merge.expected_hash) {
      return absl::DataLossError(
          absl::StrCat("after ", Describe(event), " the published copy hashes to ",
                       HashToHex(*hash), ", the coordinator's to ", HashToHex(merge.expected_hash),
                       "; restart this worker so that it fetches the state anew"));
    }
    options_.exchange->ReportApplied(event.fragment, event.round, *hash);
  }
  return absl::OkStatus();
}

absl::Status SyncEngine::FoldLateDelta(const Flight& flight, std::span<const uint8_t> object) {
  // A gradient belongs to the parameters that it was taken at: late ones are of no use.
  if (gradients_) return absl::OkStatus();
  const int index = flight.event.fragment;
  RETURN_IF_ERROR(options_.replica->FoldLate(index, object));
  FragmentState& state = fragment(index);
  state.tokens += flight.tokens;
  Draws draws = flight.draws;  // They came first.
  for (const DrawRange& range : state.draws) AddDraws(range, draws);
  state.draws = std::move(draws);
  return absl::OkStatus();
}

absl::Status SyncEngine::FinishPushes() {
  for (FragmentState& state : fragments_) {
    if (state.flight == nullptr) continue;
    Flight& flight = *state.flight;
    absl::MutexLock lock(&flight.mutex);
    Await(flight, flight.pushed);
    if (flight.done && !absl::IsNotFound(flight.answer.status())) {
      RETURN_IF_ERROR(flight.answer.status());
    }
  }
  return absl::OkStatus();
}

absl::Status SyncEngine::Drain() {
  RETURN_IF_ERROR(FinishMerges());
  for (int i = 0; i < options_.plan->fragments(); ++i) {
    if (fragment(i).flight != nullptr) RETURN_IF_ERROR(Land(i, last_step_));
  }
  return FinishMerges();
}

}  // namespace causeway::worker
