// A coordinator for the tests of transfers: says what it is told to say, and keeps what it gets.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/mutex.h"
#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/params/run_config.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "server/core/coordinator.h"

namespace causeway::server {

// Bytes of a delta or an answer, of which every 64th is random.
inline std::vector<uint8_t> MakeObject(int64_t bytes, uint64_t seed) {
  std::vector<uint8_t> object(static_cast<size_t>(bytes));
  for (size_t i = 0; i < object.size(); i += 64) {
    object[i] = static_cast<uint8_t>(RandomBits(seed, 0, i));
  }
  return object;
}

inline PullObject MakeAnswer(int64_t round, const std::vector<uint8_t>& bytes) {
  PullObject object;
  object.bytes.assign(bytes.begin(), bytes.end());
  object.header.set_round(round);
  object.header.set_total_bytes(static_cast<int64_t>(bytes.size()));
  object.header.set_object_hash(TreeHash(bytes));
  return object;
}

inline v1::Greeting GreetingOf(const std::string& worker_id, uint64_t process, int lane = 0) {
  v1::Greeting greeting;
  greeting.set_wire_version(kWireVersion);
  greeting.set_run_id("fake-1");
  greeting.set_worker_id(worker_id);
  greeting.set_process(process);
  greeting.set_lane(lane);
  return greeting;
}

// Calls are thread-safe; fields are for when there are none.
class FakeCoordinator final : public Coordinator, public Rounds {
 public:
  explicit FakeCoordinator(bool entropy_down = false)
      : config_(MakeConfig(entropy_down)), plan_(*FragmentPlan::Create(config_)) {}

  // BeginPush and Contribute say this of what was not contributed.
  absl::Status admission;
  // Contribute answers this after it has looked at the hash.
  absl::Status verdict;
  std::vector<std::pair<v1::PushHeader, std::vector<uint8_t>>> contributions;
  std::vector<std::vector<double>> squares;  // Squares of the last contribution.
  int64_t pulled_bytes = 0;
  int asked_for_answers = 0;
  // Called without the lock; may be null.
  std::function<void()> on_begin;  // Before BeginPush returns.
  std::function<void(int fragment)> on_merge;
  std::function<void(const v1::PushHeader&)> on_contribution;
  int asked_for_states = 0;

  void Publish(int fragment, int64_t round, const PullObject& object) {
    const auto shared = std::make_shared<const PullObject>(object);
    std::vector<PullCallback> waiting;
    {
      absl::MutexLock lock(&mutex_);
      answers_[{fragment, round}] = shared;
      const auto [begin, end] = waiting_.equal_range({fragment, round});
      for (auto one = begin; one != end; ++one) waiting.push_back(std::move(one->second));
      waiting_.erase(begin, end);
    }
    for (const PullCallback& callback : waiting) callback(shared);
  }
  void ExpectOnly(const std::vector<uint8_t>& object) const {
    ASSERT_EQ(contributions.size(), 1u) << "once";
    EXPECT_TRUE(contributions[0].second == object);
  }
  size_t waiting() const {
    absl::MutexLock lock(&mutex_);
    return waiting_.size();
  }
  static v1::PushResponse Accepted(const v1::PushHeader& header, bool duplicate) {
    v1::PushResponse response;
    response.set_durable_bytes(header.total_bytes());
    response.set_duplicate(duplicate);
    response.set_quarantined(header.tokens() == 666);
    return response;
  }

  const v1::RunConfig& config() const override { return config_; }
  const FragmentPlan& plan() const override { return plan_; }
  const std::string& run_id() const override { return run_id_; }
  Rounds& rounds() override { return *this; }
  // The tests of transfers have no sessions and no operators.
  Members& members() override { std::abort(); }
  Orders& orders() override { std::abort(); }
  Region* region() override { return nullptr; }

  absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(const v1::PushHeader& header,
                                                            RoundClosed closed) override {
    const absl::Cleanup before_it_returns = [this] {
      if (on_begin != nullptr) on_begin();
    };
    absl::MutexLock lock(&mutex_);
    std::optional<v1::PushResponse> held = FindHeld(header);
    if (held.has_value()) return held;
    if (!admission.ok()) return admission;
    if (closed_.contains({header.fragment(), header.round()})) return absl::AbortedError("closed");
    begun_[{header.fragment(), header.round()}] = std::move(closed);
    return std::nullopt;
  }
  // The round closes without what has begun to come.
  void Close(int fragment, int64_t round) {
    RoundClosed closed;
    {
      absl::MutexLock lock(&mutex_);
      closed_.insert({fragment, round});
      closed = std::exchange(begun_[{fragment, round}], nullptr);
    }
    if (closed != nullptr) closed();
  }
  // Leaves whose first byte is 0xff are not valid.
  std::vector<double> MeasureLeaf(int, int64_t, int64_t leaf,
                                  std::span<const uint8_t> bytes) const override {
    if (bytes.front() == 0xff) return {};
    return {static_cast<double>(leaf)};
  }
  absl::StatusOr<v1::PushResponse> Contribute(const v1::PushHeader& header,
                                              ReceivedObject object) override {
    {
      absl::MutexLock lock(&mutex_);
      const std::optional<v1::PushResponse> held = FindHeld(header);
      if (held.has_value()) return *held;
      if (!admission.ok()) return admission;
    }
    const std::span<const uint8_t> bytes = object.bytes.view();
    EXPECT_EQ(object.tree_hash, TreeHash(bytes));
    if (object.tree_hash != header.object_hash()) return absl::DataLossError("another hash");
    {
      absl::MutexLock lock(&mutex_);
      squares = object.squares;
      if (!verdict.ok()) return verdict;
      contributions.emplace_back(header, std::vector<uint8_t>(bytes.begin(), bytes.end()));
    }
    if (on_contribution != nullptr) on_contribution(header);
    return Accepted(header, /*duplicate=*/false);
  }
  void MergeDue(int fragment) override {
    if (on_merge != nullptr) on_merge(fragment);
  }
  void PullAnswer(int fragment, int64_t round, PullCallback callback) override {
    if (round > 1000) return callback(absl::FailedPreconditionError("there is no such round"));
    std::shared_ptr<const PullObject> answer;
    {
      absl::MutexLock lock(&mutex_);
      ++asked_for_answers;
      const auto found = answers_.find({fragment, round});
      if (found != answers_.end()) {
        answer = found->second;
      } else {
        waiting_.emplace(std::pair(fragment, round), std::move(callback));
      }
    }
    if (answer != nullptr) callback(answer);
  }
  absl::StatusOr<std::shared_ptr<const PullObject>> PullState(int fragment) override {
    absl::MutexLock lock(&mutex_);
    ++asked_for_states;
    const auto found = answers_.find({fragment, 0});
    if (found == answers_.end()) return absl::FailedPreconditionError("no such fragment");
    return found->second;
  }
  void RecordPulled(const std::string&, v1::Want::Object, int64_t bytes) override {
    absl::MutexLock lock(&mutex_);
    pulled_bytes += bytes;
  }

  v1::DescribeResponse Describe() const override { return {}; }
  void Tick() override {}
  bool Maintain() override { return false; }
  v1::RunStatus GetStatus() const override { return {}; }
  End Ended() const override { return End::kNotYet; }
  absl::Status Health() const override { return absl::OkStatus(); }
  absl::Status Shutdown() override { return absl::OkStatus(); }
  std::vector<float> PublishedParameters() const override { return {}; }

 private:
  std::optional<v1::PushResponse> FindHeld(const v1::PushHeader& header) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [accepted, object] : contributions) {
      if (accepted.object_hash() == header.object_hash() && accepted.round() == header.round() &&
          accepted.fragment() == header.fragment()) {
        return Accepted(header, /*duplicate=*/true);
      }
    }
    return std::nullopt;
  }
  static v1::RunConfig MakeConfig(bool entropy_down) {
    v1::RunConfig config;
    config.mutable_model()->set_preset("tiny-1m");
    config.mutable_sync()->set_entropy_down(entropy_down);
    EXPECT_TRUE(CompleteRunConfig(config).ok());
    return config;
  }

  const v1::RunConfig config_;
  const FragmentPlan plan_;
  const std::string run_id_ = "fake-1";
  mutable absl::Mutex mutex_;
  std::map<std::pair<int, int64_t>, std::shared_ptr<const PullObject>> answers_
      ABSL_GUARDED_BY(mutex_);
  std::multimap<std::pair<int, int64_t>, PullCallback> waiting_ ABSL_GUARDED_BY(mutex_);
  // By fragment and round: the tests of late deltas have one worker.
  std::map<std::pair<int, int64_t>, RoundClosed> begun_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<int, int64_t>> closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
