// CudaBackends for tests: on emulated devices with emulated products and a group of threads, or on
// GPUs with cuBLASLt and NCCL.
#pragma once

#include <memory>

#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/sync/backend.h"

namespace causeway::worker::cuda {

// Whether there are so many; emulated ones appear on the first call.
bool HaveDevices(int count);

CudaBackend::Options TestOptions(int devices);
// All devices in one process.
std::unique_ptr<TrainingBackend> MakeTestBackend(const v1::RunConfig& config,
                                                 const FragmentPlan& plan,
                                                 const CudaBackend::Options& options);
inline std::unique_ptr<TrainingBackend> MakeTestBackend(const v1::RunConfig& config,
                                                        const FragmentPlan& plan, int devices) {
  return MakeTestBackend(config, plan, TestOptions(devices));
}

}  // namespace causeway::worker::cuda
