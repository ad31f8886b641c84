#include "tests/unit/server/core/toy_run.h"

#include "common/base/random.h"

namespace causeway::server {

v1::RunConfig ToyConfig() {
  return SmallConfig(R"(
    run_name: "toy"
    model { layers: 2 }
    train { steps: 60 }
    sync { fragments: 2 steps_between_syncs: 6 overlap_steps: 1 codec_up: INT4 codec_down: INT4 }
    membership { start_workers: 2 max_workers: 3 })");
}

ToyRun::ToyRun(const std::string& changes, std::optional<RegionOptions> of_region)
    : config_(ParseRunConfig(changes, "a test", ToyConfig()).value()),
      region_(std::move(of_region)) {
  if (config_.has_tensors()) config_.clear_model();
  const auto warnings = CompleteRunConfig(config_);
  EXPECT_TRUE(warnings.ok()) << warnings.status();
  coordinator = MakeCoordinator(std::nullopt).value();
}

absl::StatusOr<std::unique_ptr<Coordinator>> ToyRun::MakeCoordinator(
    std::optional<RecoveredRun> recovered) {
  Coordinator::Options options;
  options.config = config_;
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(options.config));
  options.run_id = "toy-1";
  if (!snapshots_have_to_do) options.initial_values = ValuesOf(plan, InitialOf(plan, 1));
  options.scratch_folder = testing::TempDir();
  options.merge_pool = merge_pool;
  options.clock = &clock;
  options.store = &store;
  options.events = &events;
  options.kept_answers = 2;
  options.snapshot_every_rounds = 3;
  options.recovered = std::move(recovered);
  options.region = region_;
  return Coordinator::Create(std::move(options));
}

void ToyRun::Restart() {
  coordinator.reset();
  coordinator = MakeCoordinator(store.Recover().value()).value();
}

v1::Join ToyRun::MakeJoin(const std::string& id, uint64_t nonce) const {
  v1::Join join = JoinOf(coordinator->Describe(), id, nonce);
  join.set_device("toy");
  return join;
}

absl::Status ToyRun::PullAnswer(int fragment, int64_t round) {
  absl::Status status = absl::UnknownError("it waits");
  rounds().PullAnswer(fragment, round, [&](auto object) { status = object.status(); });
  return status;
}

int64_t ToyRun::hash_checks() const { return store.summary().at("hash_checks").get<int64_t>(); }

ToyWorker::ToyWorker(ToyRun& run, std::string id, uint64_t nonce)
    : run_(run),
      id_(std::move(id)),
      nonce_(nonce),
      schedule_(run.coordinator->plan().fragments(),
                run.coordinator->config().sync().steps_between_syncs(),
                run.coordinator->config().sync().overlap_steps()) {}

absl::Status ToyWorker::Join(int64_t resume_step) {
  sink_ = std::make_shared<RecordingSink>();
  v1::Join join = run_.MakeJoin(id_, nonce_);
  join.set_resume_step(resume_step);
  join.set_has_checkpoint(resume_step > 0);
  ASSIGN_OR_RETURN(welcome_, run_.members().Join(join, sink_));
  return absl::OkStatus();
}

absl::Status ToyWorker::Handle(const v1::WorkerMessage& message) {
  return run_.members().Handle(id_, incarnation(), message);
}

absl::Status ToyWorker::Ready(int64_t step, bool anew) {
  step_ = step;
  return Handle(ReadyAt(step, anew));
}

absl::Status ToyWorker::Say(const std::string& message) {
  return Handle(FromText<v1::WorkerMessage>(message));
}

absl::Status ToyWorker::Heartbeat(int64_t checkpoint_step) {
  return Say(absl::StrCat("heartbeat { checkpoint_step: ", checkpoint_step, " step: ", step_,
                          " tokens: ", step_ * 64, " }"));
}

absl::Status ToyWorker::ReportSpeed(int64_t step, double inner_step_seconds, int64_t pace_milli) {
  v1::WorkerMessage message;
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_step(step);
  heartbeat.set_tokens(step * 64 * 1000 / pace_milli);
  heartbeat.set_inner_step_seconds(inner_step_seconds);
  heartbeat.set_pace_milli(pace_milli);
  return Handle(message);
}

void ToyWorker::Cut() {
  run_.members().Disconnected(id_, incarnation(), absl::UnavailableError("cut"));
}

absl::Status ToyWorker::Leave(v1::Leave::Reason reason) { return Handle(LeaveFor(reason)); }

absl::Status ToyWorker::Enter() {
  RETURN_IF_ERROR(Join());
  RETURN_IF_ERROR(PullStates());
  return Ready(welcome_.run_step());
}

absl::Status ToyWorker::PullStates() {
  const FragmentPlan& plan = run_.coordinator->plan();
  published_.resize(static_cast<size_t>(plan.arena_size()));
  for (int i = 0; i < plan.fragments(); ++i) {
    ASSIGN_OR_RETURN(const auto state, run_.rounds().PullState(i));
    EXPECT_EQ(TreeHash(state->bytes), state->header.object_hash());
    EXPECT_EQ(state->header.published_hash(), state->header.object_hash());
    EXPECT_EQ(static_cast<int64_t>(state->bytes.size()), plan.range(i).size() * 4);
    std::memcpy(published_.data() + plan.range(i).begin, state->bytes.data(), state->bytes.size());
  }
  local_ = published_;
  return absl::OkStatus();
}

