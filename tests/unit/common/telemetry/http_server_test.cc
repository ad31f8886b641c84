#include "common/telemetry/http_server.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/telemetry/http_client.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// So that whoever looks at it finds that much time has passed.
class HurryingClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + Monotonic(); }
  absl::Duration Monotonic() const override { return absl::Seconds(10) * ++looks_; }

 private:
  mutable std::atomic<int64_t> looks_ = 0;
};

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override { Start({}); }
  void Start(HttpServer::Options options) {
    server_.reset();
    auto listener = HttpListener::Open("127.0.0.1:0").value();
    port_ = listener.port();
    options.handlers["/hello"] = [](const HttpRequest&) {
      return HttpResponse::Text(200, "hello");
    };
    options.handlers["/echo"] = [](const HttpRequest& request) {
      HttpResponse response;
      response.body = request.path;
      for (const auto& [name, value] : request.query) {
        absl::StrAppend(&response.body, " ", name, "=", value);
      }
      return response;
    };
    options.handlers["/tagged"] = [](const HttpRequest&) {
      HttpResponse response = HttpResponse::Text(200, "content");
      response.etag = "\"v1\"";
      response.cache_control = "no-cache";
      return response;
    };
    options.handlers["/throws"] = [](const HttpRequest&) -> HttpResponse {
      throw std::runtime_error("a mistake");
    };
    options.handlers["/large"] = [](const HttpRequest&) {
      HttpResponse response;
      response.body = std::string(3'000'000, 'x');
      return response;
    };
    server_ = HttpServer::Start(std::move(listener), std::move(options)).value();
  }
  // A minute of that clock for a request.
  static HttpServer::Options Patient(const Clock& clock) {
    HttpServer::Options options;
    options.request_timeout = absl::Minutes(1);
    options.look_interval = absl::Milliseconds(1);
    options.clock = &clock;
    return options;
  }
  // Sends these bytes on a connection of their own.
  HttpAnswer Send(const std::string& bytes) const {
    const HttpClient client(port_);
    client.Send(bytes);
    return client.Receive();
  }

  int port_ = 0;
  FakeClock clock_;
  HurryingClock hurrying_;
  std::unique_ptr<HttpServer> server_;  // Looks at its clock until it ends.
};

TEST_F(HttpServerTest, AHandlerAnswersForItsPath) {
  const HttpAnswer answer = HttpGet(port_, "/hello");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "hello\n");
  EXPECT_EQ(answer.headers.at("Content-Type"), "text/plain; charset=utf-8");
  EXPECT_EQ(answer.headers.at("Cache-Control"), "no-store");
}

TEST_F(HttpServerTest, QueriesAreDecodedAndTheFirstOfANameCounts) {
  EXPECT_EQ(HttpGet(port_, "/echo?b=2%2F3&a=x+y&b=9&flag").body, "/echo a=x y b=2/3 flag=");
}

