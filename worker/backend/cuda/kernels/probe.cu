#include "worker/backend/cuda/kernels/device.h"

namespace causeway::worker::cuda {
namespace {

__global__ void Probe() {}

}  // namespace

cudaError_t ProbeMachineCode() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, Probe);
}

}  // namespace causeway::worker::cuda
