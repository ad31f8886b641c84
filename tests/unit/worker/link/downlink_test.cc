#include "worker/link/downlink.h"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "common/base/checksum.h"
#include "common/rpc/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/link/fake_coordinator.h"

namespace causeway::worker {
namespace {

using ::testing::SizeIs;
using Verdict = FakeExchangeService::Verdict;

constexpr size_t kChunks = 6;
const grpc::Status kCut(grpc::StatusCode::UNAVAILABLE, "the link is cut");

class DownlinkTest : public ::testing::Test {
 protected:
  DownlinkTest() : object_(kChunks * kChunkBytes - 99, '\0') {
    for (size_t i = 0; i < object_.size(); ++i) object_[i] = static_cast<char>(i / 1000);
  }

  void Connect(Link::Options options) {
    link_ = std::make_unique<Link>(std::move(options));
    downlink_ = std::make_unique<Downlink>(link_.get());
  }
  void Connect(int connections) { Connect(coordinator_.LinkOptions(connections)); }
  void Publish(int64_t round) {
    v1::PullHeader header;
    header.set_round(round);
    header.set_total_bytes(static_cast<int64_t>(object_.size()));
    header.set_object_hash(
        TreeHash(std::span(reinterpret_cast<const uint8_t*>(object_.data()), object_.size())));
    exchange().Publish(header, object_);
  }
  absl::StatusOr<PulledObject> Pull(v1::PullRequest::Object object = v1::PullRequest::ANSWER) {
    v1::PullRequest request;
    request.set_object(object);
    request.set_round(object == v1::PullRequest::ANSWER ? 1 : 0);
    Downlink::Ticket ticket;
    return downlink_->Pull(request, static_cast<int64_t>(object_.size()), ticket);
  }
  bool IsObject(const PulledObject& pulled) const {
    return std::ranges::equal(object_, pulled.bytes, {}, [](char c) { return uint8_t(c); });
  }
  FakeExchangeService& exchange() { return coordinator_.exchange(); }

