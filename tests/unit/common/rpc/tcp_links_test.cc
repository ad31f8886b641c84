#include <netinet/in.h>
#include <sys/socket.h>

#include "common/base/file_system.h"
#include "common/rpc/tcp_links.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/common/rpc/loopback.h"

namespace causeway {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<TcpAddress> Resolve(const std::string& address) {
  absl::StatusOr<std::vector<TcpAddress>> resolved = ResolveAddress(address);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.ok() ? *std::move(resolved) : std::vector<TcpAddress>();
}

TEST(TcpAddress, IsWrittenAsItIsRead) {
  for (const char* text : {"127.0.0.1:7070", "[2001:db8::2]:443", "[::1]:1"}) {
    const std::vector<TcpAddress> resolved = Resolve(text);
    ASSERT_THAT(resolved, SizeIs(1));
    EXPECT_EQ(resolved[0].ToString(), text);
  }
  EXPECT_TRUE(Resolve("127.9.9.9:1")[0].is_loopback());
  EXPECT_TRUE(Resolve("[::1]:1")[0].is_loopback());
  EXPECT_FALSE(Resolve("10.0.0.1:1")[0].is_loopback());
  EXPECT_FALSE(Resolve("[2001:db8::1]:1")[0].is_loopback());
}

TEST(TcpAddress, AMappedIpv4AddressIsTheIpv4Address) {
  EXPECT_EQ(Resolve("[::ffff:10.1.2.3]:7070"), Resolve("10.1.2.3:7070"));
  EXPECT_EQ(Resolve("[::ffff:10.1.2.3]:7070")[0].ToString(), "10.1.2.3:7070");
}

TEST(TcpAddress, ANameThatDoesNotExistIsNotFoundOrTheResolverDoesNotAnswer) {
  const absl::Status status = ResolveAddress("nowhere.invalid:7070").status();
  EXPECT_TRUE(absl::IsNotFound(status) || absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("nowhere.invalid"));
  EXPECT_TRUE(absl::IsInvalidArgument(ResolveAddress("nowhere").status()));
}

TEST(TcpAddress, ANameThatDoesNotResolveSpoilsNoList) {
  const auto all = ResolveAddresses("nowhere.invalid:7070,127.0.0.1:7071,127.0.0.1:7072").value();
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_EQ(all[0].ToString(), "127.0.0.1:7071");
  const absl::Status none = ResolveAddresses("nowhere.invalid:1,no.invalid:2").status();
  EXPECT_TRUE(absl::IsNotFound(none) || absl::IsUnavailable(none)) << none;
  EXPECT_THAT(none.message(), HasSubstr("nowhere.invalid"));
}

TEST(TcpAddress, WhatGrpcSaysOfAPeerIsRead) {
  EXPECT_EQ(ParseGrpcPeer("ipv4:10.0.0.1:53211")->ToString(), "10.0.0.1:53211");
  EXPECT_EQ(ParseGrpcPeer("ipv6:%5B::1%5D:53211")->ToString(), "[::1]:53211");
  EXPECT_EQ(ParseGrpcPeer("ipv6:[2001:db8::7]:1")->ToString(), "[2001:db8::7]:1");
  EXPECT_EQ(ParseGrpcPeer("ipv6:%5Bfe80::1%252%5D:53211")->scope, 2U);
  for (const char* peer : {"", "unix:/tmp/socket", "ipv4:10.0.0.1", "ipv4:10.0.0.1:99999",
                           "ipv4:ten:1", "ipv6:::1:80", "ipv6:[zz]:80", "unknown"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseGrpcPeer(peer).status())) << peer;
  }
}

TEST(TcpLinks, FindsBothEndsOfAConnectionAndNothingElse) {
  const Listener listener;
  const Listener other;
  const std::vector<TcpAddress> peers = Resolve(listener.address());
  EXPECT_THAT(Connections(To(peers)), IsEmpty());
  const Socket one = ConnectTo(peers[0]);
  const Socket two = ConnectTo(peers[0]);
  const Socket three = ConnectTo(Resolve(other.address())[0]);
  const Socket accepted_one = listener.Accept();
  const Socket accepted_two = listener.Accept();

  const std::vector<TcpConnection> out = Connections(To(peers));
  ASSERT_THAT(out, SizeIs(2));
  EXPECT_EQ(out[0].peer, peers[0]);
  EXPECT_THAT(Connections(AcceptedOn(listener.port())), SizeIs(2));
  EXPECT_THAT(Connections(To({})), IsEmpty());
  // The one end's peer is the other end.
  std::vector<TcpAddress> locals = {out[0].local, out[1].local};
  for (const TcpConnection& connection : Connections(AcceptedOn(listener.port()))) {
    EXPECT_THAT(locals, Contains(connection.peer));
  }
}