void ToyWorker::Train(float size) {
  ++step_;
  for (size_t i = 0; i < local_.size(); ++i) {
    local_[i] +=
        0.01f * size * static_cast<float>(RandomNormal(nonce_, static_cast<uint64_t>(step_), i));
  }
}

v1::PushHeader ToyWorker::MakePush(int fragment, int64_t round, std::vector<uint8_t>& object) {
  const v1::RunConfig& config = run_.coordinator->config();
  const FragmentRange& range = run_.coordinator->plan().range(fragment);
  const Codec& codec = **FindCodec(config.sync().codec_up());
  const auto begin = static_cast<size_t>(range.begin);
  const auto size = static_cast<size_t>(range.size());
  object.resize(codec.EncodedBytes(size));
  std::vector<float> base(published_.begin() + range.begin, published_.begin() + range.end);
  if (config.sync().contribution() == v1::SyncConfig::GRADIENT) base.assign(size, 0.0f);
  ErrorFeedback feedback;
  if (config.sync().error_feedback()) {
    Sent& sent = sent_[fragment];
    if (sent.round != round) sent = {.round = round, .before = sent.after, .after = {}};
    sent.before.resize(size);
    sent.after = sent.before;
    feedback.residual = sent.after;
  }
  EXPECT_TRUE(codec.Encode(base, std::span(local_).subspan(begin, size), feedback, object).ok());
  v1::PushHeader header = HeaderOf(run_.coordinator->run_id(), id_, incarnation(), fragment, round,
                                   config.sync().codec_up(), object);
  header.set_tokens(64);
  header.set_send_step(step_);
  return header;
}

absl::Status ToyWorker::Push(int fragment, int64_t round) {
  std::vector<uint8_t> object;
  const v1::PushHeader header = MakePush(fragment, round, object);
  ASSIGN_OR_RETURN(const auto held, run_.rounds().BeginPush(header, nullptr));
  if (held.has_value()) return absl::OkStatus();
  const absl::Status status = run_.rounds().Contribute(header, std::move(object)).status();
  run_.rounds().MergeDue(fragment);
  return status;
}

absl::StatusOr<v1::PushResponse> ToyWorker::Contribute(
    int fragment, int64_t round,
    const std::function<void(v1::PushHeader&, std::vector<uint8_t>&)>& change) {
  std::vector<uint8_t> object;
  v1::PushHeader header = MakePush(fragment, round, object);
  change(header, object);
  header.set_object_hash(TreeHash(object));
  return run_.rounds().Contribute(header, std::move(object));
}

absl::Status ToyWorker::Merge(int fragment, int64_t round) {
  absl::StatusOr<std::shared_ptr<const PullObject>> answer;
  absl::Mutex mutex;
  bool arrived = false;
  run_.rounds().PullAnswer(fragment, round, [&](auto object) {
    absl::MutexLock lock(&mutex);
    answer = std::move(object);
    arrived = true;
  });
  absl::MutexLock lock(&mutex);
  mutex.Await(absl::Condition(&arrived));
  RETURN_IF_ERROR(answer.status());
  const FragmentRange& range = run_.coordinator->plan().range(fragment);
  const auto published =
      std::span(published_)
          .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
  const Codec& codec = **FindCodec((*answer)->header.codec());
  RETURN_IF_ERROR(codec.Apply((*answer)->bytes, published));
  std::copy(published.begin(), published.end(), local_.begin() + range.begin);
  return Handle(AppliedOf(fragment, round, TreeHash(std::span<const float>(published))));
}

void ToyWorker::Diverge() {
  for (float& value : local_) value += 10.0f;
}

absl::Status ToyWorker::SendDue() {
  for (const SyncEvent& event : schedule_.SendsAfter(step_)) {
    RETURN_IF_ERROR(Push(event.fragment, event.round));
  }
  return absl::OkStatus();
}

absl::Status ToyWorker::MergeDue() {
  for (const SyncEvent& event : schedule_.MergesAfter(step_)) {
    RETURN_IF_ERROR(Merge(event.fragment, event.round));
  }
  return absl::OkStatus();
}

void TrainStep(std::initializer_list<ToyWorker*> workers, const std::function<void()>& between) {
  for (ToyWorker* const worker : workers) {
    worker->Train();
    ASSERT_EQ(worker->SendDue(), absl::OkStatus());
  }
  between();
  for (ToyWorker* const worker : workers) ASSERT_EQ(worker->MergeDue(), absl::OkStatus());
}

TwoWorkers::TwoWorkers(const std::string& changes) : run(changes) {
  EXPECT_TRUE(a.Enter().ok());
  EXPECT_TRUE(b.Enter().ok());
}

void TwoWorkers::Restart() {
  run.Restart();
  EXPECT_TRUE(a.Join().ok());
  EXPECT_TRUE(b.Join().ok());
}

void TwoWorkers::TrainBoth(int steps, const std::function<void()>& between) {
  for (int i = 0; i < steps; ++i) {
    a.Train();
    ASSERT_TRUE(a.SendDue().ok());
    between();
    b.Train();
    ASSERT_TRUE(b.SendDue().ok());
    for (ToyWorker* const worker : {&a, &b}) {
      ASSERT_EQ(worker->MergeDue(), absl::OkStatus());
    }
  }
}

}  // namespace causeway::server
