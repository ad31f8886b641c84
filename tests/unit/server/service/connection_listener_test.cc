#include "server/service/connection_listener.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/tcp_address.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/no_threads.h"
#include "tests/unit/server/service/raw_connection.h"

namespace causeway::server {
namespace {

class ConnectionListenerTest : public ::testing::Test {
 protected:
  // So many in total and of one address.
  void Listen(int total, int of_one) {
    gate_.emplace(ConnectionGate::Limits{.total = total, .per_network = of_one, .for_members = 0});
    listener_ = ConnectionListener::Listen("127.0.0.1:0", *gate_, clock_).value();
    const absl::Status started = listener_->Start([this](int, int descriptor) {
      absl::MutexLock lock(&mutex_);
      taken_.emplace_back(descriptor);
    });
    ASSERT_TRUE(started.ok()) << started;
  }
  void AwaitTaken(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return taken_.size() == count; };
    mutex_.Await(absl::Condition(&there));
  }
  // Sends much over a connection, the one that was taken as number `which`.
  void SendMuch(const RawConnection& connection, size_t which) {
    const std::string part(16 << 10, 'x');
    for (int64_t sent = 0; sent <= ConnectionWatch::kStrangerBytes; sent += std::ssize(part)) {
      ASSERT_TRUE(connection.Send(part));
      absl::MutexLock lock(&mutex_);
      std::string got(part.size(), ' ');
      const int taken = taken_[which].get();
      fcntl(taken, F_SETFL, 0);  // To wait for all of it.
      ASSERT_EQ(recv(taken, got.data(), got.size(), MSG_WAITALL), std::ssize(got));
    }
  }
  void CloseTaken() {
    absl::MutexLock lock(&mutex_);
    taken_.clear();
  }

