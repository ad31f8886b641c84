// The probe service over a real connection to this machine, with limits that a test can reach.
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "causeway/v1/probe.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/probe_service.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/server/core/small_run.h"
#include "tests/unit/server/store/memory_store.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kBytes = 8 << 20;

Access::Options OpenToAll() {
  Access::Options options;
  options.clock = Clock::Real();
  return options;
}

class ProbeServiceTest : public ::testing::Test {
 protected:
  ProbeServiceTest()
      : access_(OpenToAll()),
        gate_(*Clock::Real(), {.streams = 2, .bytes = kBytes, .time = absl::Seconds(2)}) {
    coordinator_ = *Coordinator::Create(
        OptionsOf(CompleteSmallConfig("model { vocabulary_size: 256 }"), "probed-1", store_));
    run_ = std::make_unique<ServedRun>(*coordinator_);
    service_ = MakeProbeService(*run_, access_, gate_);
    grpc::ServerBuilder builder;
    ConfigureServer(builder, ConnectionLimits());
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::Probe::NewStub(
        MakeChannel(absl::StrCat("127.0.0.1:", port), 0, ChannelSecurity::Plaintext()));
  }
  ~ProbeServiceTest() override {
    server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
    EXPECT_TRUE(coordinator_->Shutdown().ok());
  }

  v1::EchoResponse Echo(const std::string& id) {
    v1::EchoRequest request;
    request.set_worker_id(id);
    request.set_details(!id.empty());
    v1::EchoResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Echo(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  // Until the coordinator or `messages` end it.
  std::pair<grpc::Status, v1::UploadResponse> Upload(uint64_t measurement, int messages,
                                                     size_t bytes) {
    std::pair<grpc::Status, v1::UploadResponse> result;
    grpc::ClientContext context;
    const auto stream = stub_->Upload(&context, &result.second);
    v1::UploadRequest message;
    message.set_measurement(measurement);
    message.set_data(std::string(bytes, 'x'));
    for (int i = 0; i < messages && stream->Write(message); ++i) {
    }
    stream->WritesDone();
    result.first = stream->Finish();
    return result;
  }

  std::pair<grpc::Status, int64_t> Download(uint64_t measurement, double seconds) {
    v1::DownloadRequest request;
    request.set_measurement(measurement);
    request.set_seconds(seconds);
    grpc::ClientContext context;
    const auto stream = stub_->Download(&context, request);
    v1::DownloadResponse message;
    int64_t bytes = 0;
    while (stream->Read(&message)) bytes += static_cast<int64_t>(message.data().size());
    return {stream->Finish(), bytes};
  }

  MemoryStore store_;
  std::unique_ptr<Coordinator> coordinator_;
  Access access_;
  ProbeGate gate_;
  std::unique_ptr<ServedRun> run_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Probe::Stub> stub_;
};

TEST_F(ProbeServiceTest, EchoSaysWhoAnswersAndWhatStandsAgainstAnId) {
  const v1::EchoResponse nothing_asked = Echo("");
  EXPECT_EQ(nothing_asked.id_state(), v1::EchoResponse::ID_STATE_UNSPECIFIED);
  EXPECT_EQ(nothing_asked.wire_version(), kWireVersion);
  EXPECT_EQ(nothing_asked.run_id(), "probed-1");
  EXPECT_EQ(nothing_asked.identity(), "");
  EXPECT_THAT(nothing_asked.peer(), StartsWith("127.0.0.1:"));
  EXPECT_LT(absl::AbsDuration(absl::FromUnixMicros(nothing_asked.unix_us()) - absl::Now()),
            absl::Minutes(1));
  const v1::EchoResponse free = Echo("site-a");
  EXPECT_EQ(free.id_state(), v1::EchoResponse::FREE);
  EXPECT_EQ(free.live_workers(), 0);
  EXPECT_EQ(free.max_workers(), 8);
  EXPECT_NE(free.congestion_control(), "");
  const v1::EchoResponse malformed = Echo("a/b");
  EXPECT_EQ(malformed.id_state(), v1::EchoResponse::REFUSED);
  EXPECT_THAT(malformed.id_detail(), HasSubstr("worker_id"));
}

TEST_F(ProbeServiceTest, EchoTellsThatAMemberHasTheId) {
  v1::Join join = JoinOf(coordinator_->Describe(), "site-a");
  join.set_device("cpu, 3 threads");
  const auto welcome = coordinator_->members().Join(join, std::make_shared<SilentSink>()).value();
  const v1::EchoResponse live = Echo("site-a");
  EXPECT_EQ(live.id_state(), v1::EchoResponse::LIVE);
  EXPECT_EQ(live.id_detail(), "cpu, 3 threads");
  EXPECT_EQ(live.live_workers(), 1);
  EXPECT_EQ(Echo("site-b").id_state(), v1::EchoResponse::FREE);

  ASSERT_TRUE(coordinator_->members()
                  .Handle("site-a", welcome.incarnation(), LeaveFor(v1::Leave::DRAINED))
                  .ok());
  EXPECT_EQ(Echo("site-a").id_state(), v1::EchoResponse::LEFT);
}

TEST_F(ProbeServiceTest, AnUploadIsCountedAndEndsAtItsLimit) {
  const auto [counted, response] = Upload(1, 3, 1 << 20);
  EXPECT_TRUE(counted.ok()) << counted.error_message();
  EXPECT_EQ(response.received_bytes(), 3 << 20);
  const auto [limited, limited_response] = Upload(2, 1000, 1 << 20);
  EXPECT_TRUE(limited.ok()) << limited.error_message();
  EXPECT_EQ(limited_response.received_bytes(), kBytes + (1 << 20));
}

TEST_F(ProbeServiceTest, ADownloadLastsAsLongAsAskedAndHasItsLimit) {
  const auto [status, bytes] = Download(1, 100);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(bytes, kBytes);
  EXPECT_TRUE(Download(2, 1e-9).first.ok());
  EXPECT_EQ(Download(3, 0).first.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Download(0, 1).first.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ProbeServiceTest, WhoeverOnlyOpensAStreamIsSentAwayWhenItsTimeIsOver) {
  v1::UploadResponse response;
  grpc::ClientContext context;
  const auto stream = stub_->Upload(&context, &response);
  EXPECT_TRUE(stream->Finish().ok());  // Never half-closed by us.
  EXPECT_EQ(response.received_bytes(), 0);
}

TEST_F(ProbeServiceTest, ACallerThatDoesNotReadIsSentAwayAndOthersAreRefusedMeanwhile) {
  v1::DownloadRequest request;
  request.set_measurement(5);
  request.set_seconds(100);
  grpc::ClientContext context;
  const auto stream = stub_->Download(&context, request);
  v1::DownloadResponse message;
  ASSERT_TRUE(stream->Read(&message));
  const auto [status, bytes] = Download(6, 1);
  // The flow-control window may hold all that the limit permits: then the stream has ended.
  if (!status.ok()) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("try again"));
  }
  absl::Status free = absl::ResourceExhaustedError("");
  const absl::Time patience = absl::Now() + absl::Seconds(30);
  while (absl::IsResourceExhausted(free) && absl::Now() < patience) {
    absl::SleepFor(absl::Milliseconds(20));
    free = gate_.Enter(7, "test").status();
  }
  EXPECT_TRUE(free.ok()) << free;
  context.TryCancel();
}

TEST_F(ProbeServiceTest, TooMuchInAMessageIsRefused) {
  const auto [status, response] = Upload(1, 1, (1 << 20) + 1);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
}

class ProbeGateTest : public ::testing::Test {
 protected:
  std::unique_ptr<ProbeGate::Stream> Enter(uint64_t measurement, const std::string& host) {
    absl::StatusOr<std::unique_ptr<ProbeGate::Stream>> stream = gate_.Enter(measurement, host);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return stream.ok() ? *std::move(stream) : nullptr;
  }

