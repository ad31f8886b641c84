#include "worker/group/site_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "worker/group/site_rendezvous.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kEcho = 1;
constexpr int kUrgent = 2;

std::string TextOf(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> BytesOf(const std::string& text) { return {text.begin(), text.end()}; }

// Both ends of a link, in one process.
struct Pair {
  Pair() {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    first = std::make_unique<SiteLink>(sockets[0], "process 1 of this site", first_cause);
    second = std::make_unique<SiteLink>(sockets[1], "process 0 of this site", second_cause);
  }
  std::shared_ptr<SharedCause> first_cause = std::make_shared<SharedCause>();
  std::shared_ptr<SharedCause> second_cause = std::make_shared<SharedCause>();
  std::unique_ptr<SiteLink> first;
  std::unique_ptr<SiteLink> second;
};

// Answers every call with its bytes, reversed, until the other side leaves.
void Serve(SiteLink& link) {
  for (;;) {
    absl::StatusOr<std::optional<SiteCall>> call = link.NextCall();
    if (!call.ok() || !call->has_value()) return;
    std::string text = TextOf((*call)->bytes);
    std::reverse(text.begin(), text.end());
    const bool is_known = (*call)->method == kEcho;
    ASSERT_TRUE(link.Answer((*call)->id,
                            is_known ? absl::OkStatus() : absl::NotFoundError("what is that?"),
                            BytesOf(text))
                    .ok());
  }
}

TEST(SiteLinkTest, CallsAreAnsweredAndErrorsCarriedOver) {
  Pair pair;
  pair.first->Start();
  pair.second->Start();
  std::thread server([&] { Serve(*pair.second); });
  EXPECT_EQ(TextOf(pair.first->CallAndAwait(kEcho, 0, 0, BytesOf("abc")).value()), "cba");
  const absl::Status unknown = pair.first->CallAndAwait(77).status();
  EXPECT_EQ(unknown, absl::NotFoundError("what is that?"));
  // Answers may be awaited in another order.
  const uint64_t one = pair.first->Call(kEcho, 0, 0, BytesOf("12")).value();
  const uint64_t two = pair.first->Call(kEcho, 0, 0, {}).value();
  EXPECT_EQ(TextOf(pair.first->Await(two).value()), "");
  EXPECT_EQ(TextOf(pair.first->Await(one).value()), "21");
  pair.first.reset();
  server.join();
  EXPECT_TRUE(pair.second_cause->Get().ok()) << "leaving is no failure";
}

TEST(SiteLinkTest, SomeCallsAreDealtWithAtOnce) {
  Pair pair;
  SiteLink& second = *pair.second;
  pair.second->Start([&second](SiteCall& call) {
    if (call.method != kUrgent) return false;
    EXPECT_EQ(call.argument, -5);
    EXPECT_EQ(call.number, 0.25);
    return second.Answer(call.id, absl::OkStatus(), BytesOf("at once")).ok();
  });
  pair.first->Start();
  const uint64_t waits = pair.first->Call(kEcho, 0, 0, {}).value();
  EXPECT_EQ(TextOf(pair.first->CallAndAwait(kUrgent, -5, 0.25).value()), "at once");
  const std::optional<SiteCall> call = second.NextCall().value();
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->id, waits);
}

TEST(SiteLinkTest, ACauseOnOneSideEndsBoth) {
  Pair pair;
  pair.first->Start();
  pair.second->Start();
  std::thread waits([&] {
    const absl::Status status = pair.first->CallAndAwait(kEcho).status();
    EXPECT_EQ(status, absl::AbortedError("rank 9: out of memory"));
  });
  ASSERT_TRUE(pair.second->NextCall().ok());
  pair.second_cause->Set(9, absl::ResourceExhaustedError("out of memory"));
  waits.join();
  EXPECT_FALSE(pair.first_cause->Get().ok());
  EXPECT_EQ(pair.second->NextCall().status(), absl::AbortedError("rank 9: out of memory"));
  EXPECT_FALSE(pair.first->Call(kEcho, 0, 0, {}).ok());
}

TEST(SiteLinkTest, AProcessThatEndsWithoutAWordIsTheCause) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const auto cause = std::make_shared<SharedCause>();
  SiteLink link(sockets[0], "process 3 of this site", cause);
  link.Start();
  close(sockets[1]);
  const absl::Status status = link.NextCall().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(status.message(), HasSubstr("the connection to process 3 of this site is lost"));
}

