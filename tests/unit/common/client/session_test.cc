#include "common/client/session.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/no_threads.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/client/fake_coordinator.h"
#include "tests/unit/common/telemetry/awaited_events.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;

TEST(SessionTest, AStreamThatTheCoordinatorCancelsIsAttachedAgainByTheSameProcess) {
  FakeCoordinator coordinator;
  auto session = Session::Attach(coordinator.SessionOptions()).value();
  EXPECT_EQ(session->incarnation(), 1u);
  session->Ready(3, false);
  coordinator.Await([](const v1::WorkerMessage& m) { return m.has_ready(); });
  v1::Heartbeat progress;
  progress.set_step(7);
  session->SetProgress(progress);
  session->SetStepsBeforeWait(0);
  coordinator.BreakSession();
  const v1::WorkerMessage again =
      coordinator.Await([joins = 0](const v1::WorkerMessage& m) mutable {
        joins += m.has_join();
        return joins == 2 && m.has_ready();
      });
  EXPECT_EQ(again.ready().step(), 3) << "rounds sent since then still expect this worker";
  EXPECT_EQ(session->incarnation(), 2u);
  EXPECT_TRUE(session->orders().ok());
  coordinator.Await([](const v1::WorkerMessage& m) {
    return m.heartbeat().step() == 7 && m.heartbeat().has_steps_before_wait();
  });
  const std::vector<v1::WorkerMessage> joins = coordinator.Joins();
  ASSERT_EQ(joins.size(), 2u);
  EXPECT_EQ(joins[0].join().process_nonce(), joins[1].join().process_nonce());
  session->Leave(v1::Leave::FINISHED, "");
  coordinator.Await([](const v1::WorkerMessage& m) { return m.has_leave(); });
}

TEST(SessionTest, ABreakIsRecordedOnceHoweverManyTriesFollow) {
  FakeCoordinator coordinator;
  AwaitedEvents events;
  Session::Options options = coordinator.SessionOptions();
  options.events = &events;
  auto session = Session::Attach(std::move(options)).value();
  for (int i = 0; i < 2; ++i) {
    coordinator.RefuseNextAttach({grpc::StatusCode::UNAVAILABLE, "the coordinator starts"});
  }
  coordinator.BreakSession();
  EXPECT_EQ(events.Await("session_resumed")["tries"], 3);
  const std::vector<AwaitedEvents::Event> all = events.all();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].first, "session_broke");
  EXPECT_THAT(all[0].second["message"].get<std::string>(), HasSubstr("attaching again, every 2s"));
}

