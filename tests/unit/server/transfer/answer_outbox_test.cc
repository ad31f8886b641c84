#include "server/transfer/answer_outbox.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/transfer/fake_coordinator.h"

namespace causeway::server {
namespace {

constexpr auto kAnswerChunk = static_cast<int64_t>(kChunkBytes);

PullObject AnswerOf(int64_t round, int64_t bytes) {
  return MakeAnswer(round, MakeObject(bytes, static_cast<uint64_t>(round)));
}

v1::Want Answer(int64_t round) {
  v1::Want want;
  want.set_object(v1::Want::ANSWER);
  want.set_round(round);
  return want;
}

v1::Want State(int64_t version = 0) {
  v1::Want want = Answer(version);
  want.set_object(v1::Want::STATE);
  return want;
}

class AnswerOutboxTest : public ::testing::Test {
 protected:
  // One want, as the lanes of a worker keep it.
  struct Wanted {
    std::shared_ptr<const void> waits = std::make_shared<int>();
    std::optional<absl::StatusOr<AnswerOutbox::Found>> found;

    bool ok() const { return found.has_value() && found->ok(); }
    absl::StatusCode code() const { return found.has_value() ? found->status().code() : kUnknown; }
  };

  AnswerOutboxTest() { Serve(); }
  void Serve(
      int64_t max_bytes = 100 * kAnswerChunk, Runner runner = [](const auto& task) { task(); }) {
    outbox_ = std::make_shared<AnswerOutbox>(
        coordinator_,
        AnswerOutbox::Options{
            .cache = &cache_, .run_long = std::move(runner), .max_bytes_of_worker = max_bytes});
  }
  std::shared_ptr<Wanted> Want(const v1::Want& want, const std::string& worker = "a") {
    auto wanted = std::make_shared<Wanted>();
    outbox_->Want(worker, want, wanted->waits, [weak = std::weak_ptr<Wanted>(wanted)](auto found) {
      const auto here = weak.lock();
      if (here == nullptr) return;
      EXPECT_FALSE(here->found.has_value()) << "told twice";
      here->found = std::move(found);
    });
    return wanted;
  }