// Its system keeps the connection.
TEST(SiteLinkTest, AProcessThatIsStoppedIsTheCause) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const auto cause = std::make_shared<SharedCause>();
  SiteLink link(sockets[0], "process 3 of this site", cause,
                {.sign_interval = absl::Milliseconds(5)});
  link.Start();
  // One sign of life, as the link itself gives it, and no more.
  char sign[48];
  ASSERT_EQ(recv(sockets[1], sign, sizeof(sign), MSG_WAITALL), 48);
  ASSERT_EQ(write(sockets[1], sign, sizeof(sign)), 48);
  EXPECT_THAT(link.NextCall().status().message(),
              HasSubstr("process 3 of this site is lost (nothing came for 30ms"));
  close(sockets[1]);
}

TEST(SiteLinkTest, AProcessThatNeverBeginsIsTheCauseInTheEnd) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const auto cause = std::make_shared<SharedCause>();
  SiteLink link(sockets[0], "process 3 of this site", cause,
                {.sign_interval = absl::Milliseconds(1), .first_sign = absl::Milliseconds(20)});
  link.Start();
  EXPECT_THAT(link.NextCall().status().message(), HasSubstr("nothing came for 20ms"));
  close(sockets[1]);
}

// Process 0 begins to speak when all have come.
TEST(SiteLinkTest, AProcessThatHasNotBegunIsWaitedFor) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const auto cause = std::make_shared<SharedCause>();
  // Once it has heard a sign, it waits for the next ones.
  const SiteLink::Patience patience{.sign_interval = absl::Milliseconds(20)};
  SiteLink early(sockets[0], "process 0 of this site", cause, patience);
  early.Start();
  // More of its signs have gone unanswered than a link misses later.
  char signs[48 * 10];
  ASSERT_EQ(recv(sockets[1], signs, sizeof(signs), MSG_WAITALL), 48 * 10);
  EXPECT_TRUE(cause->Get().ok());
  auto late = std::make_unique<SiteLink>(sockets[1], "process 1 of this site", cause, patience);
  late->Start();
  std::thread server([&] { Serve(early); });
  EXPECT_EQ(TextOf(late->CallAndAwait(kEcho, 0, 0, BytesOf("abc")).value()), "cba");
  late.reset();
  server.join();
  EXPECT_TRUE(cause->Get().ok());
}

TEST(SiteLinkTest, WhatIsNoMessageEndsTheLink) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const auto cause = std::make_shared<SharedCause>();
  SiteLink link(sockets[0], "process 3 of this site", cause);
  link.Start();
  const std::string http(100, 'G');
  ASSERT_EQ(write(sockets[1], http.data(), http.size()), 100);
  EXPECT_THAT(link.NextCall().status().message(), HasSubstr("no message of a site"));
  close(sockets[1]);
}

// --- Coming together -----------------------------------------------------------------------------

SiteRendezvous ProcessOf(int process, int processes, int port) {
  SiteRendezvous rendezvous;
  rendezvous.launch.process = process;
  rendezvous.launch.processes = processes;
  rendezvous.launch.master_address = "localhost";
  rendezvous.launch.master_port = port;
  rendezvous.token = 17;
  rendezvous.cause = std::make_shared<SharedCause>();
  rendezvous.patience = absl::Minutes(1);
  return rendezvous;
}

TEST(SiteRendezvousTest, ProcessesFindEachOtherInOrder) {
  const int listener = ListenOn(0).value();
  const int port = PortOf(listener).value();
  std::vector<std::thread> others;
  for (const int process : {2, 1}) {
    others.emplace_back([process, port] {
      const auto links = MeetSite(ProcessOf(process, 3, port));
      ASSERT_TRUE(links.ok()) << links.status();
      ASSERT_EQ(links->size(), 1);
      SiteLink& link = *links->front();
      link.Start();
      const std::optional<SiteCall> call = link.NextCall().value();
      ASSERT_TRUE(call.has_value());
      EXPECT_EQ(call->argument, process);
      EXPECT_TRUE(link.Answer(call->id, absl::OkStatus(), {}).ok());
      EXPECT_FALSE(link.NextCall().value().has_value());
    });
  }
  SiteRendezvous first = ProcessOf(0, 3, port);
  first.listener = listener;
  {
    const auto links = MeetSite(first);
    ASSERT_TRUE(links.ok()) << links.status();
    ASSERT_EQ(links->size(), 2);
    for (size_t i = 0; i < 2; ++i) {
      (*links)[i]->Start();
      EXPECT_TRUE((*links)[i]->CallAndAwait(kEcho, static_cast<int64_t>(i) + 1).ok());
    }
  }
  for (std::thread& other : others) other.join();
}

