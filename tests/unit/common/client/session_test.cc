#include "common/client/session.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/no_threads.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/telemetry/awaited_events.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;

// A coordinator whose answers a test writes, behind a real connection on this machine.
class FakeCoordinator final : private v1::Session::Service {
 public:
  FakeCoordinator();
  ~FakeCoordinator() override;

  Session::Options SessionOptions();

  // Ends the next call with that status, as that run's coordinator; calls succeed otherwise.
  void RefuseNextAttach(const grpc::Status& status, const std::string& run_id = "");

  // Cancels the present session's stream, as a server does that stops.
  void BreakSession();
  void Send(const v1::CoordinatorMessage& message);

  // Waits for the first message that fits, of any session so far.
  v1::WorkerMessage Await(const std::function<bool(const v1::WorkerMessage&)>& fits);
  std::vector<v1::WorkerMessage> Joins();

 private:
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;
  grpc::Status Attach(grpc::ServerContext* context, Stream* stream) override;

  absl::Mutex mutex_;
  // By whose coordinator.
  std::deque<std::pair<grpc::Status, std::string>> attach_refusals_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::WorkerMessage> messages_ ABSL_GUARDED_BY(mutex_);
  grpc::ServerContext* session_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;

  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<RenewedChannels> channels_;
};

FakeCoordinator::FakeCoordinator() {
  grpc::ServerBuilder builder;
  ConfigureServer(builder, {});
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(static_cast<v1::Session::Service*>(this));
  server_ = builder.BuildAndStart();
  EXPECT_NE(server_, nullptr);
  address_ = absl::StrCat("127.0.0.1:", port);
  channels_ = std::make_shared<RenewedChannels>(address_, ChannelSecurity::Plaintext());
}

FakeCoordinator::~FakeCoordinator() { server_->Shutdown(std::chrono::system_clock::now()); }

Session::Options FakeCoordinator::SessionOptions() {
  Session::Options options;
  options.channels = channels_;
  options.join.set_worker_id("a");
  return options;
}

void FakeCoordinator::RefuseNextAttach(const grpc::Status& status, const std::string& run_id) {
  absl::MutexLock lock(&mutex_);
  attach_refusals_.emplace_back(status, run_id);
}

void FakeCoordinator::BreakSession() {
  absl::MutexLock lock(&mutex_);
  ASSERT_NE(session_, nullptr);
  session_->TryCancel();
}

void FakeCoordinator::Send(const v1::CoordinatorMessage& message) {
  absl::MutexLock lock(&mutex_);
  ASSERT_NE(stream_, nullptr);
  stream_->Write(message);
}

v1::WorkerMessage FakeCoordinator::Await(
    const std::function<bool(const v1::WorkerMessage&)>& fits) {
  absl::MutexLock lock(&mutex_);
  auto found = messages_.end();
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    found = std::find_if(messages_.begin(), messages_.end(), fits);
    return found != messages_.end();
  };
  mutex_.Await(absl::Condition(&there));
  return *found;
}

std::vector<v1::WorkerMessage> FakeCoordinator::Joins() {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::WorkerMessage> joins;
  std::copy_if(messages_.begin(), messages_.end(), std::back_inserter(joins),
               [](const v1::WorkerMessage& message) { return message.has_join(); });
  return joins;
}

grpc::Status FakeCoordinator::Attach(grpc::ServerContext* context, Stream* stream) {
  v1::WorkerMessage message;
  if (!stream->Read(&message)) return grpc::Status::OK;
  {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(message);
    if (!attach_refusals_.empty()) {
      const auto [refusal, run_id] = attach_refusals_.front();
      attach_refusals_.pop_front();
      TellRun(*context, run_id);
      return refusal;
    }
    v1::CoordinatorMessage answer;
    answer.mutable_welcome()->set_incarnation(++incarnation_);
    answer.mutable_welcome()->set_lease_ms(3'600'000);
    stream->Write(answer);
    session_ = context;
    stream_ = stream;
  }
  while (stream->Read(&message)) {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(message);
  }
  absl::MutexLock lock(&mutex_);
  session_ = nullptr;
  stream_ = nullptr;
  return grpc::Status::OK;
}

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() { options_.events = &events_; }
  std::unique_ptr<Session> Attach() { return Session::Attach(std::move(options_)).value(); }

  FakeCoordinator coordinator_;
  FakeClock clock_;
  AwaitedEvents events_;
  Session::Options options_ = coordinator_.SessionOptions();
};

