#include "worker/backend/cuda/kernels/kernels.h"

#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kShortRowThreads = 512;
// Threads for rows so long that two blocks' rows per multiprocessor exceed the second-level cache,
// 40 to 50 MB with 108 to 132 multiprocessors: one block with all threads halves them.
constexpr int kLongRowThreads = 1024;
constexpr int64_t kLongRowBytes = int64_t{176} << 10;
constexpr int kReduceThreads = 1024;
// Vectors that a thread loads before it looks at the first.
constexpr int kAtOnce = 4;
constexpr float kLowest = -3.402823466e38F;
constexpr float kLog2E = 1.44269504088896F;
constexpr float kLn2 = 0.69314718055995F;

// The sum of 2^(value * kLog2E - shift) so far; the shift is that of the largest value. All that
// follows uses the same rounded shift, which therefore costs no precision.
struct RunningSum {
  float most = kLowest;
  float shift = kLowest;
  float sum = 0;

  __device__ void Raise(float largest) {
    if (!(largest > most)) return;
    most = largest;
    const float before = shift;
    shift = largest * kLog2E;
    sum *= Exp2(before - shift);
  }
  __device__ void Take(float value) {
    Raise(value);
    sum += Exp2(fmaf(value, kLog2E, -shift));
  }
  __device__ void Take(const float (&values)[kVector]) {
    float largest = values[0];
#pragma unroll
    for (int i = 1; i < kVector; ++i) largest = fmaxf(largest, values[i]);
    Raise(largest);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += Exp2(fmaf(values[i], kLog2E, -shift));
  }
};

// One block per row: a pass for the sum, and one over what is mostly still in the cache for the
// gradient, from the end backwards.
template <int kThreads>
__global__ __launch_bounds__(kThreads,
                             1024 / kThreads) void ClassifierKernel(ClassifierArguments a) {
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ float shift_slots[kWarps];
  __shared__ float sum_slots[kWarps];
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  Bf16* const logits = a.logits + row * a.stride;
  const int vectors = static_cast<int>(a.stride / kVector);
  const int vocabulary = static_cast<int>(a.vocabulary);
  const int target = a.targets[row];
  if (target < 0) {
    if (thread == 0) {
      a.loss[row] = 0;
      a.log_sum_exp[row] = 0;
    }
    if (!a.gradient) return;
    for (int i = thread; i < vectors; i += kThreads) {
      StoreVector(make_uint4(0, 0, 0, 0), logits + int64_t{i} * kVector);
    }
    return;
  }
  const float target_logit = __bfloat162float(logits[target]);

  RunningSum running;
  const int whole = vocabulary / kVector;  // Vectors without padding.
  for (int first = thread; first < whole; first += kThreads * kAtOnce) {
    uint4 loaded[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = first + k * kThreads;
      if (i < whole) loaded[k] = LoadVector(logits + int64_t{i} * kVector);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k * kThreads >= whole) break;
      float values[kVector];
      Unpack(loaded[k], values);
      running.Take(values);
    }
  }
  const int rest = whole * kVector + thread;
  if (rest < vocabulary) running.Take(__bfloat162float(logits[rest]));
  const float shift = BlockMax<kThreads>(running.shift, shift_slots);
  const float sum = BlockSum<kThreads>(running.sum * Exp2(running.shift - shift), sum_slots);
  const float log_sum = (shift + log2f(sum)) * kLn2;
  if (thread == 0) {
    a.loss[row] = log_sum - target_logit;
    a.log_sum_exp[row] = log_sum;
  }
  if (!a.gradient) return;

  const float factor = a.count->factor;
  const float scale = factor * (1.0F + 2.0F * a.z_loss * log_sum) / sum;
  for (int first = vectors - 1 - thread; first >= 0; first -= kThreads * kAtOnce) {
    uint4 loaded[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = first - k * kThreads;
      if (i >= 0) loaded[k] = LoadVector(logits + int64_t{i} * kVector);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int column = (first - k * kThreads) * kVector;
      if (column < 0) break;
      float values[kVector];
      Unpack(loaded[k], values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        values[i] = Exp2(fmaf(values[i], kLog2E, -shift)) * scale;
      }
      if (target >= column && target < column + kVector) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) values[i] -= column + i == target ? factor : 0.0F;
      }
      if (column + kVector > vocabulary) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) values[i] = column + i < vocabulary ? values[i] : 0.0F;
      }
      StorePacked(values, logits + column);
    }
  }
}

__global__ __launch_bounds__(kReduceThreads) void CountTargetsKernel(int total,
                                                                     const int32_t* targets,
                                                                     float gradient_scale,
                                                                     TargetCount* count) {
  __shared__ int slots[kReduceThreads / kWarpSize];
  int mine = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < total; i += kReduceThreads) {
    mine += targets[i] >= 0 ? 1 : 0;
  }
  const int present = BlockSum<kReduceThreads>(mine, slots);
  if (threadIdx.x != 0) return;
  count->targets = present;
  count->factor = present == 0 ? 0.0F : gradient_scale / static_cast<float>(present);
}

__global__ __launch_bounds__(kReduceThreads) void ReduceLossKernel(
    int64_t rows, const float* loss, const float* log_sum_exp, float z_loss,
    const TargetCount* count, double weight, bool accumulate, StepLoss* out) {
  __shared__ double loss_slots[kReduceThreads / kWarpSize];
  __shared__ double square_slots[kReduceThreads / kWarpSize];
  double loss_sum = 0;
  double squares = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < rows; i += kReduceThreads) {
    const double log_sum = log_sum_exp[i];
    loss_sum += loss[i];
    squares += log_sum * log_sum;
  }
  loss_sum = BlockSum<kReduceThreads>(loss_sum, loss_slots);
  squares = BlockSum<kReduceThreads>(squares, square_slots);
  if (threadIdx.x != 0) return;
  const int targets = count->targets;
  StepLoss sum = accumulate ? *out : StepLoss{};
  if (targets > 0) {
    const double cross_entropy = loss_sum / targets;
    sum.cross_entropy += weight * cross_entropy;
    sum.total += weight * (cross_entropy + static_cast<double>(z_loss) * squares / targets);
    sum.targets += targets;
  }
  *out = sum;
}

}  // namespace

void CountTargets(int64_t total, const int32_t* targets, float gradient_scale, TargetCount* count,
                  cudaStream_t stream) {
  assert(total < int64_t{1} << 31);
  Launch(CountTargetsKernel, 1, kReduceThreads, 0, stream, static_cast<int>(total), targets,
         gradient_scale, count);
}

void Classifier(const ClassifierArguments& a, cudaStream_t stream) {
  CheckAlignment(a.logits);
  assert(a.stride % kVector == 0 && a.vocabulary > 0 && a.vocabulary <= a.stride &&
         a.stride < int64_t{1} << 30);
  if (a.stride * static_cast<int64_t>(sizeof(Bf16)) > kLongRowBytes) {
    Launch(ClassifierKernel<kLongRowThreads>, BlocksFor(a.rows, 1), kLongRowThreads, 0, stream, a);
  } else {
    Launch(ClassifierKernel<kShortRowThreads>, BlocksFor(a.rows, 1), kShortRowThreads, 0, stream,
           a);
  }
}

void ReduceLoss(int64_t rows, const float* loss, const float* log_sum_exp, float z_loss,
                const TargetCount* count, double weight, bool accumulate, StepLoss* sum,
                cudaStream_t stream) {
  Launch(ReduceLossKernel, 1, kReduceThreads, 0, stream, rows, loss, log_sum_exp, z_loss, count,
         weight, accumulate, sum);
}

}  // namespace causeway::worker::cuda