  const ProbeGate::Limits limits_ = {.streams = 2,
                                     .bytes = 1000,
                                     .time = absl::Seconds(10),
                                     .allowance = absl::Seconds(30),
                                     .share = 0.5};
  FakeClock clock_;
  ProbeGate gate_{clock_, limits_};
};

TEST_F(ProbeGateTest, ASecondMeasurementWaitsForTheFirst) {
  auto first = Enter(7, "a");
  for (const auto& [number, host] : {std::pair(8, "a"), std::pair(7, "b"), std::pair(8, "b")}) {
    const absl::Status refused = gate_.Enter(static_cast<uint64_t>(number), host).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("try again in 10 s"));
  }
  first.reset();
  EXPECT_NE(Enter(8, "b"), nullptr);
}

TEST_F(ProbeGateTest, AMeasurementHasABoundedNumberOfStreams) {
  const auto first = Enter(7, "a");
  auto second = Enter(7, "a");
  EXPECT_THAT(gate_.Enter(7, "a").status().message(), HasSubstr("at most 2 streams"));
  second.reset();
  EXPECT_NE(Enter(7, "a"), nullptr);
}

TEST_F(ProbeGateTest, TheBytesOfAllStreamsTogetherAreBounded) {
  const auto first = Enter(7, "a");
  const auto second = Enter(7, "a");
  EXPECT_TRUE(first->Take(600));
  EXPECT_TRUE(second->Take(400));
  EXPECT_FALSE(first->Take(1));
  EXPECT_FALSE(second->Take(0));
}

TEST_F(ProbeGateTest, AMeasurementEndsAtItsTimeAndTakesNoFurtherStreams) {
  const auto stream = Enter(7, "a");
  clock_.Advance(limits_.time - absl::Milliseconds(1));
  EXPECT_TRUE(stream->Take(1));
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_FALSE(stream->Take(1));
  EXPECT_TRUE(absl::IsResourceExhausted(gate_.Enter(7, "a").status()));
}

TEST_F(ProbeGateTest, AllMeasurementsTogetherTakeTheirShareOfTheTime) {
  const absl::Duration start = clock_.Monotonic();
  int done = 0;
  while (clock_.Monotonic() - start < absl::Hours(1)) {
    const auto stream = gate_.Enter(1, "a");
    clock_.Advance(stream.ok() ? limits_.time : absl::Seconds(1));
    done += stream.ok() ? 1 : 0;
  }
  // Half an hour of 10 s each, and what was free at the start.
  EXPECT_GE(done, 175);
  EXPECT_LE(done, 184);
}

TEST_F(ProbeGateTest, VeryManyShortMeasurementsAreNoWayAround) {
  int done = 0;
  while (done < 1000 && gate_.Enter(1, "a").ok()) ++done;
  EXPECT_EQ(done, 81);  // A quarter of a second each, until there is no room for a whole one.
  EXPECT_THAT(gate_.Enter(1, "a").status().message(), HasSubstr("try again in 1 s"));
}

}  // namespace
}  // namespace causeway::server