TEST_F(HttpServerTest, HeadIsAnsweredWithoutABody) {
  const HttpClient client(port_);
  client.Send("HEAD /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const HttpAnswer answer = client.Receive(/*head=*/true);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("Content-Length"), "6");
  EXPECT_EQ(client.Get("/hello").body, "hello\n") << "and nothing of the first is left over";
}

TEST_F(HttpServerTest, OtherPathsAreNotFoundAndTheAnswerNamesThoseThereAre) {
  for (const char* path : {"/", "/hello/", "/hell", "/../etc/passwd", "/hello/../../etc/passwd",
                           "/%2e%2e/%2e%2e/etc/passwd", "//hello", "/HELLO"}) {
    const HttpAnswer answer = HttpGet(port_, path);
    EXPECT_EQ(answer.status, 404) << path;
    EXPECT_THAT(answer.body, HasSubstr("/echo, /hello"));
  }
}

TEST_F(HttpServerTest, NothingCanBeWritten) {
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE"}) {
    const HttpAnswer answer =
        Send(absl::StrCat(method, " /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    EXPECT_EQ(answer.status, 405) << method;
    EXPECT_EQ(answer.headers.at("Allow"), "GET, HEAD");
  }
}

TEST_F(HttpServerTest, ABodyIsRefusedUnread) {
  EXPECT_EQ(
      Send("GET /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n").status,
      413);
  EXPECT_EQ(
      Send("GET /hello HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n").status,
      413);
  EXPECT_EQ(Send("GET /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").status,
            200);
}

TEST_F(HttpServerTest, MalformedAndOversizedRequestsAreRefusedAndTheServerGoesOn) {
  // With an answer, or by hanging up on a client that still sends.
  const auto is_refused = [&](const std::string& bytes) {
    const int status = Send(bytes).status;
    return status == 0 || (status >= 400 && status < 500);
  };
  EXPECT_TRUE(is_refused("nonsense\r\n\r\n"));
  EXPECT_EQ(Send("GET /hello HTTP/1.1\r\n\r\n").status, 400) << "no Host";
  EXPECT_TRUE(is_refused("GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n"));
  std::string headers;
  for (int i = 0; i < 10'000; ++i) absl::StrAppend(&headers, "X-", i, ": y\r\n");
  EXPECT_TRUE(is_refused("GET /hello HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n"));
  EXPECT_EQ(HttpGet(port_, "/hello").status, 200);
}

TEST_F(HttpServerTest, AForeignNameForThisMachineIsRefused) {
  const auto host = [&](const std::string& name) {
    return Send(absl::StrCat("GET /hello HTTP/1.1\r\nHost: ", name, "\r\n\r\n")).status;
  };
  EXPECT_EQ(host("evil.example"), 421);
  EXPECT_EQ(host("evil.example:80"), 421);
  EXPECT_EQ(host("127.0.0.1.evil.example:80"), 421);
  EXPECT_EQ(host("localhost"), 200);
  EXPECT_EQ(host("localhost:8080"), 200);
  EXPECT_EQ(host("127.0.0.1:9"), 200);
  EXPECT_EQ(host("[::1]"), 200);
}

TEST_F(HttpServerTest, EveryAnswerForbidsBrowsersWhatAStatusPageDoesNotNeed) {
  for (const char* path : {"/hello", "/missing", "/throws"}) {
    const HttpAnswer answer = HttpGet(port_, path);
    EXPECT_THAT(answer.headers.at("Content-Security-Policy"), HasSubstr("default-src 'none'"));
    EXPECT_THAT(answer.headers.at("Content-Security-Policy"), HasSubstr("script-src 'self';"));
    EXPECT_EQ(answer.headers.at("X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(answer.headers.at("X-Frame-Options"), "DENY");
    EXPECT_EQ(answer.headers.at("Referrer-Policy"), "no-referrer");
  }
}

TEST_F(HttpServerTest, WhatTheClientHasIsNotSentAgain) {
  const HttpClient client(port_);
  const HttpAnswer first = client.Get("/tagged");
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.headers.at("ETag"), "\"v1\"");
  const HttpAnswer same = client.Get("/tagged", "If-None-Match: \"v1\"\r\n");
  EXPECT_EQ(same.status, 304);
  EXPECT_THAT(same.body, IsEmpty());
  EXPECT_EQ(client.Get("/tagged", "If-None-Match: \"v0\"\r\n").body, "content\n");
}

TEST_F(HttpServerTest, AHandlerThatThrowsIsAnErrorOfItsRequestAlone) {
  const HttpAnswer answer = HttpGet(port_, "/throws");
  EXPECT_EQ(answer.status, 500);
  EXPECT_THAT(answer.body, HasSubstr("a mistake"));
  EXPECT_EQ(HttpGet(port_, "/hello").status, 200);
}

TEST_F(HttpServerTest, ConnectionsAreBoundedAndThoseThatRestHoldNobodyUp) {
  HttpServer::Options options;
  options.max_connections = 4;
  std::atomic<int> counted = 0;
  options.handlers["/counted"] = [&](const HttpRequest&) {
    ++counted;
    return HttpResponse();
  };
  Start(std::move(options));
  std::vector<std::unique_ptr<HttpClient>> resting;
  for (int i = 0; i < 3; ++i) {
    resting.push_back(std::make_unique<HttpClient>(port_));
    resting.back()->Send("GET /hel");  // And not a byte more.
  }
  auto fourth = std::make_unique<HttpClient>(port_);
  EXPECT_EQ(fourth->Get("/hello").status, 200);
  EXPECT_EQ(fourth->Get("/hello").status, 200);
  // The bound is reached with it.
  const HttpClient fifth(port_);
  fifth.Send("GET /counted HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(fourth->Get("/hello").status, 200);
  EXPECT_EQ(counted, 0);
  fourth.reset();
  EXPECT_EQ(fifth.Receive().status, 200);
  EXPECT_EQ(counted, 1);
}

TEST_F(HttpServerTest, OneAddressHoldsNoMoreThanItsShareOfTheConnections) {
  HttpServer::Options options;
  options.max_connections_per_address = 2;
  Start(std::move(options));
  auto first = std::make_unique<HttpClient>(port_);
  const HttpClient second(port_);
  EXPECT_EQ(first->Get("/hello").status, 200);
  EXPECT_EQ(second.Get("/hello").status, 200);
  EXPECT_TRUE(HttpClient(port_).IsClosed()) << "a third one is not even heard";
  EXPECT_EQ(second.Get("/hello").status, 200);
}

TEST_F(HttpServerTest, ARequestThatDripsInIsCutOffHoweverOftenAByteComes) {
  Start(Patient(hurrying_));
  const HttpClient dripping(port_);
  dripping.Send("GET /hel");
  EXPECT_TRUE(dripping.IsClosed());
}

TEST_F(HttpServerTest, AnAnswerThatNobodyReadsGivesItsPlaceToOthers) {
  absl::Notification asked;
  HttpServer::Options options = Patient(clock_);
  options.max_connections = 1;
  options.handlers["/huge"] = [&](const HttpRequest&) {
    asked.Notify();
    HttpResponse response;
    response.body = std::string(64'000'000, 'x');  // More than sockets hold.
    return response;
  };
  Start(std::move(options));
  const HttpClient never_reads(port_);
  never_reads.Send("GET /huge HTTP/1.1\r\nHost: localhost\r\n\r\n");
  asked.WaitForNotification();
  clock_.Advance(absl::Minutes(2));
  EXPECT_EQ(HttpGet(port_, "/hello").status, 200);
}

TEST_F(HttpServerTest, AConnectionThatAsksAgainAndAgainStaysOpen) {
  Start(Patient(clock_));
  const HttpClient steady(port_);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(steady.Get("/hello").status, 200);
    EXPECT_EQ(steady.Get("/hello").status, 200) << "so that the first is over for the server, too";
    clock_.Advance(absl::Seconds(40));
  }
  EXPECT_EQ(steady.Get("/large").body.size(), 3'000'000U);
  EXPECT_EQ(steady.Get("/hello").body, "hello\n");
}

TEST_F(HttpServerTest, StopClosesConnectionsAndThePort) {
  const HttpClient resting(port_);
  EXPECT_EQ(resting.Get("/hello").status, 200);
  server_->Stop();
  EXPECT_TRUE(resting.IsClosed());
  server_->Stop();  // Again is harmless.
  const auto again = HttpListener::Open(absl::StrCat("127.0.0.1:", port_));
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST_F(HttpServerTest, APortThatIsReleasedIsServedOnAndWhoConnectsMeanwhileWaits) {
  HttpListener listener = server_->Release();
  EXPECT_EQ(listener.port(), port_);
  const HttpClient waiting(port_);
  HttpServer::Options options;
  options.handlers["/next"] = [](const HttpRequest&) { return HttpResponse::Text(200, "next"); };
  auto next = HttpServer::Start(std::move(listener), std::move(options)).value();
  EXPECT_EQ(waiting.Get("/next").body, "next\n");
  server_.reset();
  EXPECT_EQ(HttpGet(port_, "/next").status, 200);
  EXPECT_EQ(HttpGet(port_, "/hello").status, 404);
}

TEST_F(HttpServerTest, StopWaitsForTheHandlerThatRuns) {
  absl::Notification entered, leave;
  bool done = false;
  HttpServer::Options options;
  options.handlers["/slow"] = [&](const HttpRequest&) {
    entered.Notify();
    leave.WaitForNotification();
    done = true;
    return HttpResponse::Text(200, "done");
  };
  Start(std::move(options));
  const HttpClient client(port_);
  client.Send("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n");
  entered.WaitForNotification();
  std::thread releaser([&] { leave.Notify(); });
  server_->Stop();
  EXPECT_TRUE(done);
  releaser.join();
}

TEST(HttpListener, ATakenPortIsNamedWithTheRemedy) {
  const auto first = HttpListener::Open("127.0.0.1:0").value();
  EXPECT_GT(first.port(), 0);
  EXPECT_EQ(first.address(), absl::StrCat("127.0.0.1:", first.port()));
  EXPECT_THAT(
      HttpListener::Open(first.address()),
      StatusIs(kUnavailable, AllOf(HasSubstr(first.address()), HasSubstr("choose another port"))));
}

TEST(HttpListener, RefusesWhatIsNoAddressOfThisMachine) {
  EXPECT_THAT(HttpListener::Open("8080"), StatusIs(kInvalidArgument));
  EXPECT_THAT(HttpListener::Open("192.0.2.1:0"), StatusIs(kUnavailable));
  EXPECT_THAT(HttpListener::Open("no-such-host.invalid:0"), StatusIs(kNotFound));
}

TEST(HttpListener, WarnsWhereOthersCanReachIt) {
  const auto loopback = HttpListener::Open("127.0.0.1:0");
  const auto everywhere = HttpListener::Open("0.0.0.0:0");
  ASSERT_TRUE(loopback.ok() && everywhere.ok());
  EXPECT_TRUE(loopback->loopback());
  EXPECT_EQ(loopback->Warning(), "");
  EXPECT_FALSE(everywhere->loopback());
  EXPECT_THAT(everywhere->Warning(), HasSubstr("without encryption"));
}

}  // namespace
}  // namespace causeway
