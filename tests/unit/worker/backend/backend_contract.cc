#include "tests/unit/worker/backend/backend_contract.h"

#include <gmock/gmock.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "tests/unit/common/base/status_is.h"

namespace causeway::worker {
namespace {

constexpr int kLength = 16;

// One model under training.
class Subject {
 public:
  Subject(const BackendFactory& factory, const v1::RunConfig& config)
      : config_(config),
        plan_(FragmentPlan::Create(config_).value()),
        backend_(factory.make(config_, plan_)) {
    std::vector<float> parameters(static_cast<size_t>(plan_.arena_size()));
    InitializeParameters(plan_, 7, parameters);
    EXPECT_TRUE(backend_->SetParameters(parameters).ok());
  }

  TrainingBackend& backend() { return *backend_; }
  const FragmentPlan& plan() const { return plan_; }

  double Step(int64_t step) {
    const auto report = backend_->Step(step, ContractReader(step));
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? report->loss : 0;
  }
  std::vector<float> Parameters() {
    std::vector<float> parameters(static_cast<size_t>(plan_.arena_size()));
    EXPECT_TRUE(backend_->CopyParameters(parameters).ok());
    return parameters;
  }
  double HeldOutLoss(std::span<const float> parameters) {
    EXPECT_TRUE(backend_->UseParameters(parameters).ok());
    std::vector<int32_t> inputs(2 * kLength);
    std::vector<int32_t> targets(inputs.size());
    EXPECT_TRUE(ContractReader(1000)(0, {inputs, targets, {}}).ok());
    return backend_->Loss(inputs, targets, {}).value();
  }