  FakeCoordinator coordinator_;
  ByteBudget cache_{100 * kAnswerChunk};
  std::shared_ptr<AnswerOutbox> outbox_;
};

TEST_F(AnswerOutboxTest, WhatIsNotPublishedYetIsWaitedForAndSharedByAll) {
  const auto first = Want(Answer(1));
  const auto second = Want(Answer(1));
  EXPECT_EQ(coordinator_.asked_for_answers, 1);
  const auto foreign = Want(Answer(1), "b");
  EXPECT_FALSE(first->found.has_value());
  coordinator_.Publish(0, 1, AnswerOf(1, 2 * kAnswerChunk));
  ASSERT_TRUE(first->ok() && second->ok() && foreign->ok());
  EXPECT_EQ((*first->found)->header.round(), 1);
  EXPECT_EQ((*first->found)->source, (*foreign->found)->source) << "packed once for all";
  EXPECT_EQ(outbox_->waiting_answers(), 0u);
}

TEST_F(AnswerOutboxTest, HostileWantsAreRefused) {
  v1::Want want;
  EXPECT_EQ(Want(want)->code(), kInvalidArgument);
  want = Answer(1);
  want.set_held_chunks(std::string(1 << 20, '\0'));
  EXPECT_EQ(Want(want)->code(), kInvalidArgument);
  EXPECT_EQ(Want(Answer(5000))->code(), kFailedPrecondition);
  want = State();
  for (const int fragment : {-1, 3, 1 << 30}) {
    want.set_fragment(fragment);
    EXPECT_EQ(Want(want)->code(), kFailedPrecondition) << fragment;
  }
  EXPECT_EQ(outbox_->waiting_answers(), 0u);
}

TEST_F(AnswerOutboxTest, AStateThatMovedOnIsNotResumed) {
  coordinator_.Publish(0, 0, AnswerOf(7, 2 * kAnswerChunk));
  EXPECT_TRUE(Want(State(7))->ok());
  EXPECT_EQ(Want(State(6))->code(), kNotFound);
  EXPECT_EQ((*Want(State())->found)->header.round(), 7);
}

TEST_F(AnswerOutboxTest, ChunksOfVersion0AreNotCompletedByThoseOfALaterOne) {
  coordinator_.Publish(0, 0, AnswerOf(0, 2 * kAnswerChunk));
  v1::Want resumed = State(0);
  resumed.set_held_chunks("\x01");
  EXPECT_TRUE(Want(resumed)->ok()) << "it is version 0 that is published";
  coordinator_.Publish(0, 0, AnswerOf(1, 2 * kAnswerChunk));
  EXPECT_EQ(Want(resumed)->code(), kNotFound);
  resumed.set_held_chunks(std::string(1, '\0'));
  EXPECT_TRUE(Want(resumed)->ok()) << "nothing is held";
}

TEST_F(AnswerOutboxTest, WantsThatStopWaitingLeaveNothingBehind) {
  for (int i = 0; i < 100; ++i) {
    const auto wanted = Want(Answer(1));
    EXPECT_FALSE(wanted->found.has_value());
    EXPECT_EQ(wanted.use_count(), 1);
  }
  EXPECT_EQ(coordinator_.waiting(), 1u) << "the coordinator is asked once";
  const auto stays = Want(Answer(1));
  coordinator_.Publish(0, 1, AnswerOf(1, 2 * kAnswerChunk));
  EXPECT_TRUE(stays->ok());
  EXPECT_EQ(outbox_->waiting_answers(), 0u);
}

TEST_F(AnswerOutboxTest, ThePublicationMayComeAfterTheOutboxIsGone) {
  const auto wanted = Want(Answer(1));
  outbox_ = nullptr;
  coordinator_.Publish(0, 1, AnswerOf(1, kAnswerChunk));
  EXPECT_FALSE(wanted->found.has_value());
}

TEST_F(AnswerOutboxTest, AWorkerThatDoesNotReadFillsNoMoreThanItsShareOfTheMemory) {
  for (const int64_t round : {1, 2, 3}) {
    coordinator_.Publish(0, round, AnswerOf(round, 2 * kAnswerChunk));
  }
  Serve(5 * kAnswerChunk);
  auto first = Want(Answer(1));
  const auto second = Want(Answer(2));
  EXPECT_EQ(Want(Answer(3))->code(), kResourceExhausted);
  EXPECT_TRUE(Want(Answer(2))->ok()) << "the same object takes no more room";
  EXPECT_TRUE(Want(Answer(3), "b")->ok()) << "others have their own share";
  first = nullptr;
  EXPECT_TRUE(Want(Answer(3))->ok()) << "there is room again";
}

TEST_F(AnswerOutboxTest, WhatAWorkerMayNotHoldIsNotReadForIt) {
  const int64_t state = coordinator_.plan().range(0).size() * int64_t{sizeof(float)};
  coordinator_.Publish(0, 0, AnswerOf(0, state));
  Serve(state + kAnswerChunk);
  auto first = Want(State());
  EXPECT_TRUE(first->ok());
  coordinator_.Publish(0, 1, AnswerOf(1, 2 * kAnswerChunk));
  EXPECT_EQ(Want(Answer(1))->code(), kResourceExhausted);
  EXPECT_EQ(coordinator_.asked_for_answers, 1) << "its size is not known before";
  first = nullptr;
  Serve(state);
  const auto second = Want(State());
  EXPECT_TRUE(second->ok());
  EXPECT_EQ(Want(State())->code(), kResourceExhausted);
  EXPECT_EQ(Want(Answer(2))->code(), kResourceExhausted);
  EXPECT_EQ(coordinator_.asked_for_states, 2);
  EXPECT_EQ(coordinator_.asked_for_answers, 1);
}

TEST_F(AnswerOutboxTest, NobodyWaitsForWhatAnotherHasReadForItself) {
  std::deque<std::function<void()>> tasks;
  Serve(100 * kAnswerChunk, [&tasks](auto task) { tasks.push_back(std::move(task)); });
  coordinator_.Publish(0, 0, AnswerOf(0, kAnswerChunk));
  std::vector<std::shared_ptr<Wanted>> greedy;
  for (int i = 0; i < 100; ++i) greedy.push_back(Want(State()));
  const auto honest = Want(State(), "b");
  ASSERT_EQ(tasks.size(), 2u) << "one of each worker";
  for (int i = 0; i < 2; ++i) {
    tasks.front()();
    tasks.pop_front();
  }
  EXPECT_TRUE(honest->ok());
  for (; !tasks.empty(); tasks.pop_front()) tasks.front()();
  EXPECT_TRUE(std::ranges::all_of(greedy, &Wanted::ok)) << "in the end";
}

}  // namespace
}  // namespace causeway::server
