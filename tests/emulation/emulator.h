// A GPU on the CPU, for tests: runs the kernels of CUDA sources that were compiled as C++ against
// tests/emulation/include. Every thread of a block is a fiber, so barriers, shuffles and shared
// memory work as written; blocks run one after another. Streams keep their work until something
// waits for it, so a missing wait shows as a wrong result and not as luck.
//
// Thread-safety: any thread may use the runtime; what is declared here is set before it is used.
#ifndef CAUSEWAY_TESTS_EMULATION_EMULATOR_H_
#define CAUSEWAY_TESTS_EMULATION_EMULATOR_H_

#include <cstddef>
#include <cstdint>

#include "cuda_runtime.h"

namespace causeway::emulation {

struct Machine {
  int devices = 1;
  size_t memory = size_t{1} << 30;   // Bytes of each device.
  int major = 9, minor = 0;          // Compute capability.
  cudaError_t driver = cudaSuccess;  // An error is every call's answer: no driver, no device.
  bool image = true;                 // The program was built for the devices' architecture.
  // Or nothing but events happens on streams, and memory of the devices is accounted for without
  // being there: what a model takes on machines larger than this one.
  bool computes = true;
};
// Replaces the machine; nothing may be allocated on the former one.
void SetMachine(const Machine& machine);

// In which order the threads of a block run where nothing orders them, and the streams of a device
// when all are waited for. Results must not depend on it.
enum class Order { kForward, kBackward, kShuffled };
void SetOrder(Order order, uint64_t seed = 1);

// Operations on streams run when they are issued instead of when they are waited for.
void SetEager(bool eager);

// After so many further kernels, every call of the runtime answers with `error`, as when a GPU is
// lost, until SetMachine.
void FailAfterKernels(int64_t kernels, cudaError_t error);

// Whether the process has used a device since SetMachine: chosen it, or allocated or made anything
// on it. A real one keeps some hundreds of megabytes for such a process.
bool HasContext(int device);

// Bytes that are allocated on a device, and kernels launched since the program began.
size_t AllocatedBytes(int device);
int64_t KernelsLaunched();
// Counts, since the program began, what must not happen inside a step: calls that wait for a
// device, and allocations, on devices and of pinned memory.
int64_t HostWaits();
int64_t HostWaitsOfThread();  // Of the calling thread alone.
int64_t AllocationsMade();

}  // namespace causeway::emulation

#endif  // CAUSEWAY_TESTS_EMULATION_EMULATOR_H_
