// A GPU on the CPU, for tests. Sources under worker/backend/cuda are compiled twice: by nvcc, and
// by the C++ compiler against tests/emulation/include. So kernels, streams, graphs and everything
// around them are tested on every machine; tests/gpu runs the same tests on a real GPU.
//
// What is like a GPU:
// - Every thread of a block is a fiber: barriers, shuffles, votes, shared memory, ldmatrix and
//   mma.sync do what they do there. A barrier or shuffle that some lanes miss ends the test with
//   the place.
// - cp.async delivers when it is waited for; until then its destination is garbage. Fresh memory
//   is NaN.
// - A stream's work runs when something waits for it, in an order that SetOrder chooses
//   where nothing orders it. What misses an event or a barrier shows as a wrong result.
// - Several devices, each with its memory; out of memory, a missing driver, missing machine code
//   and a lost device can be staged. A machine that computes nothing needs no memory for its
//   devices: what a model takes on machines larger than this one.
//
// What is not:
// - Time: nothing here says how fast a kernel is.
// - Arithmetic is the CPU's: no fused multiply-add unless written as one, exp and the like to the
//   last bit of the C library's. Only a GPU can show that kernels have a CPU's bits there.
// - Blocks run one after another, so a kernel whose blocks race with each other is not found out.
// - Registers, bank conflicts, alignment of vector loads, the memory model's finer points.
// - cuBLASLt and NCCL: what stands behind their interfaces in tests is plain C++.
//
// Thread-safety: any thread may use the runtime; what is declared here is set before it is used.
#pragma once

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