TEST_F(SessionTest, AStreamThatTheCoordinatorCancelsIsAttachedAgainByTheSameProcess) {
  auto session = Attach();
  EXPECT_EQ(session->incarnation(), 1u);
  session->Ready(3, false);
  coordinator_.Await([](const v1::WorkerMessage& m) { return m.has_ready(); });
  v1::Heartbeat progress;
  progress.set_step(7);
  session->SetProgress(progress);
  session->SetStepsBeforeWait(0);
  coordinator_.BreakSession();
  const v1::WorkerMessage again =
      coordinator_.Await([joins = 0](const v1::WorkerMessage& m) mutable {
        joins += m.has_join();
        return joins == 2 && m.has_ready();
      });
  EXPECT_EQ(again.ready().step(), 3) << "rounds sent since then still expect this worker";
  EXPECT_EQ(session->incarnation(), 2u);
  EXPECT_TRUE(session->orders().ok());
  coordinator_.Await([](const v1::WorkerMessage& m) {
    return m.heartbeat().step() == 7 && m.heartbeat().has_steps_before_wait();
  });
  const std::vector<v1::WorkerMessage> joins = coordinator_.Joins();
  ASSERT_EQ(joins.size(), 2u);
  EXPECT_EQ(joins[0].join().process_nonce(), joins[1].join().process_nonce());
  session->Leave(v1::Leave::FINISHED, "");
  coordinator_.Await([](const v1::WorkerMessage& m) { return m.has_leave(); });
}

TEST_F(SessionTest, ABreakIsRecordedOnceHoweverManyTriesFollow) {
  auto session = Attach();
  for (int i = 0; i < 2; ++i) {
    coordinator_.RefuseNextAttach({grpc::StatusCode::UNAVAILABLE, "the coordinator starts"});
  }
  coordinator_.BreakSession();
  EXPECT_EQ(events_.Await("session_resumed")["tries"], 3);
  const std::vector<AwaitedEvents::Event> all = events_.all();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].first, "session_broke");
  EXPECT_THAT(all[0].second["message"].get<std::string>(), HasSubstr("attaching again, every 2s"));
}