// It does not keep the others from coming.
TEST(SiteRendezvousTest, AProcessOfAnotherWorkerIsTurnedAwayAtOnce) {
  const int listener = ListenOn(0).value();
  const int port = PortOf(listener).value();
  std::thread other([port] {
    SiteRendezvous stranger = ProcessOf(1, 2, port);
    stranger.token = 18;
    const absl::Status status = MeetSite(stranger).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("turned process 1 away"), HasSubstr("--id and --coordinator")));
    const absl::Status larger = MeetSite(ProcessOf(2, 3, port)).status();
    EXPECT_THAT(larger.message(), HasSubstr("has 2 processes, and WORLD_SIZE is 3 here"));
    EXPECT_TRUE(MeetSite(ProcessOf(1, 2, port)).ok());
  });
  SiteRendezvous first = ProcessOf(0, 2, port);
  first.listener = listener;
  EXPECT_TRUE(MeetSite(first).ok());
  other.join();
}

TEST(SiteRendezvousTest, WhoDoesNotKnowTheSecretIsTurnedAwayAndTheSiteComesTogether) {
  const int listener = ListenOn(0).value();
  const int port = PortOf(listener).value();
  std::thread others([port] {
    for (const char* guess : {"", "another secret"}) {
      SiteRendezvous stranger = ProcessOf(1, 2, port);
      stranger.secret = guess;
      const absl::Status status = MeetSite(stranger).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << guess;
      EXPECT_THAT(status.message(), HasSubstr("--site_secret_file")) << guess;
    }
    SiteRendezvous member = ProcessOf(1, 2, port);
    member.secret = "the secret";
    const auto links = MeetSite(member);
    ASSERT_TRUE(links.ok()) << links.status();
    links->front()->Start();
    EXPECT_EQ(links->front()->NextCall().value()->argument, 7);
  });
  SiteRendezvous first = ProcessOf(0, 2, port);
  first.listener = listener;
  first.secret = "the secret";
  const auto links = MeetSite(first);
  ASSERT_TRUE(links.ok()) << links.status();
  links->front()->Start();
  EXPECT_TRUE(links->front()->Call(kEcho, 7, 0, {}).ok());
  others.join();
}

TEST(SiteRendezvousTest, WhoeverStandsInForProcessZeroMustKnowTheSecretToo) {
  const int listener = ListenOn(0).value();
  const int port = PortOf(listener).value();
  std::thread impostor([listener, port] {
    SiteRendezvous first = ProcessOf(0, 2, port);
    first.listener = listener;
    EXPECT_TRUE(MeetSite(first).ok()) << "it lets anybody in";
  });
  SiteRendezvous member = ProcessOf(1, 2, port);
  member.secret = "the secret";
  EXPECT_EQ(MeetSite(member).status().code(), absl::StatusCode::kFailedPrecondition);
  impostor.join();
}

TEST(SiteRendezvousTest, ItListensWhereTheOthersWereToldToCome) {
  const int listener = ListenOn(0, "127.0.0.1").value();
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ASSERT_EQ(address.ss_family, AF_INET);
  EXPECT_EQ(ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr), INADDR_LOOPBACK);
  close(listener);
  // Not this machine's: others reach it by a translation, so it listens everywhere.
  const auto elsewhere = ListenOn(0, "192.0.2.1");
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.status();
  close(*elsewhere);
}

// Its launcher starts it again while the others are still coming.
TEST(SiteRendezvousTest, AProcessThatEndsBeforeAllHaveComeMayComeAgain) {
  const int listener = ListenOn(0).value();
  const int port = PortOf(listener).value();
  std::thread others([port] {
    EXPECT_TRUE(MeetSite(ProcessOf(1, 3, port)).ok());
    const auto again = MeetSite(ProcessOf(1, 3, port));
    const auto second = MeetSite(ProcessOf(2, 3, port));
    ASSERT_TRUE(again.ok() && second.ok());
    again->front()->Start();
    EXPECT_EQ(again->front()->NextCall().value()->argument, 7);
  });
  SiteRendezvous first = ProcessOf(0, 3, port);
  first.listener = listener;
  const auto links = MeetSite(first);
  ASSERT_TRUE(links.ok()) << links.status();
  links->front()->Start();
  EXPECT_TRUE(links->front()->Call(kEcho, 7, 0, {}).ok());
  others.join();
}

