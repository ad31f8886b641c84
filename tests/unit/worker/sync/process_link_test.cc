#include "worker/sync/process_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/common/base/status_is.h"
#include "tests/unit/worker/sync/memory_stream.h"
#include "worker/sync/local_group.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kEcho = 1;
constexpr int kUrgent = 2;

// Both ends of a link, in one process.
struct Pair {
  Pair() {
    auto [near, far] = MemoryStream::MakePair();
    first = std::make_unique<SiteLink>(std::move(near), "process 1 of this site", first_cause);
    second = std::make_unique<SiteLink>(std::move(far), "process 0 of this site", second_cause);
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
  auto [near, far] = MemoryStream::MakePair();
  const auto cause = std::make_shared<SharedCause>();
  SiteLink link(std::move(near), "process 3 of this site", cause);
  link.Start();
  far.reset();
  const absl::Status status = link.NextCall().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(status.message(), HasSubstr("the connection to process 3 of this site is lost"));
}

TEST(SiteLinkTest, WhatIsLongerThanAFrameGoesInSeveralAndStaysWhole) {
  Pair pair;
  pair.first->Start();
  pair.second->Start();
  std::thread server([&] { Serve(*pair.second); });
  std::string text((size_t{2} << 20) + 17, 'x');
  text[5] = 'a';
  text.back() = 'z';
  std::string reversed(text.rbegin(), text.rend());
  EXPECT_EQ(TextOf(pair.first->CallAndAwait(kEcho, 0, 0, BytesOf(text)).value()), reversed);
  pair.first.reset();
  server.join();
}

TEST(SiteLinkTest, AMessageThatDoesNotAddUpEndsTheLink) {
  const auto part = [](uint64_t total, size_t size) {
    v1::SiteFrame frame;
    frame.set_kind(v1::SiteFrame::CALL);
    frame.set_total_bytes(total);
    frame.set_bytes(std::string(size, 'x'));
    return frame;
  };
  const std::vector<std::vector<v1::SiteFrame>> messages = {{part(3, 4)},
                                                            {part(4, 0)},
                                                            {part(4, 2), part(5, 2)},
                                                            {part(4, 3), part(4, 2)},
                                                            {part(uint64_t{1} << 60, 1)}};
  for (const std::vector<v1::SiteFrame>& message : messages) {
    auto [near, far] = MemoryStream::MakePair();
    const auto cause = std::make_shared<SharedCause>();
    SiteLink link(std::move(near), "process 3 of this site", cause);
    link.Start();
    for (const v1::SiteFrame& frame : message) ASSERT_TRUE(far->Write(frame).ok());
    EXPECT_THAT(link.NextCall().status().message(), HasSubstr("no message of a site"));
    far->Cut();
  }
}

TEST(LocalGroupTest, WrongBoundsAreRefused) {
  for (const std::vector<int64_t>& bounds :
       {std::vector<int64_t>{}, {0}, {0, 1, 1}, {1, 0}, {-1, 0}}) {
    EXPECT_THAT(CheckBounds(bounds, 1), StatusIs(kInvalidArgument));
  }
  EXPECT_TRUE(CheckBounds(std::vector<int64_t>{0, 0}, 1).ok());
}

TEST(SharedCauseTest, TheFirstCauseStaysAndNamesItsRank) {
  SharedCause cause;
  EXPECT_TRUE(cause.Get().ok());
  cause.Set(3, absl::InternalError("device lost"));
  cause.Set(4, absl::InternalError("what followed"));
  EXPECT_EQ(cause.Get(), absl::AbortedError("rank 3: device lost"));
}

TEST(SharedCauseTest, ListenersHearItOnceEvenIfTheyComeLate) {
  SharedCause cause;
  std::vector<std::string> heard;
  const auto listener = [&](const absl::Status& status) { heard.emplace_back(status.message()); };
  cause.Listen(listener);
  cause.Remove(cause.Listen([&](const absl::Status&) { heard.emplace_back("nobody listens"); }));
  cause.Set(absl::UnavailableError("host 1 is gone"));
  cause.Set(absl::UnavailableError("another"));
  cause.Listen(listener);
  EXPECT_THAT(heard, ElementsAre("host 1 is gone", "host 1 is gone"));
}

}  // namespace
}  // namespace causeway::worker