TEST_F(SessionTest, TheRunsStepIsAskedForIfWhatWasSaidOfItIsTooOld) {
  absl::Mutex mutex;
  std::string waits_for;
  options_.on_waits_for = [&](const std::string& whom) {
    absl::MutexLock lock(&mutex);
    waits_for = whom;
  };
  auto session = Attach();
  coordinator_.Await([](const v1::WorkerMessage& m) { return m.has_heartbeat(); });
  EXPECT_EQ(session->RunStep(absl::InfiniteDuration()).value(), 0) << "the welcome's";
  v1::Heartbeat progress;
  progress.set_step(3);
  session->SetProgress(progress);
  std::thread answers([&] {
    coordinator_.Await([](const v1::WorkerMessage& m) { return m.heartbeat().step() == 3; });
    v1::CoordinatorMessage renewed;
    renewed.mutable_lease_renewed()->set_lease_ms(10'000);
    renewed.mutable_lease_renewed()->set_run_step(710);
    renewed.mutable_lease_renewed()->set_waits_for("waiting for berlin");
    coordinator_.Send(renewed);
  });
  EXPECT_EQ(session->RunStep(absl::ZeroDuration()).value(), 710);
  answers.join();
  EXPECT_EQ(session->RunStep(absl::InfiniteDuration()).value(), 710) << "nobody is asked";
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(waits_for, "waiting for berlin");
}

TEST_F(SessionTest, NoStatusThatAProxyMakesEndsASession) {
  auto session = Attach();
  const std::vector<grpc::StatusCode> codes = {
      grpc::StatusCode::INTERNAL,      grpc::StatusCode::UNKNOWN,
      grpc::StatusCode::UNIMPLEMENTED, grpc::StatusCode::UNAUTHENTICATED,
      grpc::StatusCode::CANCELLED,     grpc::StatusCode::PERMISSION_DENIED};
  for (const grpc::StatusCode code : codes) coordinator_.RefuseNextAttach({code, "RST_STREAM"});
  coordinator_.BreakSession();
  EXPECT_EQ(events_.Await("session_resumed")["tries"], codes.size() + 1);
  EXPECT_TRUE(session->orders().ok());
  coordinator_.RefuseNextAttach(ToGrpcStatus(absl::InternalError("the coordinator failed")));
  coordinator_.BreakSession();
  EXPECT_EQ(session->WaitForGo(absl::InfiniteDuration()).status(),
            absl::InternalError("the coordinator failed"));
}

TEST_F(SessionTest, ARefusalThatPassesAsThisSideKnowsIsTriedAgainAndTold) {
  std::vector<absl::Status> told;
  options_.on_failed_try = [&](const absl::Status& why) { told.push_back(why); };
  options_.passes = [](const absl::Status& why) {
    return IsRetryable(why) || why.message() == "somebody's token";
  };
  {
    auto session = Attach();
    coordinator_.RefuseNextAttach(ToGrpcStatus(absl::PermissionDeniedError("somebody's token")));
    coordinator_.RefuseNextAttach(ToGrpcStatus(absl::PermissionDeniedError("nobody's token")));
    coordinator_.BreakSession();
    EXPECT_THAT(session->WaitForGo(absl::InfiniteDuration()),
                StatusIs(kPermissionDenied, "nobody's token"))
        << "of the own run: no other answers";
  }
  ASSERT_EQ(told.size(), 2u);
  EXPECT_THAT(told[0], StatusIs(kCancelled));
  EXPECT_EQ(told[1].message(), "somebody's token");
}

TEST_F(SessionTest,
       ACoordinatorIsWaitedForForAsLongAsItIsAwayAndSomebodyElseInItsPlaceForTenMinutes) {
  options_.clock = &clock_;
  options_.on_failed_try = [&](const absl::Status& why) {
    clock_.Advance(MayBeAnothers(why) ? absl::Minutes(4) : absl::Hours(9));
  };
  const auto session = Attach();
  const auto refuse = [&](absl::StatusCode code, const char* words) {
    coordinator_.RefuseNextAttach(ToGrpcStatus(absl::Status(code, words)), "another-1");
  };
  refuse(kUnavailable, "the coordinator starts");
  for (int i = 0; i < 2; ++i) refuse(kFailedPrecondition, "run_id differs: ...");
  refuse(kUnavailable, "the coordinator starts");
  refuse(kUnauthenticated, "the token is unknown");
  refuse(kPermissionDenied, "worker b asked to attach as worker a");
  coordinator_.BreakSession();
  EXPECT_EQ(events_.Await("session_resumed")["tries"], 7);
  std::vector<std::string> said;
  for (const auto& [name, fields] : events_.all()) {
    if (name == "session_broke") said.push_back(fields["message"]);
  }
  ASSERT_EQ(said.size(), 3u);
  EXPECT_THAT(said[0], HasSubstr("attaching again, every 2s at least, until it is back"));
  EXPECT_EQ(said[1],
            "somebody else answers in the coordinator's place (run_id differs: ...); attaching "
            "again, every 2s at least, for 10m");
  EXPECT_THAT(said[2],
              HasSubstr("somebody else answers in the coordinator's place (the token is unknown"));
  EXPECT_TRUE(session->orders().ok());
  EXPECT_FALSE(session->IsAway());
  for (int i = 0; i < 4; ++i) refuse(kFailedPrecondition, "run_id differs: ...");
  coordinator_.BreakSession();
  EXPECT_EQ(session->WaitForGo(absl::InfiniteDuration()).status(),
            absl::FailedPreconditionError("run_id differs: ..."));
}

// A fault injector's codes pass; those of a server of another kind, or of a release before the
// mark, stay.
TEST_F(SessionTest, WhatNeitherACoordinatorNorAProxySaysIsBorneForTenMinutes) {
  options_.clock = &clock_;
  options_.on_failed_try = [&](const absl::Status&) { clock_.Advance(absl::Minutes(4)); };
  const auto session = Attach();
  coordinator_.RefuseNextAttach({grpc::StatusCode::INVALID_ARGUMENT, "fault filter abort"});
  coordinator_.RefuseNextAttach({grpc::StatusCode::DATA_LOSS, "fault filter abort"});
  coordinator_.BreakSession();
  EXPECT_EQ(events_.Await("session_resumed")["tries"], 3);
  EXPECT_TRUE(session->orders().ok());
  for (int i = 0; i < 4; ++i) {
    coordinator_.RefuseNextAttach({grpc::StatusCode::NOT_FOUND, "no route"});
  }
  coordinator_.BreakSession();
  EXPECT_THAT(
      session->WaitForGo(absl::InfiniteDuration()),
      StatusIs(
          kUnavailable,
          "NOT_FOUND: no route; no coordinator's own answer: a proxy on the way made it, or one "
          "of an older release"));
}

TEST_F(SessionTest, AFirstAttachWaitsForACoordinatorBehindAProxy) {
  coordinator_.RefuseNextAttach({grpc::StatusCode::INTERNAL, "RST_STREAM"});
  const auto session = Attach();
  EXPECT_EQ(coordinator_.Joins().size(), 2u);
}

TEST_F(SessionTest, AWorkerThatLeavesWhileItsStreamIsBrokenAttachesAgainToSaySo) {
  auto session = Attach();
  coordinator_.RefuseNextAttach({grpc::StatusCode::UNAVAILABLE, "the coordinator starts"});
  coordinator_.BreakSession();
  events_.Await("session_broke");
  session->Leave(v1::Leave::FINISHED, "");
  ASSERT_EQ(coordinator_.Joins().size(), 3u);
  coordinator_.Await([](const v1::WorkerMessage& m) { return m.has_leave(); });
}

// The fake coordinator's lease lasts an hour: the next heartbeat that is due by the clock is twenty
// minutes away.
TEST_F(SessionTest, ACheckpointIsToldAtOnce) {
  options_.progress.set_checkpoint_step(-1);
  auto session = Attach();
  coordinator_.Await([](const v1::WorkerMessage& m) { return m.has_heartbeat(); });
  for (const int64_t step : {0, 40}) {
    session->SetCheckpoint(step);
    coordinator_.Await([step](const v1::WorkerMessage& m) {
      return m.has_heartbeat() && m.heartbeat().checkpoint_step() == step;
    });
  }
}

TEST_F(SessionTest, HowLongACoordinatorWasWaitedForIncludesWhatWentBefore) {
  const auto stub =
      v1::Session::NewStub(MakeChannel("127.0.0.1:1", 0, ChannelSecurity::Plaintext()));
  EXPECT_THAT(DescribeRun(*stub, "127.0.0.1:1", absl::Milliseconds(20), absl::Seconds(5)),
              StatusIs(kUnavailable, HasSubstr("within 5.02s")));
}

TEST_F(SessionTest, WithoutAThreadAttachSaysSo) {
  const NoThreads none;
  EXPECT_THAT(Session::Attach(std::move(options_)),
              StatusIs(kResourceExhausted, HasSubstr("no thread can be started")));
}

TEST_F(SessionTest, ARefusalIsTheAnswerToAttach) {
  coordinator_.RefuseNextAttach(
      ToGrpcStatus(absl::AlreadyExistsError("a live worker has this id")));
  EXPECT_THAT(Session::Attach(std::move(options_)),
              StatusIs(kAlreadyExists, HasSubstr("live worker")));
}

TEST_F(SessionTest, AWorkerThatResumesWaitsUntilItsFormerProcessIsTakenForDead) {
  coordinator_.RefuseNextAttach(
      ToGrpcStatus(absl::AlreadyExistsError("a live worker has this id")));
  options_.join.set_has_checkpoint(true);
  const auto session = Attach();
  EXPECT_EQ(coordinator_.Joins().size(), 2u);
}

TEST_F(SessionTest, AFailureIsToldOnceEvenToWhoAsksAfterwards) {
  auto session = Attach();
  absl::Mutex mutex;
  int calls = 0;
  absl::Status told;
  const auto note = [&](const absl::Status& status) {
    absl::MutexLock lock(&mutex);
    ++calls;
    told = status;
  };
  session->OnFailure(note);
  coordinator_.RefuseNextAttach(ToGrpcStatus(absl::DataLossError("the copies differ")));
  coordinator_.BreakSession();
  const absl::StatusOr<Session::Orders> orders = session->WaitForGo(absl::InfiniteDuration());
  EXPECT_THAT(orders, StatusIs(kDataLoss));
  {
    absl::MutexLock lock(&mutex);
    const auto called = [&] { return calls == 1; };
    mutex.Await(absl::Condition(&called));
    EXPECT_THAT(told, StatusIs(kDataLoss));
  }
  session->OnFailure(note);
  EXPECT_EQ(calls, 2) << "at once, on this thread";
  session->Leave(v1::Leave::FAILED, "");  // Nobody hears it, and nobody waits for it.
}

TEST_F(SessionTest, ADrainIsOrderedByTheCoordinatorOrByThisSideEvenBeforeTheStart) {
  auto session = Attach();
  EXPECT_FALSE(session->orders()->started);
  session->Ready(0, false);
  coordinator_.Await([](const v1::WorkerMessage& m) { return m.has_ready(); });
  v1::CoordinatorMessage message;
  message.mutable_directive()->set_action(v1::Directive::DRAIN);
  coordinator_.Send(message);
  const auto orders = session->WaitForGo(absl::InfiniteDuration()).value();
  EXPECT_TRUE(orders.drain);
  EXPECT_FALSE(orders.started);
}

}  // namespace
}  // namespace causeway
