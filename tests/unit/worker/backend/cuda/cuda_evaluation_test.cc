// A model that is evaluated on a GPU and not trained there.
#include "worker/backend/cuda/cuda_evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/params/initialize.h"
#include "tests/unit/worker/backend/backend_contract.h"
#include "tests/unit/worker/backend/cuda/test_backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#ifdef CAUSEWAY_EMULATED_DEVICE
#include "tests/emulation/emulator.h"
#endif

namespace causeway::worker::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int kWindows = 2;
constexpr size_t kTokens = 32;

class CudaEvaluationTest : public ::testing::Test {
 protected:
  CudaEvaluationTest()
      : config_(ContractConfig("")),
        plan_(FragmentPlan::Create(config_).value()),
        parameters_(static_cast<size_t>(plan_.arena_size())),
        inputs_(kTokens),
        targets_(kTokens),
        options_(TestOptions(1)) {
    InitializeParameters(plan_, 3, parameters_);
    EXPECT_TRUE(ContractReader(1)(0, {inputs_, targets_, {}}).ok());
  }
  std::unique_ptr<CudaEvaluation> Make() {
    return CudaEvaluation::Create(config_.model(), plan_, kWindows, options_.devices.front(),
                                  options_.make_gemm)
        .value();
  }

  v1::RunConfig config_;
  FragmentPlan plan_;
  std::vector<float> parameters_;
  std::vector<int32_t> inputs_, targets_;
  CudaBackend::Options options_;
};

TEST_F(CudaEvaluationTest, HasTheBitsOfTheBackendThatTrains) {
  const auto backend = CudaBackend::Create(config_, plan_, options_).value();
  const std::unique_ptr<CudaEvaluation> evaluation = Make();
  EXPECT_EQ(evaluation->sequence_length(), backend->sequence_length());
  EXPECT_EQ(evaluation->micro_batch_sequences(), kWindows);
  std::vector<int32_t> starts(kTokens, 0);
  for (size_t i = 0; i < kTokens; ++i) starts[i] = i % 16 < 5 ? 0 : 5;
  for (EvaluationModel* const model : {static_cast<EvaluationModel*>(backend.get()),
                                       static_cast<EvaluationModel*>(evaluation.get())}) {
    ASSERT_TRUE(model->UseParameters(parameters_).ok());
  }
  EXPECT_EQ(evaluation->Loss(inputs_, targets_, {}).value(),
            backend->Loss(inputs_, targets_, {}).value());
  EXPECT_EQ(evaluation->Loss(inputs_, targets_, starts).value(),
            backend->Loss(inputs_, targets_, starts).value());
  EXPECT_NE(evaluation->Loss(inputs_, targets_, starts).value(),
            evaluation->Loss(inputs_, targets_, {}).value());
}

TEST_F(CudaEvaluationTest, IsAsTheCpuSaysUpToRounding) {
  ThreadPool pool(1);
  CpuBackend cpu(config_, plan_, &pool);
  ASSERT_TRUE(cpu.UseParameters(parameters_).ok());
  const std::unique_ptr<CudaEvaluation> evaluation = Make();
  ASSERT_TRUE(evaluation->UseParameters(parameters_).ok());
  EXPECT_NEAR(evaluation->Loss(inputs_, targets_, {}).value(),
              cpu.Loss(inputs_, targets_, {}).value(), 1e-2);
}

TEST_F(CudaEvaluationTest, AModelThatGpusDoNotTakeIsRefused) {
  config_.mutable_model()->set_mlp_width(100);
  const FragmentPlan plan = FragmentPlan::Create(config_).value();
  const absl::Status status = CudaEvaluation::Create(config_.model(), plan, kWindows,
                                                     options_.devices.front(), options_.make_gemm)
                                  .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--device=cpu"));
}

#ifdef CAUSEWAY_EMULATED_DEVICE
TEST_F(CudaEvaluationTest, TakesLessMemoryThanTraining) {
  const auto backend = CudaBackend::Create(config_, plan_, options_).value();
  const size_t training = emulation::AllocatedBytes(0);
  const std::unique_ptr<CudaEvaluation> evaluation = Make();
  EXPECT_LT(emulation::AllocatedBytes(0) - training, training);
}
#endif

}  // namespace
}  // namespace causeway::worker::cuda
