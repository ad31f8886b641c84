#include "worker/link/uplink.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
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

using ::testing::ElementsAre;
using ::testing::Pair;
using Verdict = FakeExchangeService::Verdict;

const grpc::Status kCut(grpc::StatusCode::UNAVAILABLE, "the link is cut");

class UplinkTest : public ::testing::Test {
 protected:
  void Connect(Link::Options options) {
    link_ = std::make_unique<Link>(std::move(options));
    uplink_ = std::make_unique<Uplink>(link_.get(), [this] { return ++incarnation_; });
  }
  void Connect(int connections) { Connect(coordinator_.LinkOptions(connections)); }

  // Its bytes depend on the fragment.
  static UploadObject Object(int fragment, size_t chunks, int64_t due_step) {
    const auto bytes = std::make_shared<std::vector<uint8_t>>(chunks * kChunkBytes - 77);
    for (size_t i = 0; i < bytes->size(); ++i) {
      (*bytes)[i] = static_cast<uint8_t>(i / 1000 + static_cast<size_t>(fragment));
    }
    UploadObject object;
    object.header.set_fragment(fragment);
    object.bytes = *bytes;
    object.owner = bytes;
    object.due_step = due_step;
    return object;
  }
  absl::StatusCode Push(UploadObject object) {
    return uplink_->Push(std::move(object)).status().code();
  }
  bool Arrived(const UploadObject& object) {
    const std::string there = exchange().object(object.header.fragment());
    return std::ranges::equal(there, object.bytes, {}, [](char c) { return uint8_t(c); });
  }
  FakeExchangeService& exchange() { return coordinator_.exchange(); }
  v1::LinkReport Report() { return link_->Report(); }

