// One model on one device, without optimizer, for tests.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "worker/backend/cuda/cuda_transformer.h"
#include "worker/backend/cuda/kernels/device.h"

namespace causeway::worker::cuda {

// [sequences, length] each; document_starts may be empty.
struct HostTokens {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
  std::vector<int32_t> document_starts;
};

class TransformerRig {
 public:
  struct Result {
    StepLoss loss;
    std::vector<float> gradients;
  };

  // `parameters` in arena order, rounded to bf16 here.
  TransformerRig(const v1::ModelConfig& model, const FragmentPlan& plan,
                 const std::vector<float>& parameters, const CudaTransformer::Options& options);

  // All micro-batches of a step, by graphs if so asked: gradients of the mean over all.
  Result Run(const std::vector<HostTokens>& micro_batches, bool graphs = false);
  // The mean cross entropy, and that of every position.
  double Loss(const HostTokens& tokens, int sequences, std::vector<float>* rows = nullptr);

 private:
  void Upload(const HostTokens& tokens);

  const int64_t vocabulary_;
  TestDevice device_;
  DeviceMemory memory_;
  std::unique_ptr<Gemm> gemm_;
  const int64_t arena_size_;
  float* gradients_ = nullptr;
  StepLoss* loss_ = nullptr;
  DeviceTokens tokens_;
  std::unique_ptr<CudaTransformer> transformer_;
};

}  // namespace causeway::worker::cuda
