#include "worker/backend/cuda/kernels/kernels.h"

#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;

// gelu(x) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308F;
constexpr float kGeluCubic = 0.044715F;

__device__ __forceinline__ float Sigmoid(float x) {
  return __fdividef(1.0F, 1.0F + FastExp(-x));  // 0 where e^-x is infinite.
}

// Thread i has vector i of the `vectors` of hidden.
struct Place {
  bool present;
  int64_t hidden;  // Its first value in a tensor [rows, width],
  int64_t gate;    // and in [rows, 2, width].

  __device__ Place(uint32_t vectors, uint32_t vectors_per_row) {
    const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
    present = i < vectors;
    hidden = int64_t{i} * kVector;
    gate = hidden + int64_t{i / vectors_per_row} * vectors_per_row * kVector;
  }
};

__global__ __launch_bounds__(kThreads) void SwigluForwardKernel(uint32_t vectors,
                                                                uint32_t vectors_per_row,
                                                                const Bf16* gate_up, Bf16* hidden) {
  const Place at(vectors, vectors_per_row);
  if (!at.present) return;
  float gate[kVector], up[kVector];
  LoadUnpacked(gate_up + at.gate, gate);
  LoadUnpacked(gate_up + at.gate + int64_t{vectors_per_row} * kVector, up);
#pragma unroll
  for (int i = 0; i < kVector; ++i) up[i] *= gate[i] * Sigmoid(gate[i]);
  StorePacked(up, hidden + at.hidden);
}

__global__ __launch_bounds__(kThreads) void SwigluBackwardKernel(uint32_t vectors,
                                                                 uint32_t vectors_per_row,
                                                                 const Bf16* dhidden, Bf16* gate_up,
                                                                 Bf16* hidden) {
  const Place at(vectors, vectors_per_row);
  if (!at.present) return;
  Bf16* const gate_at = gate_up + at.gate;
  Bf16* const up_at = gate_at + int64_t{vectors_per_row} * kVector;
  float gate[kVector], up[kVector], upstream[kVector], value[kVector];
  LoadUnpacked(gate_at, gate);
  LoadUnpacked(up_at, up);
  LoadUnpacked(dhidden + at.hidden, upstream);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float sigmoid = Sigmoid(gate[i]);
    const float silu = gate[i] * sigmoid;
    value[i] = silu * up[i];
    gate[i] = upstream[i] * up[i] * (silu * (1.0F - sigmoid) + sigmoid);
    up[i] = upstream[i] * silu;
  }
  StorePacked(gate, gate_at);
  StorePacked(up, up_at);
  if (hidden != nullptr) StorePacked(value, hidden + at.hidden);
}

__global__ __launch_bounds__(kThreads) void GeluForwardKernel(uint32_t vectors,
                                                              uint32_t vectors_per_row,
                                                              const Bf16* up, Bf16* hidden) {
  const Place at(vectors, vectors_per_row);
  if (!at.present) return;
  float value[kVector];
  LoadUnpacked(up + at.hidden, value);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float cubic = value[i] * value[i] * kGeluCubic;
    const float linear = value[i] * kTwiceSqrtTwoOverPi;
    value[i] *= Sigmoid(linear * cubic + linear);
  }
  StorePacked(value, hidden + at.hidden);
}

__global__ __launch_bounds__(kThreads) void GeluBackwardKernel(uint32_t vectors,
                                                               uint32_t vectors_per_row,
                                                               const Bf16* dhidden, Bf16* up,
                                                               Bf16* hidden) {
  const Place at(vectors, vectors_per_row);
  if (!at.present) return;
  float x[kVector], upstream[kVector], value[kVector];
  LoadUnpacked(up + at.hidden, x);
  LoadUnpacked(dhidden + at.hidden, upstream);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float cubic = x[i] * x[i] * kGeluCubic;
    const float linear = x[i] * kTwiceSqrtTwoOverPi;
    const float sigmoid = Sigmoid(linear * cubic + linear);
    value[i] = x[i] * sigmoid;
    // d(2u)/dx.
    const float slope = kTwiceSqrtTwoOverPi * (cubic * 3.0F + 1.0F);
    x[i] = upstream[i] * (value[i] * (1.0F - sigmoid) * slope + sigmoid);
  }
  StorePacked(x, up + at.hidden);
  if (hidden != nullptr) StorePacked(value, hidden + at.hidden);
}

// A thread for each vector of hidden.
template <typename Kernel, typename... Tensors>
void LaunchActivation(Kernel kernel, int64_t rows, int64_t width, cudaStream_t stream,
                      Tensors... tensors) {
  CheckAlignment(tensors...);
  const uint32_t vectors = VectorsOf(rows, width);
  Launch(kernel, BlocksFor(vectors, kThreads), kThreads, 0, stream, vectors, VectorsOfRow(width),
         tensors...);
}

}  // namespace

void SwigluForward(int64_t rows, int64_t width, const Bf16* gate_up, Bf16* hidden,
                   cudaStream_t stream) {
  LaunchActivation(SwigluForwardKernel, rows, width, stream, gate_up, hidden);
}

void SwigluBackward(int64_t rows, int64_t width, const Bf16* dhidden, Bf16* gate_up, Bf16* hidden,
                    cudaStream_t stream) {
  LaunchActivation(SwigluBackwardKernel, rows, width, stream, dhidden, gate_up, hidden);
}

void GeluForward(int64_t rows, int64_t width, const Bf16* up, Bf16* hidden, cudaStream_t stream) {
  LaunchActivation(GeluForwardKernel, rows, width, stream, up, hidden);
}

void GeluBackward(int64_t rows, int64_t width, const Bf16* dhidden, Bf16* up, Bf16* hidden,
                  cudaStream_t stream) {
  LaunchActivation(GeluBackwardKernel, rows, width, stream, dhidden, up, hidden);
}

}  // namespace causeway::worker::cuda