TEST(SiteRendezvousTest, WhoSaysNothingOrNonsenseKeepsNobodyWaiting) {
  const int listener = ListenOn(0).value();
  const int port = PortOf(listener).value();
  std::thread other([port] {
    std::vector<int> strangers;
    for (int i = 0; i < 300; ++i) {
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<uint16_t>(port));
      const int stranger = socket(AF_INET, SOCK_STREAM, 0);
      EXPECT_EQ(connect(stranger, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
      if (i % 10 == 0) {
        const std::string request = "GET / HTTP/1.0\r\nHost: process-0\r\n\r\n";
        EXPECT_EQ(send(stranger, request.data(), request.size(), MSG_NOSIGNAL),
                  std::ssize(request));
      }
      strangers.push_back(stranger);
    }
    EXPECT_TRUE(MeetSite(ProcessOf(1, 2, port)).ok());
    for (const int stranger : strangers) close(stranger);
  });
  SiteRendezvous first = ProcessOf(0, 2, port);
  first.listener = listener;
  EXPECT_TRUE(MeetSite(first).ok());
  other.join();
}

// As a process hears itself, connected to the port that it calls from.
TEST(SiteRendezvousTest, AnotherThatLooksForProcess0IsNotTakenForIt) {
  const int listener = ListenOn(0).value();
  const int port = PortOf(listener).value();
  std::thread echo([&] {
    const int caller = accept(listener, nullptr, nullptr);
    char hello[24];
    EXPECT_EQ(recv(caller, hello, sizeof(hello), MSG_WAITALL), std::ssize(hello));
    EXPECT_EQ(send(caller, hello, sizeof(hello), MSG_NOSIGNAL), std::ssize(hello));
    close(caller);
    SiteRendezvous first = ProcessOf(0, 2, port);
    first.listener = listener;
    EXPECT_TRUE(MeetSite(first).ok());
  });
  const auto links = MeetSite(ProcessOf(1, 2, port));
  ASSERT_TRUE(links.ok()) << links.status();
  links->front()->Start();
  EXPECT_FALSE(links->front()->NextCall().ok()) << "process 0 has ended";
  echo.join();
}

// Everyone hears it: the one that came first, the second one, and process 0.
TEST(SiteRendezvousTest, TwoProcessesOfOneNumberEndTheSite) {
  const int listener = ListenOn(0).value();
  const int port = PortOf(listener).value();
  std::vector<std::thread> twins;
  for (int i = 0; i < 2; ++i) {
    twins.emplace_back([port] {
      SiteRendezvous twin = ProcessOf(1, 3, port);
      const auto links = MeetSite(twin);
      if (!links.ok()) {
        EXPECT_THAT(links.status().message(), HasSubstr("another one has that number already"));
        return;
      }
      links->front()->Start();
      EXPECT_THAT(links->front()->NextCall().status().message(),
                  HasSubstr("say that they are process 1: RANK must differ"));
    });
  }
  SiteRendezvous first = ProcessOf(0, 3, port);
  first.listener = listener;
  EXPECT_THAT(MeetSite(first).status().message(), HasSubstr("RANK must differ"));
  for (std::thread& twin : twins) twin.join();
}

TEST(SiteRendezvousTest, WhoIsMissingIsNamed) {
  SiteRendezvous first = ProcessOf(0, 3, 0);
  first.listener = ListenOn(0).value();
  first.patience = absl::Milliseconds(1);
  const absl::Status status = MeetSite(first).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("these did not come: 1, 2"));
}

TEST(SiteRendezvousTest, APortThatIsTakenIsNamed) {
  const int listener = ListenOn(0).value();
  const int port = PortOf(listener).value();
  const absl::Status status = MeetSite(ProcessOf(0, 2, port)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("cannot listen on port " + std::to_string(port)));
  close(listener);
}

}  // namespace
}  // namespace causeway::worker
