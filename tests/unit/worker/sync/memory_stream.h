// Both ends of a SiteStream, in memory.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "worker/sync/process_link.h"

namespace causeway::worker {

class MemoryStream final : public SiteStream {
 public:
  static std::pair<std::unique_ptr<MemoryStream>, std::unique_ptr<MemoryStream>> MakePair() {
    const auto state = std::make_shared<State>();
    return {std::make_unique<MemoryStream>(state, 0), std::make_unique<MemoryStream>(state, 1)};
  }

  struct State {
    absl::Mutex mutex;
    std::array<std::deque<v1::SiteFrame>, 2> frames ABSL_GUARDED_BY(mutex);  // To each end.
    std::array<bool, 2> closed ABSL_GUARDED_BY(mutex) = {};                  // By that end.
    bool cut ABSL_GUARDED_BY(mutex) = false;
  };
  MemoryStream(std::shared_ptr<State> state, size_t end) : state_(std::move(state)), end_(end) {}
  // As a process that ends without a word.
  ~MemoryStream() override { Cut(); }

  absl::Status Read(v1::SiteFrame& frame) override {
    State& state = *state_;
    absl::MutexLock lock(&state.mutex);
    const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
      return state.cut || state.closed[1 - end_] || !state.frames[end_].empty();
    };
    state.mutex.Await(absl::Condition(&ready));
    if (state.frames[end_].empty()) return Over();
    frame = std::move(state.frames[end_].front());
    state.frames[end_].pop_front();
    return absl::OkStatus();
  }
  absl::Status Write(const v1::SiteFrame& frame) override {
    absl::MutexLock lock(&state_->mutex);
    if (state_->cut) return Over();
    state_->frames[1 - end_].push_back(frame);
    return absl::OkStatus();
  }
  void CloseWrites() override {
    absl::MutexLock lock(&state_->mutex);
    state_->closed[end_] = true;
  }
  void Cut() override {
    absl::MutexLock lock(&state_->mutex);
    state_->cut = true;
  }

 private:
  static absl::Status Over() { return absl::UnavailableError("it was closed"); }

  const std::shared_ptr<State> state_;
  const size_t end_;
};

}  // namespace causeway::worker