TEST(TcpLinks, AnIpv4PeerOfASocketForBothFamiliesIsFoundByItsIpv4Address) {
  const Listener listener(/*dual=*/true);
  if (!listener.listens()) GTEST_SKIP() << "this machine has no IPv6";
  const Socket client = ConnectTo(Resolve(listener.address())[0]);
  const Socket accepted = listener.Accept();
  const std::vector<TcpConnection> connections = Connections(AcceptedOn(listener.port()));
  ASSERT_THAT(connections, SizeIs(1));
  EXPECT_TRUE(connections[0].peer.is_ipv4());
  // Asked for as a peer, both ways to write it mean the same.
  const std::vector<TcpAddress> peer = {connections[0].peer};
  EXPECT_THAT(Connections(To(peer)), SizeIs(1));
}

TEST(TcpLinks, AMeterKeepsWhatConnectionsThatEndedHadCounted) {
  const Listener listener;
  const std::vector<TcpAddress> peers = Resolve(listener.address());
  TcpLinkMeter meter(peers, "");
  EXPECT_EQ(meter.Sample().connections, 0);
  Socket first = ConnectTo(peers[0]);
  const Socket accepted = listener.Accept();
  accepted.SendAll(3'000);
  first.ReceiveAll(3'000);
  EXPECT_EQ(meter.Sample().received_bytes, 3'000);
  first.Close();
  EXPECT_EQ(meter.Sample().connections, 0);
  const Socket second = ConnectTo(peers[0]);
  const Socket accepted_second = listener.Accept();
  accepted_second.SendAll(40);
  second.ReceiveAll(40);
  const TcpLink link = meter.Sample();
  EXPECT_EQ(link.connections, 1);
  EXPECT_EQ(link.received_bytes, 3'040);
  const TcpLink other_way = Summarize(Connections(AcceptedOn(listener.port())));
  EXPECT_GT(other_way.rtt, absl::ZeroDuration());
  EXPECT_GT(other_way.congestion_window_bytes, 0);
  EXPECT_EQ(other_way.congestion_control, DefaultCongestionControl());
}

TEST(TcpLinks, TheSumOfALinkTakesTheSmallestRoundTripAndNamesEveryCongestionControl) {
  TcpConnection measured;
  measured.rtt = absl::Milliseconds(30);
  measured.min_rtt = absl::Milliseconds(20);
  measured.retransmitted_segments = 2;
  measured.delivery_bytes_per_second = 1e6;
  measured.congestion_control = "cubic";
  TcpConnection faster = measured;
  faster.rtt = absl::Milliseconds(10);
  faster.min_rtt = absl::Milliseconds(9);
  faster.congestion_control = "bbr";
  const TcpConnection fresh;  // Nothing is known of it yet.
  const TcpLink link = Summarize(std::vector{measured, faster, fresh});
  EXPECT_EQ(link.connections, 3);
  EXPECT_EQ(link.rtt, absl::Milliseconds(20));
  EXPECT_EQ(link.min_rtt, absl::Milliseconds(9));
  EXPECT_EQ(link.retransmitted_segments, 4);
  EXPECT_EQ(link.delivery_bytes_per_second, 2e6);
  EXPECT_EQ(link.congestion_control, "bbr, cubic");
  EXPECT_EQ(Summarize({}).connections, 0);
}

TEST(CongestionControl, AutoIsBbrOrTheDefaultAndSystemIsTheDefault) {
  const auto chosen = ChooseCongestionControl("auto").value();
  EXPECT_EQ(chosen, CanUseCongestionControl("bbr").ok() ? "bbr" : "");
  EXPECT_EQ(*ChooseCongestionControl("system"), "");
  EXPECT_NE(DefaultCongestionControl(), "");
}

TEST(CongestionControl, ANameThatTheKernelDoesNotKnowIsRefusedWithARemedy) {
  const absl::Status unknown = ChooseCongestionControl("nonesuch").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(unknown)) << unknown;
  EXPECT_THAT(unknown.message(), HasSubstr("--congestion_control=nonesuch"));
  EXPECT_FALSE(ChooseCongestionControl("").ok());
  EXPECT_FALSE(ChooseCongestionControl("a-name-that-is-far-too-long").ok());
}

TEST(CongestionControl, IsSetForConnectionsAndInheritedFromListeners) {
  const std::string system = DefaultCongestionControl();
  const std::string wanted = system == "reno" ? "cubic" : "reno";  // Reno is always there.
  if (!CanUseCongestionControl(wanted).ok()) GTEST_SKIP() << CanUseCongestionControl(wanted);
  const Listener listener;
  const std::vector<TcpAddress> peers = Resolve(listener.address());
  EXPECT_EQ(SetCongestionControlOfListeners(listener.port(), wanted), 1);
  EXPECT_EQ(SetCongestionControlOfListeners(listener.port(), wanted), 0);  // It has it already.
  const Socket client = ConnectTo(peers[0]);
  const Socket accepted = listener.Accept();
  EXPECT_EQ(Summarize(Connections(AcceptedOn(listener.port()))).congestion_control, wanted);

  EXPECT_EQ(Summarize(Connections(To(peers))).congestion_control, system);
  EXPECT_EQ(SetCongestionControl(peers, ""), 0);
  EXPECT_EQ(Summarize(Connections(To(peers))).congestion_control, system);
  EXPECT_EQ(TcpLinkMeter(peers, wanted).Sample().congestion_control, wanted);
  EXPECT_EQ(SetCongestionControl(peers, wanted), 0);
}

TEST(Bounds, PausesAreBoundedAtBothEndsWhereTheKernelKnowsHow) {
  constexpr int kTcpRtoMaxMs = 44;
  const Listener listener;
  const std::vector<TcpAddress> peers = Resolve(listener.address());
  const Socket client = ConnectTo(peers[0]);
  const Socket accepted = listener.Accept();
  TcpLosses losses;
  const auto pause_ms = [](const Socket& socket) {
    int milliseconds = 0;
    socklen_t length = sizeof(milliseconds);
    getsockopt(socket.descriptor(), IPPROTO_TCP, kTcpRtoMaxMs, &milliseconds, &length);
    return milliseconds;
  };
  if (pause_ms(client) == 0) {
    EXPECT_EQ(BoundConnections(To(peers), losses), 0);
    GTEST_SKIP() << "the kernel is older than Linux 6.15";
  }
  const int before = pause_ms(accepted);
  EXPECT_EQ(BoundConnections(To(peers), losses), 1);
  EXPECT_EQ(pause_ms(client), 1000);
  EXPECT_EQ(pause_ms(accepted), before);
  EXPECT_EQ(BoundConnections(AcceptedOn(listener.port()), losses), 1);
  EXPECT_EQ(pause_ms(accepted), 1000);
  EXPECT_EQ(BoundConnections(To({}), losses), 0);
}

TEST(Bounds, LongLinksHaveASmallerWindowUnlessTheyLosePackets) {
  SocketBuffers buffers;
  buffers.send.largest = 4 << 20;
  TcpConnection connection;
  connection.min_rtt = absl::Milliseconds(100);
  connection.congestion_control = "bbr";
  EXPECT_EQ(WindowBound(connection, 0, buffers), 9 << 18);
  EXPECT_EQ(WindowBound(connection, 1e-4, buffers), 9 << 18);
  EXPECT_EQ(WindowBound(connection, 1e-3, buffers), 4 << 20);
  EXPECT_EQ(WindowBound(connection, 0.05, buffers), 9 << 18) << "a queue overflows";
  connection.min_rtt = absl::Milliseconds(300);
  EXPECT_EQ(WindowBound(connection, 1e-3, buffers), 0);
  connection.min_rtt = absl::Milliseconds(1);
  EXPECT_EQ(WindowBound(connection, 1e-3, buffers), 0);
  connection.min_rtt = absl::Milliseconds(100);
  connection.congestion_control = "cubic";
  EXPECT_EQ(WindowBound(connection, 1e-3, buffers), 0);
}

TEST(Losses, TheShareIsThatOfTheLastSeconds) {
  constexpr int64_t kSegment = 1448;
  TcpLosses losses;
  TcpConnection connection;
  const auto send = [&](int64_t segments, int64_t resent) {
    connection.sent_bytes += segments * kSegment;
    connection.retransmitted_segments += resent;
    return losses.ResentShare(connection);
  };
  EXPECT_EQ(send(100, 10), 0) << "too little to tell";
  EXPECT_NEAR(send(10'000, 0), 1e-3, 3e-4);
  for (int i = 0; i < 50; ++i) send(10'000, 0);
  EXPECT_LT(send(10'000, 0), 1e-6);
  for (int i = 0; i < 50; ++i) send(10'000, 10);
  EXPECT_NEAR(send(10'000, 10), 1e-3, 1e-6);
  EXPECT_NEAR(send(0, 0), 1e-3, 1e-6) << "at rest it says nothing new";
}

TEST(Losses, AConnectionThatEndedIsForgottenAndItsAddressesBeginAnew) {
  TcpLosses losses;
  TcpConnection connection;
  connection.retransmitted_segments = 100;
  connection.sent_bytes = 100 << 20;
  EXPECT_GT(losses.ResentShare(connection), 0);
  losses.ForgetOthers();
  EXPECT_GT(losses.ResentShare(connection), 0) << "it was there";
  losses.ForgetOthers();
  losses.ForgetOthers();
  connection.retransmitted_segments = 0;
  EXPECT_EQ(losses.ResentShare(connection), 0);
}

using ::testing::AllOf;
using ::testing::Not;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr SocketBuffers kDefaults = {.send = {4096, 16384, 4 * kMiB},
                                     .receive = {4096, 131072, 32 * kMiB}};

MeasuredDirection Link(double mbit_per_second, int rtt_ms, int connections) {
  return {.bytes_per_second = mbit_per_second * 125e3,
          .rtt = absl::Milliseconds(rtt_ms),
          .connections = connections};
}

TEST(SocketBuffers, AreReadFromTheFolderOfTheKernel) {
  const TemporaryFolder folder;
  FileSystem& files = *FileSystem::Real();
  EXPECT_TRUE(absl::IsNotFound(ReadSocketBuffers(files, folder.path()).status()));
  const std::string wmem = JoinPath(folder.path(), "tcp_wmem");
  WriteText(wmem, "4096\t16384\t4194304\n");
  WriteText(JoinPath(folder.path(), "tcp_rmem"), "1\t2\t3\n");
  const auto buffers = ReadSocketBuffers(files, folder.path()).value();
  EXPECT_EQ(buffers.send.initial, 16384);
  EXPECT_EQ(buffers.send.largest, 4194304);
  EXPECT_EQ(buffers.receive.largest, 3);
  WriteText(wmem, "4096 16384\n");
  EXPECT_THAT(ReadSocketBuffers(files, folder.path()).status().message(),
              HasSubstr("expected three numbers"));
}

TEST(SocketBuffers, TheWindowIsSmallerThanWhatStaysInTheSendBuffer) {
  const SocketBuffers usual = {.send = {.largest = 4 * kMiB}, .receive = {.largest = 32 * kMiB}};
  EXPECT_EQ(usual.window_bytes(), 9 * kMiB / 4);
  EXPECT_LT(3 * usual.window_bytes(), 2 * usual.send.largest);
}

TEST(SocketBuffers, OneDefaultConnectionHoldsAGigabitLinkOf100MsDown) {
  // Two million bytes per round trip: 168 Mbit/s.
  const BufferVerdict verdict = JudgeBuffer(4 * kMiB, Link(160, 100, 1));
  EXPECT_TRUE(verdict.binds);
  EXPECT_EQ(verdict.window_bytes, 2 * kMiB);
  EXPECT_EQ(verdict.bandwidth_delay_bytes, 2e6);
  EXPECT_EQ(verdict.wanted_bytes, 8 * kMiB);
}

TEST(SocketBuffers, WhatBindsIsTheWindowOfAllConnectionsTogether) {
  EXPECT_FALSE(JudgeBuffer(4 * kMiB, Link(160, 100, 4)).binds);
  EXPECT_TRUE(JudgeBuffer(4 * kMiB, Link(640, 100, 4)).binds);
  EXPECT_FALSE(JudgeBuffer(4 * kMiB, Link(640, 100, 16)).binds);
}

TEST(SocketBuffers, AShortLinkIsNeverBoundAndWhatWasNotMeasuredNeither) {
  EXPECT_FALSE(JudgeBuffer(4 * kMiB, {2e9, absl::Microseconds(80), 1}).binds);
  EXPECT_FALSE(JudgeBuffer(4 * kMiB, {0, absl::Milliseconds(100), 1}).binds);
  EXPECT_FALSE(JudgeBuffer(4 * kMiB, {1e9, absl::ZeroDuration(), 1}).binds);
}

TEST(SocketBuffers, TheAdviceIsBoundedHoweverLongTheLink) {
  EXPECT_LE(JudgeBuffer(600 * kMiB, Link(100'000, 600, 1)).wanted_bytes, 1024 * kMiB);
}

TEST(SocketBuffers, TheWarningNamesTheDirectionAndTheLineToRun) {
  EXPECT_EQ(SocketBufferWarning(kDefaults, Link(50, 100, 4), Link(50, 100, 4)), "");
  EXPECT_THAT(SocketBufferWarning(kDefaults, Link(160, 100, 1), Link(160, 100, 1)),
              AllOf(HasSubstr("sending runs at 160 of the at most 168 Mbit/s"),
                    HasSubstr("sysctl -w net.ipv4.tcp_wmem='4096 16384 8388608'"),
                    Not(HasSubstr("receiving"))));
  EXPECT_THAT(SocketBufferWarning(kDefaults, Link(160, 100, 1), Link(1300, 100, 1)),
              AllOf(HasSubstr("sending"), HasSubstr("; receiving"),
                    HasSubstr("net.ipv4.tcp_rmem='4096 131072 67108864'")));
}

}  // namespace
}  // namespace causeway
