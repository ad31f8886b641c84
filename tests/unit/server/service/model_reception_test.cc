// Session.BringModel over a real server: the site's own client, and streams that mean harm.
#include "server/service/session_service.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "causeway/v1/admin.grpc.pb.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/base/checksum.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/test_authority.h"
#include "tests/unit/server/core/waiting_run.h"
#include "tests/unit/server/service/local_server.h"
#include "worker/member/joining.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

class ModelReceptionTest : public ::testing::Test {
 protected:
  explicit ModelReceptionTest(CoordinatorServer::Options options = {.stall = absl::Hours(1)},
                              const SecurityOptions& security = {}) {
    server_.emplace(waiting_, std::move(options));
    const auto channel = MakeChannelSecurity(security, server_->address(), absl::Now()).value();
    channel_ = MakeChannel(server_->address(), 0, channel);
    stub_ = v1::Session::NewStub(channel_);
    std::iota(large_.begin(), large_.end(), 1.0F);
  }

  v1::DescribeResponse Describe() { return DescribeRun(*stub_).value(); }

  // A tensor of three chunks and a bit, and a scalar.
  worker::ModelToBring Model(const std::string& worker_id = "paris") {
    worker::ModelToBring model;
    model.run_id = "any-1";
    model.worker_id = worker_id;
    v1::TensorTable::Tensor& large = *model.tensors.add_tensor();
    large.set_name("large");
    large.add_shape(1000);
    large.add_shape(800);
    model.tensors.add_tensor()->set_name("scale");
    model.values = [this](int index) {
      return index == 0 ? std::span<const float>(large_) : std::span<const float>(&scale_, 1);
    };
    return model;
  }

  v1::BringModelRequest HeaderMessage() {
    v1::BringModelRequest message;
    v1::ModelHeader& header = *message.mutable_header();
    header.set_run_id("any-1");
    header.set_wire_version(kWireVersion);
    header.set_worker_id("lyon");
    *header.mutable_tensors() = Model().tensors;
    header.set_total_bytes(4 * 800001);
    return message;
  }

  struct Bringing {
    explicit Bringing(ModelReceptionTest& test)
        : stream(test.stub_->BringModel(&context, &response)) {}
    absl::Status Finish() { return FromGrpcStatus(stream->Finish()); }

    grpc::ClientContext context;
    v1::BringModelResponse response;
    const std::unique_ptr<grpc::ClientWriter<v1::BringModelRequest>> stream;
  };
  void ExpectLargeThere() const {
    const std::vector<float> published = waiting_.coordinator()->PublishedParameters();
    const auto offset = static_cast<size_t>(waiting_.coordinator()->plan().Find("large")->offset);
    EXPECT_TRUE(std::equal(large_.begin(), large_.end(), published.begin() + offset));
  }
  // The status of a stream of these messages.
  absl::Status EndOf(const std::vector<v1::BringModelRequest>& messages) {
    Bringing bringing(*this);
    for (const v1::BringModelRequest& message : messages) {
      if (!bringing.stream->Write(message)) break;
    }
    bringing.stream->WritesDone();
    return bringing.Finish();
  }

  std::vector<float> large_ = std::vector<float>(800000);
  const float scale_ = 0.125F;
  WaitingRun run_{
      "sync { fragments: 3 pattern: BALANCED } membership { start_workers: 1 max_workers: 1 }"};
  ServedRun& waiting_ = run_.run;
  std::optional<LocalServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Session::Stub> stub_;
};

TEST_F(ModelReceptionTest, WhatNeedsAModelIsRefusedUntilASiteHasBroughtIt) {
  const auto expect_refused = [](const grpc::Status& end) {
    EXPECT_THAT(FromGrpcStatus(end),
                StatusIs(kFailedPrecondition, HasSubstr("waits for the first site to bring")));
  };
  v1::WorkerMessage join;
  join.mutable_join()->set_worker_id("paris");
  expect_refused(OpenSession(*stub_, join).End());
  grpc::ClientContext carrying;
  expect_refused(v1::Exchange::NewStub(channel_)->Carry(&carrying)->Finish());
  const auto admin = v1::Admin::NewStub(channel_);
  grpc::ClientContext ordering;
  v1::ResumeResponse none;
  expect_refused(admin->Resume(&ordering, {}, &none));
  grpc::ClientContext asking;
  v1::RunStatus status;
  EXPECT_TRUE(admin->GetStatus(&asking, {}, &status).ok());
  EXPECT_EQ(status.run_id(), "any-1");
  EXPECT_EQ(status.fragments_size(), 0);
}

TEST_F(ModelReceptionTest, ASiteThatBringsWhileAnotherIsFirstIsSentBack) {
  Bringing second(*this);
  ASSERT_TRUE(second.stream->Write(HeaderMessage()));
  EXPECT_EQ(worker::BringModel(*stub_, Model()), absl::OkStatus());
  // It is told without having to send anything more.
  EXPECT_THAT(second.Finish(), StatusIs(kAlreadyExists));
}

TEST_F(ModelReceptionTest, WhatCameOverAStreamThatBrokeIsNotSentAgain) {
  worker::ModelToBring model = Model();
  // Asked before each tensor, twice, and before each of the three full chunks: a try breaks after
  // two chunks, unless it begins behind them.
  int asked = 0;
  model.is_cancelled = [&] { return ++asked > 5; };
  absl::Status status = absl::CancelledError("not tried yet");
  int64_t sent = 0;
  int tries = 0;
  for (; tries < 1000 && !status.ok(); ++tries) {
    asked = 0;
    status = worker::BringModel(*stub_, model, &sent);
    // The coordinator keeps what came once gRPC has noticed, and has room for two such streams.
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status) || absl::IsResourceExhausted(status))
        << status;
    EXPECT_EQ(Describe().awaits_model(), !status.ok());
  }
  ASSERT_EQ(status, absl::OkStatus());
  EXPECT_GT(tries, 1);
  EXPECT_LE(sent, 4 * 800001 - 2 * static_cast<int64_t>(kChunkBytes));
  ExpectLargeThere();
}