  std::string object_;
  FakeCoordinator coordinator_;
  FakeClock clock_;
  std::unique_ptr<Link> link_;
  std::unique_ptr<Downlink> downlink_;
};

// Moves time on, a little at a time, until the work is done.
template <typename Work>
void WhileTimePasses(FakeClock& clock, const Work& work) {
  absl::Notification done;
  std::thread worker([&] {
    work();
    done.Notify();
  });
  while (!done.WaitForNotificationWithTimeout(absl::Milliseconds(5))) {
    clock.Advance(absl::Milliseconds(250));
  }
  worker.join();
}

TEST_F(DownlinkTest, OneGroupOfStreamsBringsTheObject) {
  Connect(4);
  absl::StatusOr<PulledObject> pulled;
  std::thread puller([&] { pulled = Pull(); });
  // Otherwise the first ones may have brought it before the last one opens.
  exchange().AwaitPulls(4);
  Publish(1);
  puller.join();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_TRUE(IsObject(*pulled));
  EXPECT_THAT(exchange().pulled(), SizeIs(kChunks));
  const std::vector<v1::PullRequest> pulls = exchange().pulls();
  ASSERT_EQ(pulls.size(), 4u);
  EXPECT_NE(pulls[0].stripe_group(), 0u);
  for (const v1::PullRequest& pull : pulls) {
    EXPECT_EQ(pull.stripe_group(), pulls[0].stripe_group());
  }
  EXPECT_EQ(link_->meter().bytes(Direction::kDown), static_cast<int64_t>(object_.size()));
}

class CutPullTest : public DownlinkTest,
                    public ::testing::WithParamInterface<std::pair<int, int>> {};

TEST_P(CutPullTest, AStreamThatIsCutAtAnyChunkBringsOnlyWhatIsMissing) {
  const auto [connections, at] = GetParam();
  Connect(connections);
  bool cut = false;
  exchange().SetPullHook([&, at = at](const v1::PullRequest&, int64_t chunk) {
    if (chunk != at || std::exchange(cut, true)) return Verdict{};
    return Verdict{Verdict::kEnd, kCut};
  });
  Publish(1);
  const absl::StatusOr<PulledObject> pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_TRUE(IsObject(*pulled));
  EXPECT_THAT(exchange().pulled(), SizeIs(kChunks)) << "none was sent twice";
  EXPECT_EQ(link_->Report().resent_chunks(), 0);
}

std::vector<std::pair<int, int>> EveryCut() {
  std::vector<std::pair<int, int>> cuts;
  for (const int connections : {1, 3}) {
    for (int chunk = 0; chunk < static_cast<int>(kChunks); ++chunk) {
      cuts.emplace_back(connections, chunk);
    }
  }
  return cuts;
}
INSTANTIATE_TEST_SUITE_P(EveryChunk, CutPullTest, ::testing::ValuesIn(EveryCut()));

TEST_F(DownlinkTest, AStreamThatDoesNotMoveIsGivenUpAndItsShareComesOverOthers) {
  Link::Options options = coordinator_.LinkOptions(2);
  options.clock = &clock_;
  Connect(std::move(options));
  bool lost = false;
  exchange().SetPullHook([&](const v1::PullRequest&, int64_t) {
    return std::exchange(lost, true) ? Verdict{} : Verdict{Verdict::kHold, {}};
  });
  Publish(1);
  WhileTimePasses(clock_, [&] {
    const absl::StatusOr<PulledObject> pulled = Pull();
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_TRUE(IsObject(*pulled));
  });
  EXPECT_THAT(exchange().pulled(), SizeIs(kChunks)) << "but for the one that was lost";
  EXPECT_EQ(link_->Report().resumes(), 1);
}

TEST_F(DownlinkTest, ToWaitForARoundIsNoStall) {
  Link::Options options = coordinator_.LinkOptions(2);
  options.clock = &clock_;
  Connect(std::move(options));
  std::thread pull([&] { EXPECT_TRUE(Pull().ok()); });
  exchange().AwaitPulls(2);
  for (int i = 0; i < 100; ++i) clock_.Advance(absl::Minutes(1));
  Publish(1);
  pull.join();
  EXPECT_EQ(exchange().pulls().size(), 2u);
}

TEST_F(DownlinkTest, AStreamThatBreaksWhileItWaitsJoinsItsGroupAgain) {
  Connect(2);
  exchange().RefuseNextPull(kCut);
  std::thread pull([&] { EXPECT_TRUE(Pull().ok()); });
  exchange().AwaitPulls(3);
  Publish(1);
  pull.join();
  const std::vector<v1::PullRequest> pulls = exchange().pulls();
  EXPECT_EQ(pulls[2].stripe_group(), pulls[0].stripe_group());
}

TEST_F(DownlinkTest, AStateThatMovedOnIsPulledFromTheStart) {
  Connect(1);
  bool first = true;
  exchange().SetPullHook([&](const v1::PullRequest&, int64_t chunk) {
    const bool cut = chunk == 2 && std::exchange(first, false);
    return cut ? Verdict{Verdict::kEnd, kCut} : Verdict{};
  });
  Publish(4);
  std::thread move_on([&] {
    exchange().AwaitPulls(1);
    exchange().RefuseNextPull({grpc::StatusCode::NOT_FOUND, "version 4 is no longer kept"});
    exchange().AwaitPulls(2);
    object_[7] = 'x';
    Publish(5);
  });
  const absl::StatusOr<PulledObject> pulled = Pull(v1::PullRequest::STATE);
  move_on.join();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->round, 5);
  EXPECT_TRUE(IsObject(*pulled));
  const std::vector<v1::PullRequest> pulls = exchange().pulls();
  EXPECT_EQ(pulls[1].round(), 4);
  EXPECT_EQ(pulls[1].held_chunks(), std::string(1, 3));
  EXPECT_EQ(pulls[2].round(), 0);
  EXPECT_TRUE(pulls[2].held_chunks().empty());
}

TEST_F(DownlinkTest, ARefusalIsFinalWhicheverStreamItComesOver) {
  Connect(3);
  exchange().RefuseNextPull({grpc::StatusCode::NOT_FOUND, "no longer kept"});
  EXPECT_EQ(Pull().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(DownlinkTest, AChunkThatIsDamagedOnceComesAgain) {
  Connect(2);
  bool damaged = false;
  exchange().SetPullHook([&](const v1::PullRequest&, int64_t chunk) {
    const bool damage = chunk == 3 && !std::exchange(damaged, true);
    return Verdict{damage ? Verdict::kDamage : Verdict::kTake, {}};
  });
  Publish(1);
  const absl::StatusOr<PulledObject> pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_TRUE(IsObject(*pulled));
}

TEST_F(DownlinkTest, AnObjectThatIsDamagedEveryTimeIsAnError) {
  Connect(2);
  exchange().SetPullHook([&](const v1::PullRequest&, int64_t chunk) {
    return Verdict{chunk == 3 ? Verdict::kDamage : Verdict::kTake, {}};
  });
  Publish(1);
  EXPECT_EQ(Pull().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(DownlinkTest, TheLimitOfTheRateIsTheCoordinatorsToKeep) {
  Link::Options options = coordinator_.LinkOptions(2);
  options.max_download_bytes_per_second = 12345;
  Connect(std::move(options));
  Publish(1);
  ASSERT_TRUE(Pull().ok());
  for (const v1::PullRequest& pull : exchange().pulls()) {
    EXPECT_EQ(pull.max_bytes_per_second(), 12345);
  }
}

TEST_F(DownlinkTest, CancelEndsAPullThatWaitsAndAllLaterOnes) {
  Connect(2);
  std::thread cancel([&] {
    exchange().AwaitPulls(2);
    downlink_->Cancel();
  });
  EXPECT_EQ(Pull().status().code(), absl::StatusCode::kCancelled);
  cancel.join();
  EXPECT_EQ(Pull().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(DownlinkTest, CancelEndsAPullThatFlows) {
  Connect(2);
  absl::Notification now;
  exchange().SetPullHook([&](const v1::PullRequest&, int64_t chunk) {
    if (chunk < 3) return Verdict{};
    if (!now.HasBeenNotified()) now.Notify();
    return Verdict{Verdict::kHold, {}};
  });
  Publish(1);
  std::thread cancel([&] {
    now.WaitForNotification();
    downlink_->Cancel();
  });
  EXPECT_EQ(Pull().status().code(), absl::StatusCode::kCancelled);
  cancel.join();
}

}  // namespace
}  // namespace causeway::worker
