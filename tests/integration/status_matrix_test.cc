// What becomes of a member when a call of its ends with some status: for every RPC, moment and
// code, made by a proxy on the way or said by the coordinator. Nothing that a proxy can make ends
// anybody; what the coordinator means for good ends a member in the coordinator's own words.
#include <google/protobuf/descriptor.h>

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "causeway/v1/enrollment.grpc.pb.h"
#include "causeway/v1/standby.grpc.pb.h"
#include "common/client/grpc_exchange.h"
#include "common/client/session.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/ctl/run_admin.h"
#include "tests/unit/common/rpc/faulty_proxy.h"
#include "tests/unit/server/core/waiting_run.h"
#include "tests/unit/server/service/local_server.h"
#include "tests/unit/server/service/secure_run.h"
#include "worker/member/joining.h"
#include "worker/preflight/checks.h"

namespace causeway {
namespace {

using server::LocalServer;
using server::SmallRun;
using ::testing::HasSubstr;
using Moment = FaultyProxy::Moment;
using enum absl::StatusCode;

constexpr char kWords[] = "words of whoever ended it";

// What may come of an error.
enum class Then {
  kGoesOn,  // The call is made again, and nothing is lost.
  kEnds,    // The member ends, with that code and those words.
};

struct Column {
  absl::StatusCode code;
  Then said_by_the_coordinator;  // Made on the way, any code passes.
};
constexpr Column kColumns[] = {
    {kCancelled, Then::kGoesOn},        {kUnknown, Then::kEnds},
    {kInvalidArgument, Then::kEnds},    {kDeadlineExceeded, Then::kGoesOn},
    {kNotFound, Then::kEnds},           {kAlreadyExists, Then::kEnds},
    {kPermissionDenied, Then::kEnds},   {kResourceExhausted, Then::kGoesOn},
    {kFailedPrecondition, Then::kEnds}, {kAborted, Then::kEnds},
    {kOutOfRange, Then::kEnds},         {kUnimplemented, Then::kEnds},
    {kInternal, Then::kEnds},           {kUnavailable, Then::kGoesOn},
    {kDataLoss, Then::kEnds},           {kUnauthenticated, Then::kEnds},
};

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address) {
  return MakeChannel(address, 0, ChannelSecurity::Plaintext());
}

// Calls `live` for every column and both sources. It gets the status that a call is to end with,
// what is expected of it, and returns what the member ended in. A lane may have come to another
// coordinator than the session, which stands.
void ForEveryStatus(
    const std::function<absl::Status(const grpc::Status& fault, Then expected)>& live,
    bool of_lanes = false) {
  for (const Column& column : kColumns) {
    for (const bool on_the_way : {true, false}) {
      const absl::Status said(column.code, kWords);
      grpc::Status fault = ToGrpcStatus(said);
      if (on_the_way) fault = {fault.error_code(), fault.error_message()};
      const bool passes = on_the_way || (of_lanes && MayBeAnothers(said));
      const Then expected = passes ? Then::kGoesOn : column.said_by_the_coordinator;
      const absl::Status end = live(fault, expected);
      SCOPED_TRACE(absl::StrCat(said.ToString(), on_the_way ? ", made on the way" : ", said", ": ",
                                end.ToString()));
      EXPECT_EQ(end.code(), expected == Then::kGoesOn ? kOk : column.code);
      const bool has_words = absl::StrContains(end.message(), kWords);
      EXPECT_TRUE(expected == Then::kGoesOn || has_words);
    }
  }
}

// A worker from the first call to the good-bye, with one round.
absl::Status LiveAsWorker(SmallRun& run, const std::string& address, Then expected) {
  const auto channels = std::make_shared<RenewedChannels>(address, ChannelSecurity::Plaintext());
  const auto stub = v1::Session::NewStub(channels->Now());
  const auto described = DescribeRun(*stub, address, absl::Minutes(1));
  if (!described.ok()) return described.status();
  Session::Options options;
  options.channels = channels;
  options.join = server::MakeJoin(run.coordinator(), "a").join();
  options.progress.set_checkpoint_step(-1);
  auto session = Session::Attach(std::move(options));
  if (!session.ok()) return session.status();
  // As RunMember: whatever ends the session ends what waits for the coordinator.
  absl::Notification failed;
  Link::Options of_link;
  of_link.channels = channels;
  of_link.connections = 1;
  Link link(std::move(of_link));
  GrpcExchange exchange({.link = &link,
                         .session = session->get(),
                         .plan = &run.coordinator().plan(),
                         .sync = run.coordinator().config().sync()});
  (*session)->OnFailure([&](const absl::Status&) {
    exchange.Cancel();
    failed.Notify();
  });
  const auto train = [&]() -> absl::Status {
    const auto state = exchange.PullState(0);
    if (!state.ok()) return state.status();
    (*session)->Ready(0, /*anew=*/true);
    const auto orders = (*session)->WaitForGo(absl::InfiniteDuration());
    if (!orders.ok()) return orders.status();
    const server::Delta delta = server::MakeDelta(1, run.initial());
    const auto object = std::make_shared<std::vector<uint8_t>>(delta.object);
    Contribution contribution;
    contribution.round = 1;
    contribution.tokens = 10;
    contribution.send_step = 5;
    contribution.object = *object;
    contribution.owner = object;
    return exchange.PushAndPull(contribution, [](const absl::Status&) {}).status();
  };
  absl::Status status = train();
  // What ends the session may come after all that was asked for.
  if (expected == Then::kEnds && (status.ok() || absl::IsCancelled(status))) {
    failed.WaitForNotification();
  }
  if (const auto orders = (*session)->orders(); !orders.ok()) status = orders.status();
  (*session)->Leave(v1::Leave::FINISHED, "");
  return status;
}

constexpr std::pair<const char*, Moment> kOfWorkers[] = {
    {"Session/Describe", Moment::kAtOnce},    {"Session/Describe", Moment::kInsteadOfIt},
    {"Session/Attach", Moment::kAtOnce},      {"Session/Attach", Moment::kAfterAnswer},
    {"Session/Attach", Moment::kInsteadOfIt}, {"Exchange/Carry", Moment::kAtOnce},
    {"Exchange/Carry", Moment::kAfterAnswer}, {"Exchange/Carry", Moment::kInsteadOfIt}};

using Case = std::pair<const char*, Moment>;
class StatusMatrix : public ::testing::TestWithParam<Case> {};

TEST_P(StatusMatrix, AWorkerGoesOnOrEndsInTheCoordinatorsWords) {
  ForEveryStatus(
      [&](const grpc::Status& fault, Then expected) {
        SmallRun run;
        const LocalServer server(run.coordinator());
        FaultyProxy proxy(server.address());
        proxy.Fail(absl::StrCat("/causeway.v1.", GetParam().first), GetParam().second, fault);
        const absl::Status end = LiveAsWorker(run, proxy.address(), expected);
        EXPECT_TRUE(proxy.Failed());
        return end;
      },
      GetParam().first == absl::string_view("Exchange/Carry"));
}

INSTANTIATE_TEST_SUITE_P(OfWorkers, StatusMatrix, ::testing::ValuesIn(kOfWorkers));

TEST(StatusMatrixOfPages, APageOfAProxysIsNoMessageOfTheCoordinators) {
  for (const char* const method : {"Session/Attach", "Exchange/Carry"}) {
    SmallRun run;
    const LocalServer server(run.coordinator());
    FaultyProxy proxy(server.address());
    proxy.Fail(absl::StrCat("/causeway.v1.", method), Moment::kWithAPage,
               {grpc::StatusCode::UNKNOWN, kWords});
    const absl::Status end = LiveAsWorker(run, proxy.address(), Then::kGoesOn);
    EXPECT_TRUE(proxy.Failed());
    EXPECT_TRUE(end.ok()) << method << ": " << end;
  }
}

// As ArenaSite does: describes the run again after what passes, until it has its model.
TEST(StatusMatrixOfModels, ASiteBringsItsModelOrEndsInTheCoordinatorsWords) {
  const std::vector<float> values(1000, 0.5F);
  worker::ModelToBring model;
  model.run_id = "any-1";
  model.worker_id = "a";
  v1::TensorTable::Tensor& tensor = *model.tensors.add_tensor();
  tensor.set_name("all");
  tensor.add_shape(std::ssize(values));
  model.values = [&](int) { return std::span<const float>(values); };
  for (const Moment moment : {Moment::kAtOnce, Moment::kInsteadOfIt}) {
    ForEveryStatus([&](const grpc::Status& fault, Then expected) {
      server::WaitingRun waiting(
          "sync { fragments: 1 } membership { start_workers: 1 max_workers: 1 }");
      const LocalServer server(waiting.run);
      FaultyProxy proxy(server.address());
      proxy.Fail("/causeway.v1.Session/BringModel", moment, fault);
      const auto stub = v1::Session::NewStub(ChannelTo(proxy.address()));
      absl::Status end;
      do {
        end = worker::BringModel(*stub, model);
      } while (IsRetryable(end));
      EXPECT_TRUE(proxy.Failed());
      EXPECT_EQ(waiting.run.Describe().awaits_model(),
                expected == Then::kEnds && moment == Moment::kAtOnce);
      // The answer that was lost had been OK; the next one says that the run has its model.
      return absl::IsAlreadyExists(end) && end.message() != kWords ? absl::OkStatus() : end;
    });
  }
}

// These are asked once, and whoever asked reads the answer; who watches or follows asks again after
// what passes.
TEST(StatusMatrixOfLines, AnOperatorAStandbyAndThePreflightHearTheTruth) {
  SmallRun run;
  const LocalServer server(run.coordinator());
  using Ask = std::function<absl::Status(const std::string& address)>;
  const auto admin = [](auto method, const auto& request) -> Ask {
    return [method, request](const std::string& address) {
      server::RunAdmin of(address, address, ChannelSecurity::Plaintext(), absl::Minutes(1));
      return of.Call(method, request).status();
    };
  };
  using Admin = v1::Admin::Stub;
  using Enrollment = v1::Enrollment::Stub;
  std::vector<std::pair<std::string, Ask>> asked = {
      {"Admin/GetStatus", admin(&Admin::GetStatus, v1::GetStatusRequest())},
      {"Admin/ListEvents", admin(&Admin::ListEvents, v1::ListEventsRequest())},
      {"Admin/Pause", admin(&Admin::Pause, v1::PauseRequest())},
      {"Admin/Resume", admin(&Admin::Resume, v1::ResumeRequest())},
      {"Admin/Drain", admin(&Admin::Drain, v1::DrainRequest())},
      {"Admin/Reject", admin(&Admin::Reject, v1::RejectRequest())},
      {"Admin/Stop", admin(&Admin::Stop, v1::StopRequest())},
      {"Enrollment/Invite", admin(&Enrollment::Invite, v1::InviteRequest())},
      {"Enrollment/ListInvitations",
       admin(&Enrollment::ListInvitations, v1::ListInvitationsRequest())},
      {"Enrollment/RevokeInvitation",
       admin(&Enrollment::RevokeInvitation, v1::RevokeInvitationRequest())},
      {"Standby/Follow",
       [](const std::string& address) {
         grpc::ClientContext context;
         const auto stub = v1::Standby::NewStub(ChannelTo(address));
         const auto stream = stub->Follow(&context);
         stream->WritesDone();
         return FromGrpcStatus(stream->Finish());
       }},
      {"Probe/Echo", [](const std::string& address) {
         const auto stub = v1::Probe::NewStub(ChannelTo(address));
         return worker::MeasureEcho(*stub, "a", 1, absl::Minutes(1)).status();
       }}};
  for (const auto& [method, direction] :
       {std::pair("Probe/Upload", Direction::kUp), std::pair("Probe/Download", Direction::kDown)}) {
    asked.emplace_back(method, [direction = direction](const std::string& address) {
      worker::RateOptions options;
      options.channels = {ChannelTo(address)};
      options.time = absl::Minutes(1);  // It ends with the call.
      return worker::MeasureRate(direction, options).status();
    });
  }
  // Board asks again for what passes, and IdentityKeeper whatever came.
  for (const auto& [method, call] : {std::pair("Enrollment/Enroll", &v1::Enrollment::Stub::Enroll),
                                     std::pair("Enrollment/Renew", &v1::Enrollment::Stub::Renew)}) {
    asked.emplace_back(method, [call = call](const std::string& address) {
      grpc::ClientContext context;
      v1::EnrollResponse answer;
      const auto stub = v1::Enrollment::NewStub(ChannelTo(address));
      return FromGrpcStatus((stub.get()->*call)(&context, v1::EnrollRequest(), &answer));
    });
  }
  std::set<std::string> covered = {"Session/BringModel"};
  for (const auto& [method, moment] : kOfWorkers) covered.insert(method);
  for (const auto& [method, ask] : asked) covered.insert(method);
  std::set<std::string> all;
  for (const char* const service :
       {"Session", "Exchange", "Admin", "Standby", "Probe", "Enrollment"}) {
    const auto* const known = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
        absl::StrCat("causeway.v1.", service));
    ASSERT_NE(known, nullptr) << service;
    for (int i = 0; i < known->method_count(); ++i) {
      all.insert(absl::StrCat(service, "/", known->method(i)->name()));
    }
  }
  EXPECT_EQ(covered, all);
  for (const auto& [method, ask] : asked) {
    for (const Column& column : kColumns) {
      for (const bool on_the_way : {true, false}) {
        FaultyProxy proxy(server.address());
        grpc::Status fault = ToGrpcStatus(absl::Status(column.code, kWords));
        if (on_the_way) fault = {fault.error_code(), fault.error_message()};
        proxy.Fail(absl::StrCat("/causeway.v1.", method), Moment::kAtOnce, fault);
        const absl::Status end = ask(proxy.address());
        SCOPED_TRACE(
            absl::StrCat(method, on_the_way ? ", made on the way: " : ", said: ", end.ToString()));
        EXPECT_TRUE(proxy.Failed());
        EXPECT_THAT(std::string(end.message()), HasSubstr(kWords));
        // Nobody here has ever heard of probes: no patience helps.
        const bool knows_none = method == "Probe/Echo" && column.code == kUnimplemented;
        const bool goes_on =
            !knows_none && (on_the_way || column.said_by_the_coordinator == Then::kGoesOn);
        EXPECT_EQ(IsRetryable(end), goes_on);
        EXPECT_TRUE(goes_on || end.code() == column.code);
        if (method.starts_with("Admin/") || absl::StrContains(method, "Invit")) {
          EXPECT_EQ(absl::StrContains(end.message(), "no answer from the coordinator"), on_the_way);
        }
        if (method == "Probe/Echo") {
          const worker::CheckResult line = worker::JudgeAnswer(proxy.address(), end);
          EXPECT_EQ(line.status, worker::CheckStatus::kFailed);
        }
      }
    }
  }
}

}  // namespace
}  // namespace causeway