  FakeClock clock_;
  std::optional<ConnectionGate> gate_;
  absl::Mutex mutex_;
  std::vector<OwnedDescriptor> taken_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ConnectionListener> listener_;
};

TEST_F(ConnectionListenerTest, ConnectionsBeyondTheLimitAreClosedAtOnce) {
  Listen(/*total=*/4, /*of_one=*/3);
  const RawConnection a(listener_->port()), b(listener_->port()), c(listener_->port());
  AwaitTaken(3);
  const RawConnection fourth(listener_->port());
  EXPECT_TRUE(fourth.IsEnded());
  const RawConnection other(listener_->port(), "127.0.0.2");
  AwaitTaken(4);
  const RawConnection one_more(listener_->port(), "127.0.0.3");
  EXPECT_TRUE(one_more.IsEnded());
}

TEST_F(ConnectionListenerTest, ConnectionsThatEndedMakeRoom) {
  Listen(/*total=*/2, /*of_one=*/2);
  for (int round = 0; round < 3; ++round) {
    const RawConnection a(listener_->port()), b(listener_->port());
    AwaitTaken(2);
    EXPECT_TRUE(RawConnection(listener_->port()).IsEnded());
    CloseTaken();
    clock_.Advance(absl::Seconds(1));  // It looks only so often.
  }
  EXPECT_LE(gate_->connections(), 2);
}

TEST_F(ConnectionListenerTest, AStrangerWhoSendsMuchIsEndedAndAMemberIsNot) {
  Listen(/*total=*/4, /*of_one=*/4);
  const RawConnection stranger(listener_->port());
  AwaitTaken(1);
  const RawConnection member(listener_->port());
  AwaitTaken(2);
  const TcpAddress address =
      ResolveAddress(absl::StrCat("127.0.0.1:", member.own_port())).value()[0];
  listener_->Know(address);
  SendMuch(stranger, 0);
  SendMuch(member, 1);
  listener_->EndHostile();
  {
    absl::MutexLock lock(&mutex_);
    ASSERT_EQ(send(taken_[0].get(), "a", 1, 0), 1) << "it may be about to say who it is";
  }
  EXPECT_EQ(stranger.ReadByte(), 'a');
  clock_.Advance(ConnectionWatch::kPatience);
  listener_->EndHostile();
  EXPECT_TRUE(stranger.IsEnded());
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(send(taken_[1].get(), "b", 1, 0), 1);
  EXPECT_EQ(member.ReadByte(), 'b');
}

TEST_F(ConnectionListenerTest, AMemberWhosePortHadAnOlderConnectionStaysKnown) {
  Listen(/*total=*/4, /*of_one=*/4);
  RawConnection older(listener_->port());
  AwaitTaken(1);
  const uint16_t port = older.own_port();
  older.Reset();
  RawConnection newer("127.0.0.1", port);
  ASSERT_TRUE(newer.Connect(listener_->port()));
  AwaitTaken(2);
  listener_->Know(ResolveAddress(absl::StrCat("127.0.0.1:", port)).value()[0]);
  {
    absl::MutexLock lock(&mutex_);
    taken_[0].Reset();  // gRPC notices only now.
  }
  SendMuch(newer, 1);
  for (int look = 0; look < 2; ++look) {
    listener_->EndHostile();
    clock_.Advance(ConnectionWatch::kPatience);
  }
  absl::MutexLock lock(&mutex_);
  ASSERT_EQ(send(taken_[1].get(), "b", 1, MSG_NOSIGNAL), 1);
  EXPECT_EQ(newer.ReadByte(), 'b');
}

TEST_F(ConnectionListenerTest, ItLivesThroughATimeWithoutFileDescriptors) {
  Listen(/*total=*/100, /*of_one=*/100);
  RawConnection early, late;  // Their sockets are there before the others are gone.
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int free = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const rlimit none = {static_cast<rlim_t>(free), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::vector<OwnedDescriptor> holes;  // Below the limit.
  for (;;) {
    OwnedDescriptor hole(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!hole.valid()) break;
    holes.push_back(std::move(hole));
  }
  early.Connect(listener_->port());
  EXPECT_TRUE(early.IsEnded()) << "told at once";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  close(free);
  late.Connect(listener_->port());
  AwaitTaken(1);
}

TEST(AcceptErrorTest, ErrorsOfOneConnectionAreNoLackOfAnything) {
  for (const int error : {EAGAIN, EINTR, ECONNABORTED, EPROTO, ENETDOWN, ENETUNREACH, EHOSTDOWN,
                          EHOSTUNREACH, ENONET, ENOPROTOOPT, EOPNOTSUPP}) {
    EXPECT_EQ(ClassifyAcceptError(error), AcceptFailure::kConnection) << strerror(error);
  }
}

TEST(AcceptErrorTest, WhatLacksIsToldApart) {
  EXPECT_EQ(ClassifyAcceptError(EMFILE), AcceptFailure::kDescriptors);
  EXPECT_EQ(ClassifyAcceptError(ENFILE), AcceptFailure::kDescriptors);
  EXPECT_EQ(ClassifyAcceptError(ENOBUFS), AcceptFailure::kMemory);
  EXPECT_EQ(ClassifyAcceptError(ENOMEM), AcceptFailure::kMemory);
  // A security module that refuses leaves the connection where it was: no reason to spin.
  EXPECT_EQ(ClassifyAcceptError(EPERM), AcceptFailure::kListener);
  EXPECT_EQ(ClassifyAcceptError(EBADF), AcceptFailure::kListener);
}

TEST_F(ConnectionListenerTest, WithoutAThreadItSaysSo) {
  gate_.emplace(ConnectionGate::Limits{.total = 10, .per_network = 10, .for_members = 0});
  const auto listener = ConnectionListener::Listen("127.0.0.1:0", *gate_, clock_).value();
  const NoThreads none;
  EXPECT_EQ(listener->Start([](int, int) {}).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ConnectionListenerTest, ThePortIsFreeAfterTheEndAndConnectionsLiveOn) {
  Listen(/*total=*/10, /*of_one=*/10);
  const int port = listener_->port();
  const RawConnection open(port);
  AwaitTaken(1);
  listener_->Stop();
  EXPECT_FALSE(RawConnection().Connect(port));
  const auto next = ConnectionListener::Listen(absl::StrCat("127.0.0.1:", port), *gate_, clock_);
  EXPECT_TRUE(next.ok()) << next.status();
  {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(send(taken_[0].get(), "x", 1, 0), 1);
  }
  EXPECT_EQ(open.ReadByte(), 'x');
}

TEST_F(ConnectionListenerTest, APortThatIsTakenIsRefusedAndNotShared) {
  Listen(/*total=*/10, /*of_one=*/10);
  const auto second =
      ConnectionListener::Listen(absl::StrCat("127.0.0.1:", listener_->port()), *gate_, clock_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find("taken"), absl::string_view::npos);
}

TEST_F(ConnectionListenerTest, AWildcardListensForBothFamilies) {
  gate_.emplace(ConnectionGate::Limits{.total = 10, .per_network = 10, .for_members = 0});
  const auto listener = ConnectionListener::Listen("0.0.0.0:0", *gate_, clock_).value();
  EXPECT_TRUE(RawConnection().Connect(listener->port()));
}

TEST_F(ConnectionListenerTest, AMalformedAddressIsRefused) {
  gate_.emplace(ConnectionGate::Limits{});
  for (const char* address : {"", "localhost", "::1", "127.0.0.1:99999"}) {
    EXPECT_EQ(ConnectionListener::Listen(address, *gate_, clock_).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
}

}  // namespace
}  // namespace causeway::server
