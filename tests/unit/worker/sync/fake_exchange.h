// The other side of one worker's synchronization, in memory and under the test's control: it
// merges each delta alone with an outer learning rate and no momentum.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "causeway/v1/config.pb.h"
#include "common/base/checksum.h"
#include "common/client/exchange.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"

namespace causeway::worker {

class FakeExchange final : public Exchange {
 public:
  using Key = std::pair<int, int64_t>;  // Fragment and round.

  FakeExchange(const FragmentPlan& plan, const v1::SyncConfig& sync, std::vector<float> published,
               float learning_rate = 1)
      : plan_(plan),
        sync_(sync),
        published_(std::move(published)),
        versions_(static_cast<size_t>(plan.fragments())),
        learning_rate_(learning_rate) {}

  // Answers of that round wait until Release.
  void Hold(Key key) { Play(key, Lie::kHeld); }
  void Release(Key key) {
    absl::MutexLock lock(&mutex_);
    lies_.erase({key, Lie::kHeld});
  }
  // The round closes without this worker.
  void CloseWithout(Key key) { Play(key, Lie::kClosedWithout); }
  // The round has another object of this worker, sent before it was restarted.
  void ContributedBefore(Key key) { Play(key, Lie::kContributedBefore); }
  // The answer is no longer kept; the state has it.
  void Forget(Key key) { Play(key, Lie::kForgotten); }
  // The answer announces another hash than it leads to.
  void Corrupt(Key key) { Play(key, Lie::kCorrupt); }
  // States announce that version from now on.
  void AnnounceVersion(int fragment, int64_t version) {
    absl::MutexLock lock(&mutex_);
    versions_[static_cast<size_t>(fragment)] = version;
  }
  // Publishes a round from elsewhere: the fragment moves by `delta` everywhere.
  void PublishFromElsewhere(Key key, float delta) {
    absl::MutexLock lock(&mutex_);
    std::vector<double> sum(Values(key.first), delta);
    Publish(key, sum);
  }

  absl::Status Push(const Contribution& contribution) override {
    const Key key(contribution.fragment, contribution.round);
    absl::MutexLock lock(&mutex_);
    pushes_.push_back(
        {key, contribution.tokens,
         std::vector<uint8_t>(contribution.object.begin(), contribution.object.end())});
    std::vector<double> sum(Values(key.first));
    if (Plays(key, Lie::kClosedWithout)) {
      Publish(key, sum);
      return absl::AbortedError("the round closed");
    }
    if (Plays(key, Lie::kContributedBefore)) {
      Publish(key, sum);
      return absl::AlreadyExistsError("another object");
    }
    const std::vector<float> zeros(Values(key.first));
    const bool gradients = sync_.contribution() == v1::SyncConfig::GRADIENT;
    const std::span<const float> base =
        gradients ? std::span<const float>(zeros) : std::span<const float>(Part(key.first));
    if (answers_.contains(key)) return absl::OkStatus();  // A duplicate.
    const absl::Status status = FindCodec(sync_.codec_up())
                                    .value()
                                    ->Accumulate(contribution.object, base, learning_rate_, sum);
    if (!status.ok()) return status;
    deltas_[key] = sum;
    Publish(key, sum);
    return absl::OkStatus();
  }

  absl::StatusOr<PulledObject> PullAnswer(int fragment, int64_t round, int64_t) override {
    const Key key(fragment, round);
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return cancelled_ || (answers_.contains(key) && !Plays(key, Lie::kHeld));
    };
    mutex_.Await(absl::Condition(&there));
    if (cancelled_) return absl::CancelledError("cancelled");
    if (Plays(key, Lie::kForgotten)) return absl::NotFoundError("no longer kept");
    return answers_.at(key);
  }

  absl::StatusOr<PulledObject> PullState(int fragment) override {
    const PulledObject state = State(fragment);
    if (while_a_state_comes_) while_a_state_comes_(fragment);
    return state;
  }
  // Called for every state, after it was read and before it is there.
  void WhileAStateComes(std::function<void(int fragment)> happens) {
    while_a_state_comes_ = std::move(happens);
  }

