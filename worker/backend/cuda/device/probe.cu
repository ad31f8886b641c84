#include "worker/backend/cuda/device/probe.h"

namespace causeway::worker::cuda {
namespace {

__global__ void Probe() {}

}  // namespace

cudaError_t ProbeMachineCode() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, Probe);
}

}  // namespace causeway::worker::cuda
