#include "tests/simulation/coordinator_host.h"

namespace causeway::simulation {
namespace {

constexpr absl::Duration kPushPatience = absl::Seconds(10);
// An answer may be long in coming: this is how long a cut connection goes unnoticed.
constexpr absl::Duration kPullPatience = absl::Seconds(30);
constexpr absl::Duration kLongestDowntime = absl::Seconds(3);
// The share of deaths that leave a process behind whose disk has failed.
constexpr double kDiskFails = 0.3;

absl::Status DrawError(World& world) {
  static constexpr absl::StatusCode kCodes[] = {
      absl::StatusCode::kInternal, absl::StatusCode::kUnknown, absl::StatusCode::kDataLoss,
      absl::StatusCode::kUnavailable};
  return {kCodes[world.Between(0, 3)], "the disk failed"};
}

}  // namespace

absl::Status MortalStore::Write(absl::string_view call, absl::FunctionRef<void(Kept&)> change) {
  if (!Strikes()) return MemoryStore::Write(call, change);
  World& world = *options_.world;
  const bool dies = !world.Chance(kDiskFails);
  const bool takes_effect = world.Chance(0.5);
  world.Count(!dies          ? "disks_failed"
              : takes_effect ? "deaths_after_a_save"
                             : "deaths_before_a_save");
  world.Trace(dies ? "the coordinator dies " : "the disk fails ",
              takes_effect ? "after " : "before ", call, " took effect");
  if (takes_effect) RETURN_IF_ERROR(MemoryStore::Write(call, change));
  FailWith(DrawError(world));
  (dies ? options_.on_death : options_.on_disk_failure)();
  return failure();
}

absl::Status MortalStore::SaveContribution(const v1::Contribution& record,
                                           std::span<const uint8_t> object) {
  if (Strikes()) {
    options_.world->Count("disks_full");
    options_.world->Trace("the disk is full for the delta of ", record.header().worker_id());
    options_.auditor->NoRoom(record.header().fragment());
    return absl::ResourceExhaustedError("the disk is full");
  }
  return MemoryStore::SaveContribution(record, object);
}

absl::Status MortalStore::SaveMembers(std::span<const v1::Member> members) {
  // One by one: it may die between two of them.
  for (const v1::Member& member : members) {
    const bool well = failure().ok();
    const absl::Status status = MemoryStore::SaveMembers({&member, 1});
    if (well && !status.ok()) options_.auditor->MembershipUnsure(member.worker_id());
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

CoordinatorHost::CoordinatorHost(World& world, const Scenario& scenario, Auditor& auditor,
                                 server::InitialValues initial, CallsMaker make_calls,
                                 std::string name, HostHooks hooks)
    : world_(world),
      scenario_(scenario),
      auditor_(auditor),
      initial_(std::move(initial)),
      make_calls_(std::move(make_calls)),
      name_(std::move(name)),
      hooks_(std::move(hooks)),
      store_({.world = &world_,
              .auditor = &auditor_,
              .death_rate = scenario_.store_death,
              .on_death = [this] { dying_ = true; },
              .on_disk_failure = [this] { Replace(); }}) {}

absl::Duration CoordinatorHost::Delay() {
  return world_.Between(scenario_.shortest_delay, scenario_.longest_delay);
}

void CoordinatorHost::Start() {
  ++generation_;
  dying_ = false;
  const int64_t generation = generation_;
  store_.FailWith(absl::OkStatus());
  server::Coordinator::Options options;
  options.config = scenario_.config;
  options.run_id = "simulated-1";
  options.initial_values = initial_;
  options.scratch_folder = std::filesystem::temp_directory_path().string();
  options.clock = &world_.clock();
  options.store = &store_;
  options.kept_answers = scenario_.kept_answers;
  options.max_kept_answers = scenario_.max_kept_answers;
  options.snapshot_every_rounds = scenario_.snapshot_every_rounds;
  options.recovered = store_.Recover().value();
  const bool recovers = options.recovered.has_value();
  if (hooks_.begin) hooks_.begin(options);
  absl::StatusOr<std::unique_ptr<server::Coordinator>> created =
      server::Coordinator::Create(std::move(options));
  if (!created.ok()) {
    if (recovers) world_.Violate("recovers", created.status().ToString());
    world_.After(absl::Seconds(1), [this] { Start(); });
    return;
  }
  coordinator_ = *std::move(created);
  calls_ = make_calls_ ? make_calls_() : std::make_unique<Calls>();
  world_.Trace(name_, " ", generation_, recovers ? " goes on" : " begins");
  if (recovers) world_.Count("recoveries");
  auditor_.Started();
  if (hooks_.started) hooks_.started();
  Tick(generation_);
  world_.After(scenario_.maintain, [this, generation] { Maintain(generation); });
}

bool CoordinatorHost::Survived() {
  if (!dying_) {
    if (coordinator_ != nullptr && !store_.failure().ok() && calls_->Health(*coordinator_).ok()) {
      world_.Violate("broken_disk_stops", "the coordinator goes on after its store has failed");
    }
    return coordinator_ != nullptr;
  }
  if (coordinator_ != nullptr) {
    Die(world_.Between(absl::Milliseconds(10), kLongestDowntime));
  }
  return false;
}

void CoordinatorHost::Die(absl::Duration downtime) {
  dying_ = true;
  auditor_.Died();
  if (hooks_.died) hooks_.died();
  coordinator_.reset();
  for (const auto& open : open_streams_) {
    if (const auto stream = open.lock(); stream != nullptr && stream->generation_ == generation_) {
      stream->EndToWorker(absl::UnavailableError("the coordinator died"));
    }
  }
  // Those whose join is still on its way may reach the next one.
  std::erase_if(open_streams_, [this](const auto& open) {
    const auto stream = open.lock();
    return stream == nullptr || stream->generation_ == generation_;
  });
  for (const auto& open : open_calls_) {
    if (const auto call = open.lock(); call != nullptr && !call->finished) {
      world_.After(Delay(), [call] { Finish(call, absl::UnavailableError("connection reset")); });
    }
  }
  open_calls_.clear();
  world_.After(downtime, [this] { Start(); });
}

void CoordinatorHost::Kill() {
  if (coordinator_ == nullptr) return;
  world_.Count("coordinators_killed");
  world_.Trace(name_, " is killed");
  Die(world_.Between(absl::Milliseconds(10), kLongestDowntime));
}

void CoordinatorHost::ShutDown() {
  if (coordinator_ == nullptr || !calls_->Health(*coordinator_).ok()) return;
  world_.Count("coordinators_shut_down");
  world_.Trace(name_, " is shut down");
  // It may die in it, or fail; then it has ended, too.
  coordinator_->Shutdown().IgnoreError();
  Die(world_.Between(absl::Milliseconds(10), kLongestDowntime));
}

void CoordinatorHost::Replace() {
  world_.After(world_.Between(absl::ZeroDuration(), kLongestDowntime),
               [this, generation = generation_] {
                 if (generation == generation_ && coordinator_ != nullptr) {
                   Die(absl::Milliseconds(100));
                 }
               });
}

bool CoordinatorHost::Command(const std::function<void(server::Coordinator&)>& command) {
  if (coordinator_ == nullptr || !calls_->Health(*coordinator_).ok()) return false;
  command(*coordinator_);
  return Survived() && calls_->Health(*coordinator_).ok();
}

void CoordinatorHost::Tick(int64_t generation) {
  if (!serving(generation)) return;
  calls_->Tick(*coordinator_);
  if (!Survived()) return;
  world_.After(scenario_.tick, [this, generation] { Tick(generation); });
}

void CoordinatorHost::Maintain(int64_t generation) {
  if (!serving(generation)) return;
  coordinator_->Maintain();
  if (!Survived()) return;
  world_.After(scenario_.maintain, [this, generation] { Maintain(generation); });
}

std::shared_ptr<Stream> CoordinatorHost::Attach(std::weak_ptr<StreamClient> client,
                                                const v1::Join& join) {
  world_.Count("streams_opened");
  auto stream = std::make_shared<Stream>(*this, ++streams_, std::move(client));
  std::erase_if(open_streams_, [](const auto& open) { return open.expired(); });
  open_streams_.push_back(stream);
  v1::WorkerMessage message;
  *message.mutable_join() = join;
  stream->SendFromWorker(message);
  return stream;
}

void CoordinatorHost::Finish(const std::shared_ptr<Call>& call, Reply reply) {
  if (std::exchange(call->finished, true) || call->caller.expired()) return;
  call->done(std::move(reply));
}

void CoordinatorHost::Send(std::weak_ptr<void> caller, absl::Duration patience,
                           std::function<void(OnReply)> serve, OnReply done) {
  world_.Count("calls");
  auto call = std::make_shared<Call>(Call{std::move(caller), std::move(done)});
  const bool faulty = world_.faulty();
  const bool lose_reply = faulty && world_.Chance(scenario_.lose_reply);
  const auto deliver = [this, call, serve = std::move(serve), lose_reply] {
    Deliver(call, serve, lose_reply);
  };
  if (faulty && world_.Chance(scenario_.lose_request)) {
    world_.Count("requests_lost");
  } else {
    absl::Duration delay = Delay();
    if (faulty && world_.Chance(scenario_.stall)) {
      world_.Count("calls_stalled");
      delay += world_.Between(absl::ZeroDuration(), 2 * kPushPatience);
    }
    world_.After(delay, deliver);
    if (faulty && world_.Chance(scenario_.duplicate)) {
      world_.Count("calls_duplicated");
      world_.After(delay + world_.Between(absl::ZeroDuration(), absl::Seconds(3)), deliver);
    }
  }
  if (lose_reply) world_.Count("replies_lost");
  if (!faulty) return;
  // Every way to be left without a reply ends in one.
  world_.After(patience, [call] { Finish(call, absl::UnavailableError("no reply")); });
}

void CoordinatorHost::Deliver(const std::shared_ptr<Call>& call,
                              const std::function<void(OnReply)>& serve, bool lose_reply) {
  if (coordinator_ == nullptr) {
    world_.After(Delay(), [call] { Finish(call, absl::UnavailableError("nobody listens")); });
    return;
  }
  if (!call->finished) {
    std::erase_if(open_calls_, [](const auto& open) {
      const auto other = open.lock();
      return other == nullptr || other->finished;
    });
    open_calls_.push_back(call);
  }
  serve([this, call, lose_reply, generation = generation_](Reply reply) {
    if (!serving(generation) || lose_reply) return;
    world_.After(Delay(), [call, reply = std::move(reply)] { Finish(call, reply); });
  });
  Survived();
}

void CoordinatorHost::Push(std::weak_ptr<void> caller, const v1::PushHeader& header,
                           std::vector<uint8_t> object, OnReply done) {
  Send(
      std::move(caller), kPushPatience,
      [this, header, object = std::move(object)](const OnReply& reply) {
        const auto held = calls_->BeginPush(*coordinator_, header);
        absl::Status status = held.status();
        const bool again = held.ok() && held->has_value();
        if (held.ok() && !again) status = calls_->Contribute(*coordinator_, header, object);
        if (dying_) return;
        const int64_t generation = generation_;
        if (again) world_.Count("contributions_repeated");
        if (absl::IsUnavailable(status)) world_.Count("pushes_fenced_off");
        world_.Trace("push of ", header.worker_id(), " incarnation ", header.incarnation(),
                     ", fragment ", header.fragment(), " round ", header.round(), ": ",
                     status.ToString(), again ? " (again)" : "");
        auditor_.PushServed(header, status);
        reply(status.ok() ? Reply(nullptr) : Reply(status));
        if (serving(generation)) calls_->MergeDue(*coordinator_, header.fragment());
      },
      std::move(done));
}

void CoordinatorHost::PullAnswer(std::weak_ptr<void> caller, int fragment, int64_t round,
                                 OnReply done) {
  Send(
      std::move(caller), kPullPatience,
      [this, fragment, round](const OnReply& reply) {
        coordinator_->rounds().PullAnswer(fragment, round,
                                          [this, reply, generation = generation_](Reply answer) {
                                            if (!serving(generation)) return;
                                            if (answer.ok()) auditor_.AnswerShown(**answer);
                                            if (absl::IsNotFound(answer.status()))
                                              world_.Count("answers_gone");
                                            reply(std::move(answer));
                                          });
      },
      std::move(done));
}

void CoordinatorHost::PullState(std::weak_ptr<void> caller, int fragment, OnReply done) {
  Send(
      std::move(caller), kPushPatience,
      [this, fragment](const OnReply& reply) {
        Reply state = coordinator_->rounds().PullState(fragment);
        if (dying_) return;
        if (state.ok()) auditor_.StateShown(**state);
        reply(std::move(state));
      },
      std::move(done));
}

}  // namespace causeway::simulation
