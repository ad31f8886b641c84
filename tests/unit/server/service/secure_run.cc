#include "tests/unit/server/service/secure_run.h"

#include "common/rpc/status.h"
#include "tests/unit/common/rpc/plain_lane.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway::server {
namespace {

// The parameters after `rounds` rounds of worker "a" when nobody disturbs them.
std::vector<float> UndisturbedParameters(int64_t rounds) {
  SmallRun run;
  const LocalServer server(run.coordinator());
  HonestWorker worker(Stubs(server.Connect()), run, 0);
  worker.AwaitRounds(rounds);
  EXPECT_EQ(worker.Finish(), rounds);
  EXPECT_TRUE(run.coordinator().Shutdown().ok());
  return run.coordinator().PublishedParameters();
}

}  // namespace

SmallRun::SmallRun(const std::string& settings, EventLog* events) {
  Coordinator::Options options = OptionsOf(
      CompleteSmallConfig(absl::StrCat("run_name: '", kRunName,
                                       "' model { vocabulary_size: 256 width: 32 } "
                                       "train { steps: 1000000 } sync { steps_between_syncs: 5 } "
                                       "membership { start_workers: 1 lease_ms: 60000 } ",
                                       settings)),
      kRunId, store_);
  options.events = events;
  coordinator_ = *Coordinator::Create(std::move(options));
  initial_ = InitialOf(coordinator_->plan());
}

Stubs::Stubs(std::shared_ptr<grpc::Channel> through)
    : channel(std::move(through)),
      session(v1::Session::NewStub(channel)),
      exchange(v1::Exchange::NewStub(channel)),
      admin(v1::Admin::NewStub(channel)) {}

v1::WorkerMessage MakeJoin(Coordinator& coordinator, const std::string& id) {
  v1::WorkerMessage message;
  *message.mutable_join() = JoinOf(coordinator.Describe(), id);
  return message;
}

Delta MakeDelta(int64_t round, const std::vector<float>& published) {
  const Codec& codec = **FindCodec(v1::FP32);
  std::vector<float> local = published;
  for (size_t i = 0; i < local.size(); ++i) {
    local[i] += 0.001f * static_cast<float>((static_cast<int64_t>(i) + round) % 7);
  }
  Delta delta;
  delta.object.resize(codec.EncodedBytes(local.size()));
  EXPECT_TRUE(codec.Encode(published, local, {}, delta.object).ok());
  delta.header = HeaderOf(kRunId, "a", 0, 0, round, v1::FP32, delta.object);
  delta.header.set_tokens(10);
  return delta;
}

absl::Status PushDelta(v1::Exchange::StubInterface& stub, const Delta& delta) {
  return PlainLane(stub, kRunId, delta.header.worker_id()).Push(delta.header, delta.object);
}

v1::Want WantOf(v1::Want::Object object, int64_t round) {
  v1::Want want;
  want.set_object(object);
  want.set_round(round);
  return want;
}

absl::Status PullAll(v1::Exchange::StubInterface& stub, const std::string& worker_id,
                     const v1::Want& want, std::vector<uint8_t>* object) {
  return PlainLane(stub, kRunId, worker_id).Pull(want, object);
}

HonestWorker::HonestWorker(Stubs stubs, SmallRun& run, int64_t rounds)
    : stubs_(std::move(stubs)),
      run_(run),
      published_(run.initial()),
      session_(*stubs_.session, MakeJoin(run.coordinator(), "a")),
      wanted_(rounds) {
  EXPECT_TRUE(session_.stream->Write(ReadyAt(0)));
  thread_ = std::thread([this] { Train(); });
}

HonestWorker::~HonestWorker() {
  if (thread_.joinable()) Finish();
}

void HonestWorker::Train() {
  for (int64_t round = 1;; ++round) {
    {
      absl::MutexLock lock(&mutex_);
      const auto go = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return finish_ || round <= wanted_;
      };
      mutex_.Await(absl::Condition(&go));
      if (finish_) return;
    }
    DoRound(round);
    const bool failed = testing::Test::HasFatalFailure();
    absl::MutexLock lock(&mutex_);
    gave_up_ = failed;
    if (failed) return;
    rounds_ = round;
  }
}

void HonestWorker::DoRound(int64_t round) {
  Delta delta = MakeDelta(round, published_);
  delta.header.set_incarnation(incarnation());
  if (round == 1) first_delta_ = delta;
  // Every call succeeds at the first attempt: nobody was noticed.
  ASSERT_EQ(PushDelta(*stubs_.exchange, delta), absl::OkStatus()) << "round " << round;
  std::vector<uint8_t> answer;
  ASSERT_EQ(PullAll(*stubs_.exchange, "a", WantOf(v1::Want::ANSWER, round), &answer),
            absl::OkStatus())
      << "round " << round;
  ASSERT_TRUE((*FindCodec(run_.coordinator().config().sync().codec_down()))
                  ->Apply(answer, published_)
                  .ok());
  v1::WorkerMessage message;
  message.mutable_applied()->set_round(round);
  message.mutable_applied()->set_published_hash(TreeHash(std::span<const float>(published_)));
  ASSERT_TRUE(session_.stream->Write(message));
  message.mutable_heartbeat()->set_step(5 * round);
  ASSERT_TRUE(session_.stream->Write(message));
}

void HonestWorker::AwaitRounds(int64_t more) {
  absl::MutexLock lock(&mutex_);
  const int64_t wanted = rounds_ + more;
  wanted_ = std::max(wanted_, wanted);
  const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return rounds_ >= wanted || gave_up_;
  };
  mutex_.Await(absl::Condition(&reached));
  ASSERT_FALSE(gave_up_) << "after " << rounds_ << " rounds";
}

int64_t HonestWorker::Finish() {
  {
    absl::MutexLock lock(&mutex_);
    finish_ = true;
  }
  thread_.join();
  EXPECT_TRUE(session_.stream->Write(LeaveFor(v1::Leave::FINISHED)));
  session_.stream->WritesDone();
  EXPECT_TRUE(session_.End().ok());
  absl::MutexLock lock(&mutex_);
  return rounds_;
}

SecureRunTest::~SecureRunTest() {
  if (!honest_.has_value()) return;
  honest_->AwaitRounds(2);  // After all that happened it still goes on.
  const int64_t rounds = honest_->Finish();
  EXPECT_EQ(honest_->published(), run_.coordinator().PublishedParameters());
  EXPECT_EQ(honest_->published(), UndisturbedParameters(rounds));
}

void SecureRunTest::Train(Stubs stubs, int64_t rounds) {
  honest_.emplace(std::move(stubs), run_, rounds);
  honest_->AwaitRounds(2);
}

Stubs SecureRunTest::With(const SecurityOptions& options, absl::Time now) const {
  const auto security = MakeChannelSecurity(options, server_->address(), now).value();
  return Stubs(MakeChannel(server_->address(), 0, security));
}

absl::Status SecureRunTest::Describe(const Stubs& stubs) {
  return DescribeRun(*stubs.session).status();
}

}  // namespace causeway::server
