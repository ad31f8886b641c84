#include "common/rpc/channel.h"

#include <grpc/grpc.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/loopback.h"

namespace causeway {
namespace {

TEST(Wire, AChunkIsALeafOfTheTreeHash) {
  EXPECT_EQ(kChunkBytes, kTreeLeafBytes);
  EXPECT_GT(kMaxObjectBytes, static_cast<int64_t>(kChunkBytes));
}

TEST(MakeChannel, MakesAChannelWithoutConnecting) {
  const auto channel = MakeChannel("127.0.0.1:1", 0, ChannelSecurity::Plaintext());
  ASSERT_NE(channel, nullptr);
  EXPECT_EQ(channel->GetState(/*try_to_connect=*/false), GRPC_CHANNEL_IDLE);
}

TEST(MakeChannel, NobodyWaitsForGrpcToEndWithTheLastChannel) {
  MakeChannel("127.0.0.1:1", 0, ChannelSecurity::Plaintext()).reset();
  EXPECT_EQ(grpc_is_initialized(), 1);
}

TEST(ChannelTarget, OneAddressStaysAsItIs) {
  EXPECT_EQ(ChannelTarget("coordinator.example:7070").value(), "coordinator.example:7070");
}

TEST(ChannelTarget, SeveralAreAListOfOneFamily) {
  EXPECT_EQ(ChannelTarget("127.0.0.1:7070,127.0.0.2:7071").value(),
            "ipv4:127.0.0.1:7070,127.0.0.2:7071");
  EXPECT_EQ(ChannelTarget("[::1]:7070,127.0.0.1:7071").value(),
            "ipv6:[::1]:7070,[::ffff:127.0.0.1]:7071");
  EXPECT_EQ(ChannelTarget("127.0.0.1:7070,").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ChannelTarget("127.0.0.1").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChannelTarget, AChannelGoesToTheAddressThatAnswers) {
  int nobody = 0;
  {
    const Listener gone;
    nobody = gone.port();
  }
  grpc::CallbackGenericService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const std::string target =
      ChannelTarget(absl::StrCat("127.0.0.1:", nobody, ",127.0.0.1:", port)).value();
  const auto channel = MakeChannel(target, 0, ChannelSecurity::Plaintext());
  EXPECT_TRUE(channel->WaitForConnected(gpr_inf_future(GPR_CLOCK_REALTIME)));
}

}  // namespace
}  // namespace causeway
