// Whether this program has machine code for a GPU.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_PROBE_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_PROBE_H_

#include <cuda_runtime.h>

namespace causeway::worker::cuda {

// Whether the present device runs this code: cudaErrorNoKernelImageForDevice if not.
cudaError_t ProbeMachineCode();

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_PROBE_H_
