// The part of CUDA's C++ language and runtime that Causeway's sources use, on the CPU: found
// instead of NVIDIA's header by what is built for tests/emulation, so that kernels and the code
// around them are tested on machines without a GPU. tests/emulation/emulator.h says what is like a
// GPU and what is not. Names and meanings are CUDA's.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

// --- The language
// ---------------------------------------------------------------------------------
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__  // Empty: the standard library says __attribute__((__noinline__)).
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  constexpr dim3(unsigned x_in = 1, unsigned y_in = 1, unsigned z_in = 1)  // NOLINT: as CUDA's.
      : x(x_in), y(y_in), z(z_in) {}
  unsigned x, y, z;
};

#define CAUSEWAY_EMULATED_VECTOR(type, scalar, alignment)              \
  struct alignas(alignment) type##2 {                                  \
    scalar x, y;                                                       \
  };                                                                   \
  struct alignas((alignment)*2) type##4 {                              \
    scalar x, y, z, w;                                                 \
  };                                                                   \
  inline type##2 make_##type##2(scalar x, scalar y) { return {x, y}; } \
  inline type##4 make_##type##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
CAUSEWAY_EMULATED_VECTOR(float, float, 8)
CAUSEWAY_EMULATED_VECTOR(int, int, 8)
CAUSEWAY_EMULATED_VECTOR(uint, unsigned, 8)
#undef CAUSEWAY_EMULATED_VECTOR
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};

// The thread that runs at present.
extern thread_local uint3 threadIdx;
extern thread_local uint3 blockIdx;
extern thread_local dim3 blockDim;
extern thread_local dim3 gridDim;
inline constexpr int warpSize = 32;

namespace causeway::emulation {
// Threads wait here. `word` has at most 32 bits of the lane's operand.
void BlockBarrier();
uint32_t Shuffle(uint32_t word, int source_lane);
uint32_t Ballot(bool predicate);
void WarpBarrier();
int Lane();
}  // namespace causeway::emulation

inline void __syncthreads() { causeway::emulation::BlockBarrier(); }
inline void __syncwarp(unsigned = 0xffffffffU) { causeway::emulation::WarpBarrier(); }

// Every lane of a warp takes part in every shuffle and vote: other masks are not emulated.
template <typename T>
T __shfl_sync(unsigned, T value, int source, int width = 32) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  const int lane = (causeway::emulation::Lane() & ~(width - 1)) | (source & (width - 1));
  uint32_t words[sizeof(T) / 4];
  std::memcpy(words, &value, sizeof(T));
  for (uint32_t& word : words) word = causeway::emulation::Shuffle(word, lane);
  std::memcpy(&value, words, sizeof(T));
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  return __shfl_sync(mask, value, (causeway::emulation::Lane() ^ bits) & (width - 1), width);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  return causeway::emulation::Ballot(predicate != 0);
}
// Blocks and their threads run one at a time.
template <typename T>
T atomicMax(T* address, T value) {
  const T old = *address;
  *address = old > value ? old : value;
  return old;
}

// --- Arithmetic
// -----------------------------------------------------------------------------------
inline float __fdividef(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dmul_rn(double x, double y) { return x * y; }
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<uint32_t>(bits)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(x) * y >> 64);
}
using std::isfinite;
using std::isinf;
using std::isnan;
#define CAUSEWAY_EMULATED_EXTREMES(type)                    \
  inline type min(type x, type y) { return y < x ? y : x; } \
  inline type max(type x, type y) { return x < y ? y : x; }
CAUSEWAY_EMULATED_EXTREMES(int)
CAUSEWAY_EMULATED_EXTREMES(unsigned)
CAUSEWAY_EMULATED_EXTREMES(long)
CAUSEWAY_EMULATED_EXTREMES(unsigned long)
CAUSEWAY_EMULATED_EXTREMES(long long)
CAUSEWAY_EMULATED_EXTREMES(unsigned long long)
#undef CAUSEWAY_EMULATED_EXTREMES
inline float min(float x, float y) { return std::fmin(x, y); }
inline float max(float x, float y) { return std::fmax(x, y); }
inline double min(double x, double y) { return std::fmin(x, y); }
inline double max(double x, double y) { return std::fmax(x, y); }

// --- The runtime
// ----------------------------------------------------------------------------------
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;

inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0;
inline constexpr unsigned cudaEventBlockingSync = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaHostAllocDefault = 0;
inline constexpr unsigned cudaHostAllocPortable = 1;
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeThreadLocal = 1,
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
};
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  size_t sharedMemPerBlockOptin;
  size_t sharedMemPerMultiprocessor;
  int major, minor;
  int multiProcessorCount;
  int l2CacheSize;
  int memoryBusWidth;
};
struct cudaFuncAttributes {
  int binaryVersion, maxThreadsPerBlock;
};

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** pointer, size_t bytes);
template <typename T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  *pointer = static_cast<T*>(memory);
  return error;
}
cudaError_t cudaFree(void* pointer);
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags);
template <typename T>
cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned flags) {
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, bytes, flags);
  *pointer = static_cast<T*>(memory);
  return error;
}
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* memory, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream = nullptr);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t EmulatedFuncGetAttributes(cudaFuncAttributes* attributes);
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel) {
  return EmulatedFuncGetAttributes(attributes);
}