  FakeCoordinator coordinator_;
  FakeClock clock_;
  std::atomic<uint64_t> incarnation_ = 0;
  std::unique_ptr<Link> link_;
  std::unique_ptr<Uplink> uplink_;
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

TEST_F(UplinkTest, EveryConnectionCarriesAShareOfOneObject) {
  Connect(4);
  // Until each stream has brought a chunk, none brings two.
  std::set<int> stripes;
  exchange().SetPushHook([&](const v1::PushHeader& header, int64_t) {
    stripes.insert(header.stripe());
    return Verdict{Verdict::kHold, {}};
  });
  std::thread release([this] {
    exchange().AwaitPushed(4);
    exchange().Release();
  });
  const UploadObject object = Object(0, 60, 0);
  ASSERT_EQ(Push(object), absl::StatusCode::kOk);
  release.join();
  EXPECT_THAT(stripes, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(Arrived(object));
  EXPECT_EQ(exchange().pushed().size(), 60u) << "each chunk once";
  EXPECT_EQ(link_->meter().bytes(Direction::kUp), static_cast<int64_t>(object.bytes.size()));
  for (const v1::PushHeader& header : exchange().headers()) {
    EXPECT_EQ(header.object_hash(), TreeHash(object.bytes));
    EXPECT_EQ(header.total_bytes(), static_cast<int64_t>(object.bytes.size()));
  }
}

class CutTest : public UplinkTest, public ::testing::WithParamInterface<int> {};

TEST_P(CutTest, AStreamThatIsCutAtAnyChunkSendsOnlyWhatTheCoordinatorLacks) {
  Connect(2);
  bool cut = false;
  exchange().SetPushHook([&](const v1::PushHeader&, int64_t chunk) {
    if (chunk != GetParam() || std::exchange(cut, true)) return Verdict{};
    return Verdict{Verdict::kEnd, kCut};
  });
  const UploadObject object = Object(0, 6, 0);
  ASSERT_EQ(Push(object), absl::StatusCode::kOk);
  EXPECT_TRUE(Arrived(object));
  EXPECT_EQ(exchange().held_pushed_again(), 0);
  EXPECT_EQ(exchange().queries(), 1);
  EXPECT_EQ(Report().resumes(), 1);
  EXPECT_GE(Report().resent_chunks(), 1);
}

INSTANTIATE_TEST_SUITE_P(EveryChunk, CutTest, ::testing::Range(0, 6));

TEST_F(UplinkTest, ACoordinatorThatForgotEverythingGetsEverythingAgain) {
  Connect(1);
  int chunks = 0;
  exchange().SetPushHook([&](const v1::PushHeader&, int64_t) {
    return ++chunks == 3 ? Verdict{Verdict::kEnd, kCut} : Verdict{};
  });
  std::thread forget([this] {
    exchange().AwaitPushed(3);
    exchange().Hold(0, static_cast<int64_t>(4 * kChunkBytes - 77), {});
  });
  const UploadObject object = Object(0, 4, 0);
  ASSERT_EQ(Push(object), absl::StatusCode::kOk);
  forget.join();
  EXPECT_TRUE(Arrived(object));
  const std::vector<v1::PushHeader> headers = exchange().headers();
  ASSERT_EQ(headers.size(), 2u);
  EXPECT_EQ(headers[1].attempt(), 2u);
  EXPECT_GT(headers[1].incarnation(), headers[0].incarnation());
}

TEST_F(UplinkTest, AnObjectThatAFormerProcessBeganIsContinued) {
  Connect(2);
  UploadObject object = Object(0, 5, 0);
  object.maybe_held = true;
  exchange().Hold(0, static_cast<int64_t>(object.bytes.size()), {0, 2, 3});
  ASSERT_EQ(Push(object), absl::StatusCode::kOk);
  EXPECT_THAT(exchange().pushed(), ::testing::UnorderedElementsAre(Pair(0, 1), Pair(0, 4)));
}

TEST_F(UplinkTest, AnObjectThatIsThereAlreadyIsAcknowledgedWithoutAChunk) {
  Connect(2);
  UploadObject object = Object(0, 2, 0);
  object.maybe_held = true;
  exchange().Hold(0, static_cast<int64_t>(object.bytes.size()), {0, 1});
  ASSERT_EQ(Push(object), absl::StatusCode::kOk);
  EXPECT_TRUE(exchange().pushed().empty());
}

TEST_F(UplinkTest, AConnectionThatDoesNotMoveLeavesItsShareToTheOthers) {
  Link::Options options = coordinator_.LinkOptions(2);
  options.clock = &clock_;
  Connect(std::move(options));
  // Of the first stream one chunk is read and no more: what is written fills some buffer, until a
  // write hangs, or until there is nothing left to write.
  exchange().SetPushHook([&](const v1::PushHeader& header, int64_t) {
    const bool dead = header.stripe() == 0 && header.attempt() == 1;
    return dead ? Verdict{Verdict::kHold, {}} : Verdict{};
  });
  const UploadObject object = Object(0, 40, 0);
  WhileTimePasses(clock_, [&] { EXPECT_EQ(Push(object), absl::StatusCode::kOk); });
  EXPECT_TRUE(Arrived(object));
  EXPECT_EQ(exchange().held_pushed_again(), 0);
  EXPECT_GE(Report().resumes(), 1);
}

TEST_F(UplinkTest, TheAcknowledgementIsWaitedForAsLongAsItTakes) {
  Link::Options options = coordinator_.LinkOptions(1);
  options.clock = &clock_;
  Connect(std::move(options));
  UploadObject object = Object(0, 2, 0);
  exchange().DoNotAnswer();
  std::thread push([&] { EXPECT_EQ(Push(object), absl::StatusCode::kCancelled); });
  exchange().AwaitPushed(2);
  for (int i = 1; i <= 3; ++i) {
    clock_.Advance(absl::Minutes(1));
    exchange().AwaitQueries(i);  // Whether it has arrived, which it has.
  }
  uplink_->Cancel();
  push.join();
  EXPECT_EQ(exchange().headers().size(), 1u) << "nothing was tried again";
}

TEST_F(UplinkTest, WhatIsDueFirstGoesFirst) {
  Connect(1);
  exchange().SetPushHook([&](const v1::PushHeader&, int64_t chunk) {
    return chunk == 0 ? Verdict{Verdict::kHold, {}} : Verdict{};
  });
  const UploadObject late = Object(0, 30, 100);
  const UploadObject urgent = Object(1, 4, 50);
  std::thread first([&] { EXPECT_EQ(Push(late), absl::StatusCode::kOk); });
  exchange().AwaitPushed(1);
  std::thread second([&] { EXPECT_EQ(Push(urgent), absl::StatusCode::kOk); });
  exchange().AwaitHeaders(2);
  exchange().Release();
  second.join();
  first.join();
  EXPECT_TRUE(Arrived(late));
  EXPECT_TRUE(Arrived(urgent));
  const std::vector<std::pair<int, int64_t>> pushed = exchange().pushed();
  const auto end = std::ranges::find(pushed, std::pair<int, int64_t>(1, 3));
  ASSERT_NE(end, pushed.end());
  // Beside those of the late object that had been written before.
  EXPECT_LE(std::count_if(pushed.begin(), end, [](const auto& one) { return one.first == 0; }), 20);
}

TEST_F(UplinkTest, ALimitedRateIsKept) {
  Link::Options options = coordinator_.LinkOptions(2);
  options.clock = &clock_;
  options.max_upload_bytes_per_second = static_cast<int64_t>(kChunkBytes) / 2;
  Connect(std::move(options));
  const absl::Duration before = clock_.Monotonic();
  const UploadObject object = Object(0, 6, 0);
  WhileTimePasses(clock_, [&] { EXPECT_EQ(Push(object), absl::StatusCode::kOk); });
  // The first chunk need not wait, and a moment may be saved up.
  EXPECT_GE(clock_.Monotonic() - before, absl::Seconds(9));
  EXPECT_TRUE(Arrived(object));
  EXPECT_GT(Report().send_blocked_seconds(), 5);
}

TEST_F(UplinkTest, PackedChunksCrossTheLinkSmaller) {
  Connect(2);
  UploadObject object = Object(0, 8, 0);
  object.entropy = true;
  ASSERT_EQ(Push(object), absl::StatusCode::kOk);
  EXPECT_EQ(exchange().pushed().size(), 8u);
  EXPECT_LT(link_->meter().bytes(Direction::kUp), static_cast<int64_t>(object.bytes.size()) / 2);
}

TEST_F(UplinkTest, AStoppingServerIsNotAnErrorOfThisSide) {
  Connect(1);
  exchange().RefuseNextPush({grpc::StatusCode::CANCELLED, "the server stops"});
  EXPECT_EQ(Push(Object(0, 2, 0)), absl::StatusCode::kOk);
  EXPECT_EQ(exchange().headers().size(), 2u);
}

TEST_F(UplinkTest, ARefusalIsFinalWhicheverStreamItComesOver) {
  Connect(3);
  exchange().RefuseNextPush({grpc::StatusCode::ABORTED, "the round closed"});
  exchange().SetPushHook([&](const v1::PushHeader&, int64_t) {
    return Verdict{Verdict::kHold, {}};
  });
  EXPECT_EQ(Push(Object(0, 9, 0)), absl::StatusCode::kAborted);
}

TEST_F(UplinkTest, AChunkThatIsDamagedOnceIsSentAgain) {
  Connect(2);
  bool damaged = false;
  exchange().SetPushHook([&](const v1::PushHeader&, int64_t chunk) {
    if (chunk != 1 || std::exchange(damaged, true)) return Verdict{};
    return Verdict{Verdict::kEnd, {grpc::StatusCode::DATA_LOSS, "the checksum differs"}};
  });
  const UploadObject object = Object(0, 4, 0);
  EXPECT_EQ(Push(object), absl::StatusCode::kOk);
  EXPECT_TRUE(Arrived(object));
}

TEST_F(UplinkTest, AnObjectThatIsDamagedEveryTimeIsAnError) {
  Connect(2);
  exchange().SetPushHook([&](const v1::PushHeader&, int64_t chunk) {
    if (chunk != 1) return Verdict{};
    return Verdict{Verdict::kEnd, {grpc::StatusCode::DATA_LOSS, "the checksum differs"}};
  });
  EXPECT_EQ(Push(Object(0, 4, 0)), absl::StatusCode::kDataLoss);
}

TEST_F(UplinkTest, AnAcknowledgementOfLessThanWasSentIsAnError) {
  Connect(2);
  exchange().AcknowledgeLess(1);
  EXPECT_EQ(Push(Object(0, 3, 0)), absl::StatusCode::kInternal);
  exchange().AcknowledgeLess(0);
  EXPECT_EQ(Push(Object(1, 3, 0)), absl::StatusCode::kOk);
}

TEST_F(UplinkTest, ChecksumsThatCameWithTheObjectAreUsed) {
  Connect(1);
  UploadObject object = Object(0, 3, 0);
  object.leaves = {1, 2, 3};
  EXPECT_EQ(Push(object), absl::StatusCode::kOk);
  EXPECT_EQ(exchange().headers().back().object_hash(), TreeRoot(object.leaves));
  object = Object(1, 3, 0);
  EXPECT_EQ(Push(object), absl::StatusCode::kOk);
  EXPECT_EQ(exchange().headers().back().object_hash(), TreeHash(object.bytes));
}

class CancelPushTest : public UplinkTest, public ::testing::WithParamInterface<int> {
 protected:
  int chunks_ = 0;  // Under the exchange's mutex.
};

TEST_P(CancelPushTest, CancelEndsAPushAtAnyMoment) {
  Connect(2);
  absl::Notification now;
  if (GetParam() == 0) now.Notify();
  exchange().SetPushHook([&](const v1::PushHeader&, int64_t) {
    // This thread may be the one that would have to go on.
    if (chunks_++ + 1 == GetParam()) now.Notify();
    return chunks_ < GetParam() ? Verdict{} : Verdict{Verdict::kHold, {}};
  });
  std::thread cancel([&] {
    now.WaitForNotification();
    uplink_->Cancel();
  });
  EXPECT_EQ(Push(Object(0, 5, 0)), absl::StatusCode::kCancelled);
  cancel.join();
  EXPECT_EQ(Push(Object(1, 1, 0)), absl::StatusCode::kCancelled) << "later ones, too";
}

INSTANTIATE_TEST_SUITE_P(EveryChunk, CancelPushTest, ::testing::Range(0, 5));

}  // namespace
}  // namespace causeway::worker
