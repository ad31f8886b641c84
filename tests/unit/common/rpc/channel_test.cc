#include "common/rpc/channel.h"

#include "common/rpc/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;

TEST(CheckAddress, TakesHostAndPort) {
  for (const char* address : {"127.0.0.1:7070", "localhost:1", "coordinator.example.org:65535",
                              "[::1]:7070", "[2001:db8::2]:443"}) {
    EXPECT_TRUE(CheckAddress(address, false).ok()) << CheckAddress(address, false);
    EXPECT_TRUE(CheckAddress(address, true).ok()) << address;
  }
}

TEST(CheckAddress, RefusesEverythingElseAndShowsAnExample) {
  for (const char* address : {"",
                              ":",
                              "7070",
                              "localhost",
                              "localhost:",
                              ":7070",
                              "localhost:65536",
                              "localhost:-1",
                              "localhost:+1",
                              "localhost: 7070",
                              "localhost:70x",
                              "localhost:99999999999999999999",
                              "::1",
                              "::1:7070",
                              "[]:7070",
                              "[::1:7070",
                              "::1]:7070",
                              "[::1]",
                              "http://localhost:7070",
                              "a b:7070",
                              "localhost/path:7070"}) {
    const absl::Status status = CheckAddress(address, false);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:7070")) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("\"") + address + "\""));
  }
}

TEST(CheckAddress, PortZeroIsForListenersOnly) {
  EXPECT_TRUE(CheckAddress("127.0.0.1:0", true).ok());
  EXPECT_FALSE(CheckAddress("127.0.0.1:0", false).ok());
}

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
