#include "common/rpc/channel.h"

#include "common/rpc/wire.h"
#include "gtest/gtest.h"

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

}  // namespace
}  // namespace causeway
