#include "worker/backend/cuda/newton_schulz.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/backend/cpu/muon.h"
#include "worker/backend/cuda/kernels/muon.h"

namespace causeway::worker::cuda {
namespace {

constexpr float kA = 3.4445F;
constexpr float kB = -4.7750F;
constexpr float kC = 2.0315F;
// Values of matrices that are worked on at once: more gains nothing, and costs memory.
constexpr int64_t kChunkValues = int64_t{1} << 26;

int64_t Side(const MatrixBatch& batch) { return std::min(batch.rows, batch.cols); }

int64_t ChunkOf(const MatrixBatch& batch) {
  return std::clamp<int64_t>(kChunkValues / (batch.rows * batch.cols), 1,
                             std::max<int64_t>(batch.count, 1));
}

}  // namespace

absl::StatusOr<NewtonSchulz> NewtonSchulz::Create(const std::vector<MatrixBatch>& batches,
                                                  DeviceMemory* memory, Gemm* gemm) {
  int64_t values = 0;
  int64_t squares = 0;
  int64_t scratch = 1;
  for (const MatrixBatch& batch : batches) {
    const int64_t chunk = ChunkOf(batch);
    values = std::max(values, chunk * batch.rows * batch.cols);
    squares = std::max(squares, chunk * Side(batch) * Side(batch));
    scratch = std::max(scratch, MuonNormalizeScratch(chunk, batch.rows * batch.cols));
  }
  NewtonSchulz result(gemm);
  constexpr char kArena[] = "Muon's products";
  constexpr char kLower[] = "train.optimizer: ADAMW";
  ASSIGN_OR_RETURN(result.next_, memory->Allocate<__nv_bfloat16>(kArena, values, kLower));
  ASSIGN_OR_RETURN(result.gram_, memory->Allocate<__nv_bfloat16>(kArena, squares, kLower));
  ASSIGN_OR_RETURN(result.polynomial_, memory->Allocate<__nv_bfloat16>(kArena, squares, kLower));
  ASSIGN_OR_RETURN(result.scratch_, memory->Allocate<double>(kArena, scratch, kLower));
  return result;
}

absl::Status NewtonSchulz::Orthogonalize(const MatrixBatch& batch, __nv_bfloat16* matrices,
                                         cudaStream_t stream) const {
  const int64_t size = batch.rows * batch.cols;
  const int64_t chunk = ChunkOf(batch);
  for (int64_t done = 0; done < batch.count; done += chunk) {
    const MatrixBatch now = {batch.rows, batch.cols, std::min(chunk, batch.count - done)};
    __nv_bfloat16* const x = matrices + done * size;
    MuonNormalize(now.count, size, x, scratch_, stream);
    __nv_bfloat16* from = x;
    __nv_bfloat16* to = next_;
    for (int iteration = 0; iteration < kNewtonSchulzIterations; ++iteration) {
      RETURN_IF_ERROR(Iterate(now, from, to, stream));
      std::swap(from, to);
    }
    if (from == x) continue;
    RETURN_IF_ERROR(CheckCuda(
        cudaMemcpyAsync(x, from, static_cast<size_t>(now.count * size) * sizeof(__nv_bfloat16),
                        cudaMemcpyDeviceToDevice, stream),
        "copying orthogonalized matrices"));
  }
  return absl::OkStatus();
}

absl::Status NewtonSchulz::Iterate(const MatrixBatch& batch, const __nv_bfloat16* from,
                                   __nv_bfloat16* to, cudaStream_t stream) const {
  const bool tall = batch.rows > batch.cols;
  const int64_t side = Side(batch);
  const int64_t size = batch.rows * batch.cols;
  const GemmOperand x = {.data = from, .stride = batch.cols, .batch_stride = size};
  GemmOperand turned = x;
  turned.transpose = true;
  const GemmOperand gram = {.data = gram_, .stride = side, .batch_stride = side * side};
  const GemmOperand polynomial = {.data = polynomial_, .stride = side, .batch_stride = side * side};
  RETURN_IF_ERROR(gemm_->Run({.m = side,
                              .n = side,
                              .k = size / side,
                              .batch = batch.count,
                              .a = tall ? turned : x,
                              .b = tall ? x : turned,
                              .d = gram_,
                              .d_stride = side,
                              .d_batch_stride = side * side},
                             stream));
  RETURN_IF_ERROR(gemm_->Run({.m = side,
                              .n = side,
                              .k = side,
                              .batch = batch.count,
                              .alpha = kC,
                              .beta = kB,
                              .a = gram,
                              .b = gram,
                              .d = polynomial_,
                              .d_stride = side,
                              .d_batch_stride = side * side,
                              .c = gram_},
                             stream));
  // X = a X + P X, or a X + X P of tall ones.
  return gemm_->Run({.m = batch.rows,
                     .n = batch.cols,
                     .k = side,
                     .batch = batch.count,
                     .beta = kA,
                     .a = tall ? x : polynomial,
                     .b = tall ? polynomial : x,
                     .d = to,
                     .d_stride = batch.cols,
                     .d_batch_stride = size,
                     .c = from},
                    stream);
}

}  // namespace causeway::worker::cuda