 private:
  const v1::RunConfig config_;
  const FragmentPlan plan_;
  std::unique_ptr<TrainingBackend> backend_;
};

}  // namespace

v1::RunConfig ContractConfig(const std::string& settings) {
  v1::RunConfig config =
      ParseRunConfig(absl::StrCat("model { layers: 2 width: 64 heads: 2 head_dim: 32 mlp_width: 96 "
                                  "sequence_length: 16 qk_norm: true } train { batch_sequences: 4 "
                                  "micro_batch_sequences: 2 steps: 100 warmup_steps: 4 "
                                  "learning_rate: 1e-2 } sync { fragments: 2 } ",
                                  settings),
                     "test")
          .value();
  const auto completed = CompleteRunConfig(config);
  EXPECT_TRUE(completed.ok()) << completed.status();
  return config;
}

MicroBatchReader ContractReader(int64_t step) {
  return [step](int64_t index, const MicroBatch& out) {
    for (size_t i = 0; i < out.inputs.size(); ++i) {
      const uint64_t window = i / kLength;
      const uint64_t bits =
          RandomBits(5, static_cast<uint64_t>(step), static_cast<uint64_t>(index) * 100 + window);
      // Counting up from anywhere.
      out.inputs[i] = static_cast<int32_t>((bits + i % kLength) % 29);
      out.targets[i] = static_cast<int32_t>((bits + i % kLength + 1) % 29);
    }
    for (size_t i = 0; i < out.document_starts.size(); ++i) {
      out.document_starts[i] = i % kLength < 5 ? 0 : 5;
    }
    return absl::OkStatus();
  };
}

TEST_P(BackendContract, TheSameSeedTwiceGivesTheSameBits) {
  for (const char* settings : {"", "train { optimizer: MUON document_masking: true }"}) {
    Subject first(GetParam(), ContractConfig(settings));
    Subject second(GetParam(), ContractConfig(settings));
    for (int64_t step = 1; step <= 3; ++step) EXPECT_EQ(first.Step(step), second.Step(step));
    EXPECT_EQ(first.Parameters(), second.Parameters());
  }
}

TEST_P(BackendContract, ContinuesFromWhatItSavedBitForBit) {
  for (const char* settings : {"", "train { optimizer: MUON }"}) {
    Subject whole(GetParam(), ContractConfig(settings));
    for (int64_t step = 1; step <= 5; ++step) whole.Step(step);

    Subject before(GetParam(), ContractConfig(settings));
    for (int64_t step = 1; step <= 2; ++step) before.Step(step);
    const std::vector<float> parameters = before.Parameters();
    const OptimizerState state = before.backend().SaveOptimizer().value();
    EXPECT_EQ(state.updates, 2);

    Subject after(GetParam(), ContractConfig(settings));
    ASSERT_TRUE(after.backend()
                    .RestoreOptimizer(state.updates, state.first_moments, state.second_moments)
                    .ok());
    ASSERT_TRUE(after.backend().SetParameters(parameters).ok());
    for (int64_t step = 3; step <= 5; ++step) after.Step(step);
    EXPECT_EQ(after.Parameters(), whole.Parameters());
    EXPECT_EQ(after.backend().SaveOptimizer()->second_moments,
              whole.backend().SaveOptimizer()->second_moments);
  }
}

TEST_P(BackendContract, LearnsToCount) {
  Subject subject(GetParam(), ContractConfig());
  const double before = subject.HeldOutLoss(subject.Parameters());
  double loss = 0;
  for (int64_t step = 1; step <= 20; ++step) loss = subject.Step(step);
  EXPECT_LT(loss, 0.7 * before);
  EXPECT_LT(subject.HeldOutLoss(subject.Parameters()), 0.8 * before);
}

TEST_P(BackendContract, EvaluationBetweenStepsChangesNothing) {
  Subject plain(GetParam(), ContractConfig());
  Subject evaluated(GetParam(), ContractConfig());
  const std::vector<float> other(plain.Parameters().size(), 0.01F);
  for (int64_t step = 1; step <= 3; ++step) {
    plain.Step(step);
    evaluated.Step(step);
    evaluated.HeldOutLoss(other);
  }
  EXPECT_EQ(evaluated.Parameters(), plain.Parameters());
}

TEST_P(BackendContract, AGradientThatIsNotFiniteChangesNothing) {
  for (const char* settings : {"", "train { optimizer: MUON }"}) {
    Subject subject(GetParam(), ContractConfig(settings));
    subject.Step(1);
    const OptimizerState before = subject.backend().SaveOptimizer().value();
    std::vector<float> broken = subject.Parameters();
    // The final norm's weight: one number spoils all logits.
    broken[static_cast<size_t>(subject.plan().Find("model.norm.weight")->offset)] =
        std::numeric_limits<float>::infinity();
    ASSERT_TRUE(subject.backend().SetParameters(broken).ok());
    EXPECT_THAT(subject.backend().Step(2, ContractReader(2)),
                StatusIs(kOutOfRange, ::testing::HasSubstr("step 2")));
    EXPECT_EQ(subject.Parameters(), broken);
    const OptimizerState after = subject.backend().SaveOptimizer().value();
    EXPECT_EQ(after.updates, before.updates);
    EXPECT_EQ(after.first_moments, before.first_moments);
    EXPECT_EQ(after.second_moments, before.second_moments);
  }
}

TEST_P(BackendContract, AReaderThatFailsEndsTheStepAndTheNextOneIsWhole) {
  Subject plain(GetParam(), ContractConfig());
  Subject disturbed(GetParam(), ContractConfig());
  const auto report = disturbed.backend().Step(1, [](int64_t index, const MicroBatch& out) {
    if (index == 1) return absl::DataLossError("shard 3 is damaged");
    return ContractReader(9)(index, out);
  });
  EXPECT_EQ(report.status(), absl::DataLossError("shard 3 is damaged"));
  EXPECT_EQ(disturbed.Step(1), plain.Step(1));
  EXPECT_EQ(disturbed.Parameters(), plain.Parameters());
}

TEST_P(BackendContract, MomentsOfAnotherLengthAreRefused) {
  Subject subject(GetParam(), ContractConfig());
  const std::vector<float> moments(3);
  EXPECT_THAT(subject.backend().RestoreOptimizer(1, moments, moments),
              StatusIs(kInvalidArgument, ::testing::HasSubstr("values, not 3")));
}

TEST_P(BackendContract, WhereGradientsAreSynchronizedTheWeightsStay) {
  Subject subject(GetParam(),
                  ContractConfig("sync { contribution: GRADIENT fragments: 1 "
                                 "steps_between_syncs: 1 } outer { optimizer: ADAMW }"));
  const std::vector<float> before = subject.Parameters();
  const auto report = subject.backend().Step(1, ContractReader(1)).value();
  EXPECT_FALSE(report.update.has_value());
  EXPECT_EQ(report.tokens, 4 * kLength);
  EXPECT_EQ(report.draws, 4);
  EXPECT_EQ(subject.Parameters(), before);
  const OptimizerState state = subject.backend().SaveOptimizer().value();
  EXPECT_TRUE(state.first_moments.empty());
}

}  // namespace causeway::worker