TEST(SessionTest, TheRunsStepIsAskedForIfWhatWasSaidOfItIsTooOld) {
  FakeCoordinator coordinator;
  absl::Mutex mutex;
  std::string waits_for;
  Session::Options options = coordinator.SessionOptions();
  options.on_waits_for = [&](const std::string& whom) {
    absl::MutexLock lock(&mutex);
    waits_for = whom;
  };
  auto session = Session::Attach(std::move(options)).value();
  coordinator.Await([](const v1::WorkerMessage& m) { return m.has_heartbeat(); });
  EXPECT_EQ(session->RunStep(absl::InfiniteDuration()).value(), 0) << "the welcome's";
  v1::Heartbeat progress;
  progress.set_step(3);
  session->SetProgress(progress);
  std::thread answers([&] {
    coordinator.Await([](const v1::WorkerMessage& m) { return m.heartbeat().step() == 3; });
    v1::CoordinatorMessage renewed;
    renewed.mutable_lease_renewed()->set_lease_ms(10'000);
    renewed.mutable_lease_renewed()->set_run_step(710);
    renewed.mutable_lease_renewed()->set_waits_for("waiting for berlin");
    coordinator.Send(renewed);
  });
  EXPECT_EQ(session->RunStep(absl::ZeroDuration()).value(), 710);
  answers.join();
  EXPECT_EQ(session->RunStep(absl::InfiniteDuration()).value(), 710) << "nobody is asked";
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(waits_for, "waiting for berlin");
}

TEST(SessionTest, NoStatusThatAProxyMakesEndsASession) {
  FakeCoordinator coordinator;
  AwaitedEvents events;
  Session::Options options = coordinator.SessionOptions();
  options.events = &events;
  auto session = Session::Attach(std::move(options)).value();
  const std::vector<grpc::StatusCode> codes = {
      grpc::StatusCode::INTERNAL,      grpc::StatusCode::UNKNOWN,
      grpc::StatusCode::UNIMPLEMENTED, grpc::StatusCode::UNAUTHENTICATED,
      grpc::StatusCode::CANCELLED,     grpc::StatusCode::PERMISSION_DENIED};
  for (const grpc::StatusCode code : codes) coordinator.RefuseNextAttach({code, "RST_STREAM"});
  coordinator.BreakSession();
  EXPECT_EQ(events.Await("session_resumed")["tries"], codes.size() + 1);
  EXPECT_TRUE(session->orders().ok());
  coordinator.RefuseNextAttach(ToGrpcStatus(absl::InternalError("the coordinator failed")));
  coordinator.BreakSession();
  EXPECT_EQ(session->WaitForGo(absl::InfiniteDuration()).status(),
            absl::InternalError("the coordinator failed"));
}

TEST(SessionTest, ARefusalThatPassesAsThisSideKnowsIsTriedAgainAndTold) {
  FakeCoordinator coordinator;
  std::vector<absl::Status> told;
  Session::Options options = coordinator.SessionOptions();
  options.on_failed_try = [&](const absl::Status& why) { told.push_back(why); };
  options.passes = [](const absl::Status& why) {
    return IsRetryable(why) || why.message() == "somebody's token";
  };
  {
    auto session = Session::Attach(std::move(options)).value();
    coordinator.RefuseNextAttach(ToGrpcStatus(absl::PermissionDeniedError("somebody's token")));
    coordinator.RefuseNextAttach(ToGrpcStatus(absl::PermissionDeniedError("nobody's token")));
    coordinator.BreakSession();
    EXPECT_THAT(session->WaitForGo(absl::InfiniteDuration()),
                StatusIs(kPermissionDenied, "nobody's token"))
        << "of the own run: no other answers";
  }
  ASSERT_EQ(told.size(), 2u);
  EXPECT_THAT(told[0], StatusIs(kCancelled));
  EXPECT_EQ(told[1].message(), "somebody's token");
}

TEST(SessionTest,
     ACoordinatorIsWaitedForForAsLongAsItIsAwayAndSomebodyElseInItsPlaceForTenMinutes) {
  FakeCoordinator coordinator;
  FakeClock clock;
  AwaitedEvents events;
  Session::Options options = coordinator.SessionOptions();
  options.events = &events;
  options.clock = &clock;
  options.on_failed_try = [&](const absl::Status& why) {
    clock.Advance(MayBeAnothers(why) ? absl::Minutes(4) : absl::Hours(9));
  };
  const auto session = Session::Attach(std::move(options)).value();
  const auto refuse = [&](absl::StatusCode code, const char* words) {
    coordinator.RefuseNextAttach(ToGrpcStatus(absl::Status(code, words)), "another-1");
  };
  refuse(kUnavailable, "the coordinator starts");
  for (int i = 0; i < 2; ++i) refuse(kFailedPrecondition, "run_id differs: ...");
  refuse(kUnavailable, "the coordinator starts");
  refuse(kUnauthenticated, "the token is unknown");
  refuse(kPermissionDenied, "worker b asked to attach as worker a");
  coordinator.BreakSession();
  EXPECT_EQ(events.Await("session_resumed")["tries"], 7);
  std::vector<std::string> said;
  for (const auto& [name, fields] : events.all()) {
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
  coordinator.BreakSession();
  EXPECT_EQ(session->WaitForGo(absl::InfiniteDuration()).status(),
            absl::FailedPreconditionError("run_id differs: ..."));
}

// A fault injector's codes pass; those of a server of another kind, or of a release before the
// mark, stay.
TEST(SessionTest, WhatNeitherACoordinatorNorAProxySaysIsBorneForTenMinutes) {
  FakeCoordinator coordinator;
  FakeClock clock;
  AwaitedEvents events;
  Session::Options options = coordinator.SessionOptions();
  options.events = &events;
  options.clock = &clock;
  options.on_failed_try = [&](const absl::Status&) { clock.Advance(absl::Minutes(4)); };
  const auto session = Session::Attach(std::move(options)).value();
  coordinator.RefuseNextAttach({grpc::StatusCode::INVALID_ARGUMENT, "fault filter abort"});
  coordinator.RefuseNextAttach({grpc::StatusCode::DATA_LOSS, "fault filter abort"});
  coordinator.BreakSession();
  EXPECT_EQ(events.Await("session_resumed")["tries"], 3);
  EXPECT_TRUE(session->orders().ok());
  for (int i = 0; i < 4; ++i) {
    coordinator.RefuseNextAttach({grpc::StatusCode::NOT_FOUND, "no route"});
  }
  coordinator.BreakSession();
  EXPECT_THAT(
      session->WaitForGo(absl::InfiniteDuration()),
      StatusIs(
          kUnavailable,
          "NOT_FOUND: no route; no coordinator's own answer: a proxy on the way made it, or one "
          "of an older release"));
}

TEST(SessionTest, AFirstAttachWaitsForACoordinatorBehindAProxy) {
  FakeCoordinator coordinator;
  coordinator.RefuseNextAttach({grpc::StatusCode::INTERNAL, "RST_STREAM"});
  const auto session = Session::Attach(coordinator.SessionOptions()).value();
  EXPECT_EQ(coordinator.Joins().size(), 2u);
}

TEST(SessionTest, AWorkerThatLeavesWhileItsStreamIsBrokenAttachesAgainToSaySo) {
  FakeCoordinator coordinator;
  AwaitedEvents events;
  Session::Options options = coordinator.SessionOptions();
  options.events = &events;
  auto session = Session::Attach(std::move(options)).value();
  coordinator.RefuseNextAttach({grpc::StatusCode::UNAVAILABLE, "the coordinator starts"});
  coordinator.BreakSession();
  events.Await("session_broke");
  session->Leave(v1::Leave::FINISHED, "");
  ASSERT_EQ(coordinator.Joins().size(), 3u);
  coordinator.Await([](const v1::WorkerMessage& m) { return m.has_leave(); });
}

// The fake coordinator's lease lasts an hour: the next heartbeat that is due by the clock is twenty
// minutes away.
TEST(SessionTest, ACheckpointIsToldAtOnce) {
  FakeCoordinator coordinator;
  Session::Options options = coordinator.SessionOptions();
  options.progress.set_checkpoint_step(-1);
  auto session = Session::Attach(std::move(options)).value();
  coordinator.Await([](const v1::WorkerMessage& m) { return m.has_heartbeat(); });
  for (const int64_t step : {0, 40}) {
    session->SetCheckpoint(step);
    coordinator.Await([step](const v1::WorkerMessage& m) {
      return m.has_heartbeat() && m.heartbeat().checkpoint_step() == step;
    });
  }
}

TEST(SessionTest, HowLongACoordinatorWasWaitedForIncludesWhatWentBefore) {
  const auto stub =
      v1::Session::NewStub(MakeChannel("127.0.0.1:1", 0, ChannelSecurity::Plaintext()));
  EXPECT_THAT(DescribeRun(*stub, "127.0.0.1:1", absl::Milliseconds(20), absl::Seconds(5)),
              StatusIs(kUnavailable, HasSubstr("within 5.02s")));
}

TEST(SessionTest, WithoutAThreadAttachSaysSo) {
  FakeCoordinator coordinator;
  Session::Options options = coordinator.SessionOptions();
  const NoThreads none;
  EXPECT_THAT(Session::Attach(std::move(options)),
              StatusIs(kResourceExhausted, HasSubstr("no thread can be started")));
}

TEST(SessionTest, ARefusalIsTheAnswerToAttach) {
  FakeCoordinator coordinator;
  coordinator.RefuseNextAttach(ToGrpcStatus(absl::AlreadyExistsError("a live worker has this id")));
  EXPECT_THAT(Session::Attach(coordinator.SessionOptions()),
              StatusIs(kAlreadyExists, HasSubstr("live worker")));
}

TEST(SessionTest, AWorkerThatResumesWaitsUntilItsFormerProcessIsTakenForDead) {
  FakeCoordinator coordinator;
  coordinator.RefuseNextAttach(ToGrpcStatus(absl::AlreadyExistsError("a live worker has this id")));
  Session::Options options = coordinator.SessionOptions();
  options.join.set_has_checkpoint(true);
  const auto session = Session::Attach(std::move(options)).value();
  EXPECT_EQ(coordinator.Joins().size(), 2u);
}

TEST(SessionTest, AFailureIsToldOnceEvenToWhoAsksAfterwards) {
  FakeCoordinator coordinator;
  auto session = Session::Attach(coordinator.SessionOptions()).value();
  absl::Mutex mutex;
  int calls = 0;
  absl::Status told;
  const auto note = [&](const absl::Status& status) {
    absl::MutexLock lock(&mutex);
    ++calls;
    told = status;
  };
  session->OnFailure(note);
  coordinator.RefuseNextAttach(ToGrpcStatus(absl::DataLossError("the copies differ")));
  coordinator.BreakSession();
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

TEST(SessionTest, ADrainIsOrderedByTheCoordinatorOrByThisSideEvenBeforeTheStart) {
  FakeCoordinator coordinator;
  auto session = Session::Attach(coordinator.SessionOptions()).value();
  EXPECT_FALSE(session->orders()->started);
  session->Ready(0, false);
  coordinator.Await([](const v1::WorkerMessage& m) { return m.has_ready(); });
  v1::CoordinatorMessage message;
  message.mutable_directive()->set_action(v1::Directive::DRAIN);
  coordinator.Send(message);
  const auto orders = session->WaitForGo(absl::InfiniteDuration()).value();
  EXPECT_TRUE(orders.drain);
  EXPECT_FALSE(orders.started);
}

}  // namespace
}  // namespace causeway
