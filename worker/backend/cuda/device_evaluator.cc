#include "worker/backend/cuda/device_evaluator.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/backend/cuda/kernels/elementwise.h"

namespace causeway::worker::cuda {
namespace {

constexpr int64_t kStagingValues = int64_t{1} << 22;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceEvaluator>> DeviceEvaluator::Create(const Options& options,
                                                                         DeviceMemory* memory) {
  auto evaluator = std::unique_ptr<DeviceEvaluator>(new DeviceEvaluator(options));
  ASSIGN_OR_RETURN(evaluator->staging_, memory->Allocate<float>("staging", kStagingValues, ""));
  ASSIGN_OR_RETURN(evaluator->host_loss_, PinnedBuffer<StepLoss>::Create(1));
  return evaluator;
}

absl::Status DeviceEvaluator::Wait() const {
  return CheckCuda(cudaStreamSynchronize(options_.stream), "an evaluation");
}

absl::Status DeviceEvaluator::UseParameters(std::span<const float> parameters) {
  const auto size = static_cast<int64_t>(parameters.size());
  for (int64_t begin = 0; begin < size; begin += kStagingValues) {
    const int64_t count = std::min(kStagingValues, size - begin);
    RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(staging_, parameters.data() + begin,
                                              static_cast<size_t>(count) * sizeof(float),
                                              cudaMemcpyHostToDevice, options_.stream),
                              "copying parameters to the GPU"));
    CastToBf16(count, staging_, options_.weights + begin, options_.stream);
  }
  RETURN_IF_ERROR(CheckLaunches("casting parameters"));
  return Wait();
}

absl::Status DeviceEvaluator::Forward(std::span<const int32_t> inputs,
                                      std::span<const int32_t> targets,
                                      std::span<const int32_t> document_starts, int64_t length) {
  DeviceTokens tokens = options_.tokens;
  for (const auto& [to, from] :
       {std::pair(tokens.inputs, inputs), std::pair(tokens.targets, targets),
        std::pair(tokens.document_starts, document_starts)}) {
    if (from.empty()) continue;
    RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(to, from.data(), from.size_bytes(),
                                              cudaMemcpyHostToDevice, options_.stream),
                              "copying tokens"));
  }
  if (document_starts.empty()) tokens.document_starts = nullptr;
  const int sequences = static_cast<int>(static_cast<int64_t>(inputs.size()) / length);
  return options_.transformer->Forward(tokens, sequences, length, options_.loss, options_.stream);
}

absl::StatusOr<double> DeviceEvaluator::Loss(std::span<const int32_t> inputs,
                                             std::span<const int32_t> targets,
                                             std::span<const int32_t> document_starts) {
  RETURN_IF_ERROR(
      Forward(inputs, targets, document_starts, options_.transformer->sequence_length()));
  RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(host_loss_.data(), options_.loss, sizeof(StepLoss),
                                            cudaMemcpyDeviceToHost, options_.stream),
                            "copying the loss"));
  RETURN_IF_ERROR(Wait());
  return host_loss_[0].cross_entropy;
}

absl::Status DeviceEvaluator::TokenLosses(std::span<const int32_t> inputs,
                                          std::span<const int32_t> targets, int64_t length,
                                          std::span<float> losses) {
  RETURN_IF_ERROR(Forward(inputs, targets, {}, length));
  RETURN_IF_ERROR(
      CheckCuda(cudaMemcpyAsync(losses.data(), options_.transformer->row_losses(),
                                losses.size_bytes(), cudaMemcpyDeviceToHost, options_.stream),
                "copying losses"));
  return Wait();
}

}  // namespace causeway::worker::cuda