TEST_F(ModelReceptionTest, NoMoreThanTwoSitesBringAModelAtOnce) {
  Bringing first(*this), second(*this);
  for (Bringing* const site : {&first, &second}) {
    ASSERT_TRUE(site->stream->Write(HeaderMessage()));
  }
  // The server has both once a third is refused.
  absl::Status status = absl::InvalidArgumentError("not asked yet");
  while (absl::IsInvalidArgument(status)) status = EndOf({});
  EXPECT_THAT(status,
              StatusIs(kResourceExhausted, HasSubstr("2 sites are bringing a model already")));
  for (Bringing* const site : {&first, &second}) {
    site->context.TryCancel();
    site->Finish().IgnoreError();
  }
}

TEST_F(ModelReceptionTest, StreamsOutOfTheProtocolAreRefused) {
  const auto expect = [&](const std::vector<v1::BringModelRequest>& messages, absl::StatusCode code,
                          const char* text) {
    absl::Status status = absl::ResourceExhaustedError("not asked yet");
    while (absl::IsResourceExhausted(status)) status = EndOf(messages);
    EXPECT_THAT(status, StatusIs(code, HasSubstr(text)));
  };
  v1::BringModelRequest chunk;
  chunk.mutable_chunk()->set_data("1234");
  expect({}, kInvalidArgument, "before its header");
  expect({chunk}, kInvalidArgument, "must be its header");
  expect({v1::BringModelRequest()}, kInvalidArgument, "must be its header");
  expect({HeaderMessage(), HeaderMessage()}, kInvalidArgument, "nothing else");
  expect({HeaderMessage(), chunk}, kInvalidArgument, "1048576 bytes at offset 0");
  expect({HeaderMessage()}, kInvalidArgument, "must be 3200004 bytes; 0 came");
  v1::BringModelRequest version = HeaderMessage();
  version.mutable_header()->set_wire_version(kWireVersion + 1);
  expect({version}, kFailedPrecondition, "wire_version differs");
  v1::BringModelRequest size = HeaderMessage();
  size.mutable_header()->set_total_bytes(int64_t{1} << 62);
  expect({size}, kInvalidArgument, "total_bytes must be 4 times");
  EXPECT_TRUE(Describe().awaits_model());
}

TEST_F(ModelReceptionTest, TheClientRefusesValuesOfAnotherSize) {
  worker::ModelToBring model = Model();
  model.values = [this](int) { return std::span<const float>(large_).first(7); };
  EXPECT_THAT(worker::BringModel(*stub_, model),
              StatusIs(kInvalidArgument, HasSubstr("large is [1000, 800]")));
}

struct Secrets {
  const TestAuthority authority_;
  const TestFolder folder_;
};

class RevokedTest : protected Secrets, public ModelReceptionTest {
 protected:
  RevokedTest() : ModelReceptionTest({.security = Server(), .stall = absl::Hours(1)}, Site()) {}

  static std::string Token() { return std::string(40, 'a'); }
  SecurityOptions Server() {
    SecurityOptions options = folder_.WriteSet("server", "", IssueServer(authority_));
    options.ca_file.clear();
    options.token_file = folder_.Write("tokens", TokenLine(Token(), "worker lyon"));
    return options;
  }
  SecurityOptions Site() {
    SecurityOptions options;
    options.ca_file = folder_.Write("ca", authority_.pem());
    options.token_file = folder_.Write("token", Token());
    return options;
  }
};

TEST_F(RevokedTest, ASiteThatIsRevokedBringsNothing) {
  Bringing revoked(*this);
  ASSERT_TRUE(revoked.stream->Write(HeaderMessage()));
  revoked.stream->WaitForInitialMetadata();
  folder_.Write("tokens", "nobody\n");
  // The stream ends at once. A list may be in the middle of being written, so the refusal for good
  // comes once it has settled (credentials_test.cc).
  EXPECT_THAT(revoked.Finish(), StatusIs(kUnavailable));
  EXPECT_TRUE(waiting_.Describe().awaits_model());
}

class SmallMemoryTest : public ModelReceptionTest {
 protected:
  SmallMemoryTest() : ModelReceptionTest({.memory_bytes = 16 << 20}) {}
};

TEST_F(SmallMemoryTest, AModelThatTheGivenMemoryDoesNotHoldIsRefusedAtItsHeader) {
  // 64 MB in three fragments. A quarter of the memory is gRPC's, which needs some MiB to work at
  // all.
  large_.resize(16'000'000);
  worker::ModelToBring model = Model();
  model.tensors.mutable_tensor(0)->set_shape(1, 16'000);
  EXPECT_THAT(worker::BringModel(*stub_, model),
              StatusIs(kInvalidArgument, HasSubstr("the memory for transfers is 16777216")));
  EXPECT_TRUE(Describe().awaits_model());
}

class ImpatientTest : public ModelReceptionTest {
 protected:
  ImpatientTest() : ModelReceptionTest({.stall = absl::Milliseconds(1)}) {}
};

TEST_F(ImpatientTest, ASiteThatStandsStillIsSentAway) {
  Bringing slow(*this);
  slow.stream->Write(HeaderMessage());
  EXPECT_THAT(slow.Finish(), StatusIs(kDeadlineExceeded));
}

}  // namespace
}  // namespace causeway::server