  void ReportApplied(int fragment, int64_t round, uint64_t published_hash) override {
    absl::MutexLock lock(&mutex_);
    applied_[{fragment, round}] = published_hash;
  }

  void Cancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }

  // Another process may use it again.
  void Revive() {
    absl::MutexLock lock(&mutex_);
    cancelled_ = false;
    pushes_.clear();
  }

  int64_t bytes_up() const override { return 0; }
  int64_t bytes_down() const override { return 0; }

  struct PushRecord {
    Key key;
    int64_t tokens;
    std::vector<uint8_t> object;
  };
  std::vector<PushRecord> pushes() {
    absl::MutexLock lock(&mutex_);
    return pushes_;
  }
  std::vector<float> published() {
    absl::MutexLock lock(&mutex_);
    return published_;
  }
  // learning_rate * delta of a merged round.
  std::vector<double> delta(Key key) {
    absl::MutexLock lock(&mutex_);
    return deltas_.at(key);
  }
  bool HasApplied(Key key) {
    absl::MutexLock lock(&mutex_);
    return applied_.contains(key);
  }
  void AwaitApplied(Key key) {
    Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return applied_.contains(key); });
  }
  // Waits for so many calls of Push, and returns them.
  std::vector<PushRecord> AwaitPushes(size_t count) {
    Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return pushes_.size() >= count; });
    return pushes();
  }
  // Waits until that round has been pushed.
  void AwaitPush(Key key) {
    Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answers_.contains(key); });
  }

 private:
  template <typename Holds>
  void Await(const Holds& holds) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&holds));
  }
  PulledObject State(int fragment) {
    absl::MutexLock lock(&mutex_);
    const std::span<const float> part = Part(fragment);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(part.data());
    return PulledObject{.round = versions_[static_cast<size_t>(fragment)],
                        .codec = v1::FP32,
                        .published_hash = TreeHash(part),
                        .bytes = ByteBuffer(bytes, bytes + part.size_bytes())};
  }
  enum class Lie { kHeld, kClosedWithout, kContributedBefore, kForgotten, kCorrupt };
  void Play(Key key, Lie lie) {
    absl::MutexLock lock(&mutex_);
    lies_.emplace(key, lie);
  }
  bool Plays(Key key, Lie lie) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return lies_.contains({key, lie});
  }
  size_t Values(int fragment) const { return static_cast<size_t>(plan_.range(fragment).size()); }
  std::span<float> Part(int fragment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::span(published_)
        .subspan(static_cast<size_t>(plan_.range(fragment).begin), Values(fragment));
  }

  void Publish(Key key, const std::vector<double>& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (answers_.contains(key)) return;
    const std::span<float> part = Part(key.first);
    std::vector<float> theta(part.begin(), part.end());
    for (size_t i = 0; i < theta.size(); ++i) theta[i] = static_cast<float>(theta[i] - step[i]);
    const Codec* const codec = FindCodec(sync_.codec_down()).value();
    PulledObject answer{
        .round = key.second, .codec = codec->id(), .published_hash = 0, .bytes = {}};
    answer.bytes.resize(codec->EncodedBytes(part.size()));
    if (!codec->Encode(part, theta, {}, answer.bytes).ok()) std::abort();
    if (!codec->Apply(answer.bytes, part).ok()) std::abort();
    answer.published_hash = TreeHash(std::span<const float>(part));
    if (Plays(key, Lie::kCorrupt)) ++answer.published_hash;
    versions_[static_cast<size_t>(key.first)] = key.second;
    answers_[key] = std::move(answer);
  }

  const FragmentPlan& plan_;
  const v1::SyncConfig sync_;
  absl::Mutex mutex_;
  std::vector<float> published_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> versions_ ABSL_GUARDED_BY(mutex_);
  const float learning_rate_;
  std::set<std::pair<Key, Lie>> lies_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, PulledObject> answers_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, uint64_t> applied_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, std::vector<double>> deltas_ ABSL_GUARDED_BY(mutex_);
  std::vector<PushRecord> pushes_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void(int fragment)> while_a_state_comes_;
};

}  // namespace causeway::worker
