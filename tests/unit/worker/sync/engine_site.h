// One worker's engine over a fake exchange, for tests of synchronization.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/worker/sync/fake_exchange.h"
#include "worker/sync/host_part.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker {

inline v1::RunConfig TinyRun(
    const std::string& sync,
    const std::string& model = "layers: 3 width: 16 heads: 2 mlp_width: 24") {
  v1::RunConfig config =
      ParseRunConfig(
          "model { vocabulary_size: 64 sequence_length: 8 " + model +
              " } train { steps: 100 } sync { " + sync + " }" +
              (sync.find("GRADIENT") == std::string::npos ? "" : " outer { optimizer: ADAMW }"),
          "test")
          .value();
  const auto warnings = CompleteRunConfig(config);
  EXPECT_TRUE(warnings.ok()) << warnings.status();
  return config;
}

// "Training": a pure function of step and index.
inline float MoveOf(int64_t step, int64_t i) {
  return static_cast<float>(0.001 *
                            RandomNormal(7, static_cast<uint64_t>(step), static_cast<uint64_t>(i)));
}
inline float GradientOf(int64_t step, int64_t i) { return 3 * MoveOf(step + 1000, i); }

// Where the values of a worker are that has none in host memory.
class Values {
 public:
  virtual ~Values() = default;
  virtual std::unique_ptr<Replica> MakeReplica() = 0;
  virtual void Train(int64_t step) = 0;
  virtual std::vector<float> Local() = 0;
  virtual void SetLocal(const std::vector<float>& local) = 0;
};
using MakeValues =
    std::function<std::unique_ptr<Values>(const FragmentPlan& plan, const v1::SyncConfig& sync)>;

// One worker, and the other side of its exchange.
class Site {
 public:
  explicit Site(const std::string& sync, float outer_learning_rate = 1, int max_advance = 1)
      : Site(TinyRun(sync), outer_learning_rate, max_advance, nullptr) {}
  // `make_values`: null for values in host memory.
  Site(const v1::RunConfig& config, float outer_learning_rate, int max_advance,
       const MakeValues& make_values)
      : config_(config),
        max_advance_(max_advance),
        plan_(FragmentPlan::Create(config_).value()),
        initial_(Initial()),
        local_(static_cast<size_t>(plan_.arena_size())),
        gradients_(local_.size()),
        values_(make_values ? make_values(plan_, config_.sync()) : nullptr),
        exchange_(
            std::make_unique<FakeExchange>(plan_, config_.sync(), initial_, outer_learning_rate)) {
    MakeEngine();
  }

  // Of another process, if there was one.
  void MakeEngine() {
    engine_.reset();
    exchange_->Revive();
    replica_.reset();
    replica_ = values_ != nullptr
                   ? values_->MakeReplica()
                   : MakeHostReplica(plan_, config_.sync(), local_, gradients_).value();
    SyncEngine::Options options;
    options.config = config_.sync();
    options.plan = &plan_;
    options.replica = replica_.get();
    options.exchange = exchange_.get();
    options.clock = &clock_;
    options.max_advance = max_advance_;
    options.recorded_merges = recorded_;
    options.observer.merged = [this](int64_t step, const SyncEvent& event) {
      merges_.push_back({step, event});
    };
    options.observer.late = [this](const SyncEvent& event) { late_.push_back(event); };
    options.observer.waits = [this](const std::optional<SyncEvent>& event) {
      waits_.push_back(event);
      if (event.has_value() && when_it_waits_) when_it_waits_();
    };
    engine_ = std::make_unique<SyncEngine>(std::move(options));
  }

  static void Move(int64_t step, std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += MoveOf(step, static_cast<int64_t>(i));
    }
  }
  std::vector<float> Local() { return values_ != nullptr ? values_->Local() : local_; }
  void SetLocal(const std::vector<float>& local) {
    if (values_ != nullptr) return values_->SetLocal(local);
    local_ = local;
  }

  absl::Status Step(int64_t step) {
    if (values_ != nullptr) {
      values_->Train(step);
    } else {
      Move(step, local_);
      for (size_t i = 0; i < gradients_.size(); ++i) {
        gradients_[i] = GradientOf(step, static_cast<int64_t>(i));
      }
    }
    return engine_->AfterStep(step, 10, 2);
  }

  void Run(int64_t from, int64_t to) {
    for (int64_t step = from; step <= to; ++step) {
      ASSERT_EQ(Step(step), absl::OkStatus());
    }
  }

  // The former process ends after that step, and this one continues against the same coordinator.
  // `meanwhile`: what happens there in between.
  void Continue(Site& former, int64_t step, const std::function<void(FakeExchange&)>& meanwhile) {
    SyncEngine::State state = former.engine_->Save().value();
    former.engine_.reset();
    engine_.reset();
    exchange_ = std::move(former.exchange_);
    std::ranges::copy(former.local_, local_.begin());
    MakeEngine();
    meanwhile(*exchange_);
    ASSERT_EQ(engine_->Restore(std::move(state), step), absl::OkStatus());
  }

  std::span<const float> Part(std::span<const float> arena, int fragment) const {
    return arena.subspan(static_cast<size_t>(plan_.range(fragment).begin),
                         static_cast<size_t>(plan_.range(fragment).size()));
  }

  struct Merge {
    int64_t step;
    SyncEvent event;
    bool operator==(const Merge&) const = default;
  };

  FakeClock clock_;
  const v1::RunConfig config_;
  const int max_advance_;
  const FragmentPlan plan_;
  const std::vector<float> initial_;
  std::vector<float> local_;
  std::vector<float> gradients_;
  std::unique_ptr<Values> values_;  // Null: they are the two above.
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<FakeExchange> exchange_;
  std::vector<Merge> merges_;
  std::vector<SyncEvent> late_;
  std::vector<std::optional<SyncEvent>> waits_;
  std::function<void()> when_it_waits_;
  std::vector<RecordedMerge> recorded_;  // For the next engine.
  std::unique_ptr<SyncEngine> engine_;

 private:
  std::vector<float> Initial() const {
    std::vector<float> values(static_cast<size_t>(plan_.arena_size()));
    InitializeParameters(plan_, 1, values);
    return values;
  }
};

// One that has the published state of step 0.
class StartedSite : public Site {
 public:
  explicit StartedSite(const std::string& sync, float outer_learning_rate = 1, int max_advance = 1)
      : Site(sync, outer_learning_rate, max_advance) {
    EXPECT_TRUE(engine_->Fetch(0).ok());
  }
};

}  // namespace causeway::worker
